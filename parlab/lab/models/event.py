import uuid
from typing import Any

from django.db import models

from .experiment import Experiment
from .run import Run


def unique_key() -> str:
    return uuid.uuid4().hex


class Event(models.Model):
    """Something that people may want to be notified of, stored in the transaction in which it happened."""

    class Kind(models.TextChoices):
        RUN_FINISHED = "run.finished", "run finished"
        RUN_FAILED = "run.failed", "run failed"
        RUN_OOM = "run.oom", "run out of memory"
        RUN_LOST = "run.lost", "run lost"
        RUN_CANCELLED = "run.cancelled", "run cancelled"
        RUN_NAN = "run.nan", "loss not finite"
        RUN_DIVERGED = "run.diverged", "loss diverged"
        RUN_SPIKE = "run.spike", "spike of the loss"
        FINDING_NEW = "finding.new", "new finding"
        NODE_LOST = "node.lost", "node lost"
        NODE_EXCLUDED = "node.excluded", "node excluded"
        STUDY_DONE = "study.done", "study done"
        RUN_ALERT = "run.alert", "alert of a script"
        WATCH_ALERT = "watch.alert", "change in a watch"
        LAUNCH_ASKED = "launch.asked", "launch beyond the budget"
        TEST = "test", "test"

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False, help_text="Idempotency key for receivers.")
    kind = models.CharField(max_length=16, choices=Kind)
    key = models.CharField(
        max_length=200, unique=True, default=unique_key, help_text="Names the event where it can occur only once."
    )
    at = models.DateTimeField()
    experiment = models.ForeignKey(Experiment, models.SET_NULL, null=True, blank=True, related_name="events")
    run = models.ForeignKey(Run, models.SET_NULL, null=True, blank=True, related_name="events")
    text = models.TextField(help_text="One sentence for people.")
    path = models.CharField(max_length=300, blank=True, help_text="Address of its page on this server.")
    data: "models.JSONField[dict[str, Any]]" = models.JSONField(default=dict, blank=True)
    routed_at = models.DateTimeField(null=True, blank=True, help_text="When its deliveries were created.")

    class Meta:
        ordering = ["-pk"]
        indexes = [
            models.Index(fields=["id"], name="event_to_route", condition=models.Q(routed_at=None)),
            models.Index(fields=["at"], name="event_at"),
        ]

    def __str__(self) -> str:
        return self.text
