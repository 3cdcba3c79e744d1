from django.conf import settings
from django.db import models


class AuditEntry(models.Model):
    """A change that a person or a script has made over HTTP: who, what, when and from where."""

    class Action(models.TextChoices):
        LOGIN = "login", "logged in"
        LAUNCH = "launch", "launched"
        CANCEL = "cancel", "cancelled"
        CHANGE = "change", "changed"
        SHARE = "share", "shared"
        DELETE = "delete", "deleted"
        ACCESS = "access", "changed access"

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    username = models.CharField(max_length=150, help_text="As it was then; it stays when the user is deleted.")
    action = models.CharField(max_length=8, choices=Action)
    route = models.CharField(max_length=120, help_text="Name of the address.")
    method = models.CharField(max_length=8)
    path = models.CharField(max_length=300)
    status = models.PositiveSmallIntegerField()
    token = models.CharField(max_length=80, blank=True, help_text="Name of the API token; empty: a session.")
    address = models.CharField(max_length=64)

    class Meta:
        verbose_name_plural = "audit entries"
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"{self.username} {self.get_action_display()}: {self.path}"
