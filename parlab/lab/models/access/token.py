from django.conf import settings
from django.db import models
from django.utils import timezone

from .viewer import home_project_id

SCOPE_TEXTS = {
    "read": "read experiments, runs, series, logs and figures",
    "report": "report runs and their files, import",
    "write": "all of report, create, change and delete",
    "launch": "launch, relaunch and cancel runs, start studies",
    "admin": "manage tokens, projects and their members",
}
"""What a token may be limited to, see docs/operate/security.md."""
SCOPES = tuple(SCOPE_TEXTS)
USUAL_SCOPES = ("read", "write", "launch")
"""What a token gets that names no scopes: everything but access of others."""
INCLUDED = {"report": "write"}
"""Scopes that another one includes."""
ALL_SCOPES = " ".join(SCOPES)


class ApiToken(models.Model):
    """Authenticates a script as a user until it is revoked; `lab.services.token_create` generates the secret."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="api_tokens")
    project = models.ForeignKey(
        "lab.Project",
        models.PROTECT,
        default=home_project_id,
        related_name="tokens",
        help_text="The project that the token reaches; it sees and changes nothing in others.",
    )
    name = models.CharField(max_length=80, help_text="What the token is for.")
    digest = models.CharField(
        max_length=64, unique=True, editable=False, help_text="SHA-256 of the secret, which is not stored."
    )
    ending = models.CharField(
        max_length=4,
        editable=False,
        help_text="Last characters of the secret, for identification.",
    )
    scopes = models.CharField(max_length=40, default=ALL_SCOPES, help_text="Names of scopes, separated by spaces.")
    expires_at = models.DateTimeField(null=True, blank=True, help_text="Empty: it does not expire.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    created_with = models.ForeignKey(
        "self",
        models.CASCADE,
        null=True,
        blank=True,
        editable=False,
        related_name="+",
        help_text="The token that created this one, which is revoked with it.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    last_used_at = models.DateTimeField(null=True, blank=True, help_text="Accurate to one minute.")
    revoked_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "API token"
        ordering = ["-created_at", "-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "name"], condition=models.Q(revoked_at=None), name="api_token_name_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.user}, …{self.ending}"

    @property
    def is_revoked(self) -> bool:
        return self.revoked_at is not None

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= timezone.now()

    @property
    def scope_names(self) -> list[str]:
        return self.scopes.split()

    def allows(self, scope: str) -> bool:
        """Return whether requests that need a scope may be made with this token; its user's permissions apply, too."""
        return scope in self.scope_names or INCLUDED.get(scope) in self.scope_names
