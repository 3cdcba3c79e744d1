from django.db import models


class RefusedMessage(models.Model):
    """Messages that the server or a node refused: counted by queue, sender and reason, with a sample of the last."""

    queue = models.CharField(max_length=200)
    sender = models.CharField(
        max_length=200, blank=True, help_text="Node as far as it is known; anyone may have written it."
    )
    reason = models.CharField(max_length=400)
    count = models.PositiveBigIntegerField(default=0)
    size = models.PositiveBigIntegerField(default=0, help_text="Bytes of the last one.")
    sample = models.TextField(blank=True, help_text="Beginning of the last one, with escapes.")
    first_at = models.DateTimeField()
    last_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ["-last_at"]
        constraints = [models.UniqueConstraint(fields=["queue", "sender", "reason"], name="refused_message_once")]

    def __str__(self) -> str:
        return f"{self.queue}: {self.reason}"
