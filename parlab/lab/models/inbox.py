"""What needs a decision, and what each person has read of it."""

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Exists, F, OuterRef, Q
from django.urls import reverse
from django.utils import timezone

from parlab.lab.models.access.viewer import VisibleManager, VisibleQuerySet

from .event import Event
from .experiment import Experiment
from .node import Node
from .run import Run


class InboxItemQuerySet(VisibleQuerySet["InboxItem"]):
    def open(self) -> "InboxItemQuerySet":
        return self.filter(done_at=None)

    def shown_to(self, user_id: int) -> "InboxItemQuerySet":
        """Open items that a person has neither muted nor put off; none of archived experiments and deleted runs."""
        snoozed = InboxReading.objects.filter(item=OuterRef("pk"), user=user_id, snoozed_until__gt=timezone.now())
        muted = InboxMute.objects.filter(user=user_id, kind=OuterRef("kind"))
        return self.open().of_shown_subjects().exclude(Exists(snoozed)).exclude(Exists(muted))

    def of_shown_subjects(self) -> "InboxItemQuerySet":
        return self.filter(experiment__archived_at=None, run__hidden_at=None)

    def unread(self, user_id: int) -> "InboxItemQuerySet":
        """Items that a person has not opened since they last occurred."""
        return self.exclude(Exists(_readings_since(user_id)))

    def with_is_read(self, user_id: int) -> "InboxItemQuerySet":
        return self.annotate(is_read=Exists(_readings_since(user_id)))


def _readings_since(user_id: int) -> "models.QuerySet[InboxReading]":
    return InboxReading.objects.filter(item=OuterRef("pk"), user=user_id, read_at__gte=OuterRef("last_at"))


InboxItemManager = VisibleManager.from_queryset(InboxItemQuerySet)


class InboxItem(models.Model):
    """One line of the inbox: something that needs a decision, of one cause. The same event again raises its count.

    It is done for all when a person says so, or when its cause is gone.
    """

    PROJECT = "experiment__project"

    kind = models.CharField(max_length=16, choices=Event.Kind)
    key = models.CharField(max_length=200, help_text="Names the cause; at most one open item has it.")
    occurrence = models.CharField(
        max_length=100, blank=True, help_text="The event that was counted last, so that a repeated report counts once."
    )
    count = models.PositiveIntegerField(default=1)
    experiment = models.ForeignKey(Experiment, models.CASCADE, null=True, blank=True, related_name="inbox_items")
    run = models.ForeignKey(Run, models.CASCADE, null=True, blank=True, related_name="inbox_items")
    node = models.ForeignKey(Node, models.CASCADE, null=True, blank=True, related_name="inbox_items")
    path = models.CharField(max_length=300, blank=True, help_text="Address of its page on this server.")
    data: "models.JSONField[dict[str, Any]]" = models.JSONField(
        default=dict, blank=True, help_text="Numbers of the headline and of the picture of its evidence."
    )
    first_at = models.DateTimeField(default=timezone.now)
    last_at = models.DateTimeField(default=timezone.now)
    done_at = models.DateTimeField(null=True, blank=True)
    done_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="Empty: its cause was gone.",
    )
    done_reason = models.CharField(max_length=200, blank=True)

    objects = InboxItemManager()

    class Meta:
        ordering = ["-last_at", "-pk"]
        constraints = [
            models.UniqueConstraint(fields=["key"], condition=Q(done_at=None), name="inbox_item_open_once"),
        ]
        indexes = [
            models.Index(fields=["-last_at", "-id"], condition=Q(done_at=None), name="inbox_open"),
            models.Index(F("done_at").desc(), condition=Q(done_at__isnull=False), name="inbox_done"),
            models.Index(fields=["key", "-id"], name="inbox_key"),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()}: {self.key}"

    def get_absolute_url(self) -> str:
        return reverse("inbox-item", args=[self.pk])

    @property
    def is_open(self) -> bool:
        return self.done_at is None


class InboxReading(models.Model):
    """When a person opened an item, and until when they have put it off."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", db_index=False)
    item = models.ForeignKey(InboxItem, models.CASCADE, related_name="readings")
    read_at = models.DateTimeField(null=True, blank=True)
    snoozed_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "item"], name="inbox_reading_once")]

    def __str__(self) -> str:
        return f"{self.item} read by {self.user}"


class InboxMute(models.Model):
    """A kind of items that a person does not want to see."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", db_index=False)
    kind = models.CharField(max_length=16, choices=Event.Kind)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "kind"], name="inbox_mute_once")]

    def __str__(self) -> str:
        return f"{self.kind} muted by {self.user}"
