from datetime import timedelta

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from parlab.lab.models import Event, Experiment
from parlab.lab.models.access.viewer import Visible, VisibleManager, VisibleQuerySet


class Subscription(models.Model):
    """Whom to notify of which events: a webhook or the mail address of a user."""

    PROJECT = "experiment__project"

    class Channel(models.TextChoices):
        WEBHOOK = "webhook", "Webhook"
        MAIL = "mail", "Mail"

    class Style(models.TextChoices):
        PARLAB = "parlab", "Webhook"
        SLACK = "slack", "Slack"
        TEAMS = "teams", "Microsoft Teams"

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="subscriptions")
    experiment = models.ForeignKey(
        Experiment,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="subscriptions",
        help_text="Empty: all experiments, and the nodes.",
    )
    channel = models.CharField(max_length=8, choices=Channel)
    style = models.CharField(
        max_length=8, choices=Style, default=Style.PARLAB, help_text="Whose message a webhook posts."
    )
    quiet_from = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="Hour from which nothing is sent, in the time zone of the server."
    )
    quiet_until = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="Hour at which what waited is sent."
    )
    digest_at = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="Hour of one mail a day with everything; empty: as it happens."
    )
    url = models.CharField(max_length=2_000, blank=True, help_text="Address that a webhook posts to.")
    secret = models.CharField(max_length=64, blank=True, editable=False, help_text="Key of the signature of a webhook.")
    topics: "models.JSONField[list[str]]" = models.JSONField(default=list, help_text="Keys of notify.topics.TOPICS.")
    is_enabled = models.BooleanField(default=True)
    base_url = models.CharField(
        max_length=300, blank=True, help_text="Address of this server as the user reaches it; links start with it."
    )
    created_at = models.DateTimeField(default=timezone.now)

    objects = Visible()

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        target = self.url if self.channel == self.Channel.WEBHOOK else f"mail to {self.user}"
        return f"{target} about {self.experiment or 'all experiments'}"

    @property
    def is_webhook(self) -> bool:
        return self.channel == self.Channel.WEBHOOK

    @property
    def times_text(self) -> str:
        """When it sends, in words."""
        digest = f"one mail a day at {self.digest_at}:00" if self.digest_at is not None else "as it happens"
        if self.quiet_from is None or self.quiet_until is None:
            return digest
        return f"{digest}, quiet from {self.quiet_from}:00 to {self.quiet_until}:00"


class DeliveryQuerySet(VisibleQuerySet["Delivery"]):
    def due(self) -> "DeliveryQuerySet":
        """Deliveries to try now, also those whose last try was interrupted."""
        return self.filter(state__in=Delivery.OPEN, next_try_at__lte=timezone.now())

    def open(self) -> "DeliveryQuerySet":
        return self.filter(state__in=Delivery.OPEN)


DeliveryManager = VisibleManager.from_queryset(DeliveryQuerySet)


class Delivery(models.Model):
    """One event for one subscription, with its last answer."""

    PROJECT = "event__experiment__project"

    class State(models.TextChoices):
        WAITING = "waiting", "waiting"
        SENDING = "sending", "sending"
        DELIVERED = "delivered", "delivered"
        FAILED = "failed", "failed"

    OPEN = (State.WAITING, State.SENDING)

    subscription = models.ForeignKey(Subscription, models.CASCADE, related_name="deliveries")
    event = models.ForeignKey(Event, models.CASCADE, related_name="deliveries")
    state = models.CharField(max_length=10, choices=State, default=State.WAITING)
    tries = models.PositiveSmallIntegerField(default=0)
    next_try_at = models.DateTimeField(
        null=True, blank=True, help_text="While it is being sent: when another worker may take over."
    )
    last_try_at = models.DateTimeField(null=True, blank=True)
    status = models.PositiveSmallIntegerField(null=True, blank=True, help_text="HTTP status of the last answer.")
    answer = models.CharField(max_length=300, blank=True, help_text="Beginning of the last answer, or the problem.")
    took_ms = models.PositiveIntegerField(null=True, blank=True)
    mail = models.CharField(max_length=32, blank=True, help_text="The mail that it is part of.")
    created_at = models.DateTimeField(default=timezone.now)

    objects = DeliveryManager()

    class Meta:
        ordering = ["-pk"]
        verbose_name_plural = "deliveries"
        constraints = [models.UniqueConstraint(fields=["subscription", "event"], name="delivery_once")]
        indexes = [
            models.Index(fields=["next_try_at"], name="delivery_due", condition=Q(state__in=["waiting", "sending"]))
        ]

    def __str__(self) -> str:
        return f"{self.event} to {self.subscription}"

    @property
    def is_open(self) -> bool:
        return self.state in self.OPEN

    @property
    def has_long_waited(self) -> bool:
        """Whether no worker took a delivery that is due: no worker may be running."""
        return self.next_try_at is not None and timezone.now() - self.next_try_at > timedelta(seconds=30)
