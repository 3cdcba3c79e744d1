from django.db import models


class LoginFailure(models.Model):
    """Failed logins for one name from one address since the last success, counted to slow down guessing."""

    username = models.CharField(max_length=150)
    address = models.CharField(max_length=64)
    count = models.PositiveIntegerField(default=0)
    last_at = models.DateTimeField(db_index=True)
    blocked_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-last_at"]
        constraints = [models.UniqueConstraint(fields=["username", "address"], name="login_failure_once")]

    def __str__(self) -> str:
        return f"{self.username} from {self.address}"
