from django.conf import settings
from django.db import models


class DeviceLogin(models.Model):
    """A request of `parlab login` for a token, which a user confirms in the browser; the token is made when it is
    collected, so its secret is never stored."""

    device_digest = models.CharField(
        max_length=64, unique=True, help_text="SHA-256 of the secret with which the client collects the token."
    )
    user_code = models.CharField(max_length=9, unique=True, help_text="What the user compares or enters.")
    host = models.CharField(max_length=120, help_text="Name of the machine, as the client states it.")
    address = models.CharField(max_length=64, help_text="Address that the request came from.")
    scopes = models.CharField(max_length=40, help_text="Names of scopes, separated by spaces.")
    created_at = models.DateTimeField(db_index=True)
    expires_at = models.DateTimeField(db_index=True)
    polled_at = models.DateTimeField(null=True, blank=True)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text="Who has confirmed or denied it.",
    )
    is_denied = models.BooleanField(default=False)
    collected_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"{self.user_code} for {self.host}"

    @property
    def scope_names(self) -> list[str]:
        return self.scopes.split()
