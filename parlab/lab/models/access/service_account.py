from __future__ import annotations

from django.conf import settings
from django.db import models


class ServiceAccount(models.Model):
    """The account of a pipeline or a machine in one project: it has tokens and a role, and never logs in."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="service_account")
    project = models.ForeignKey("lab.Project", models.CASCADE, related_name="service_accounts")
    purpose = models.CharField(max_length=120, blank=True, help_text="What it is for, and who looks after it.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["user__username"]

    def __str__(self) -> str:
        return self.user.get_username()

    @property
    def short_name(self) -> str:
        """The name within the project."""
        return self.user.get_username().partition("@")[0]
