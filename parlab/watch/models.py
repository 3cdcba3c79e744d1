from __future__ import annotations

import secrets
from typing import Any

from django.conf import settings
from django.db import models
from django.urls import reverse
from django.utils import timezone

from parlab.lab.models import Config, Node, Run
from parlab.lab.models.access.viewer import Visible, VisibleManager, VisibleQuerySet, home_project_id
from parlab.watch.analysis.measures import LINK_RATES, measure_of


def feed_key() -> str:
    return secrets.token_urlsafe(24)


class WatchQuerySet(VisibleQuerySet["Watch"]):
    def enabled(self) -> WatchQuerySet:
        return self.filter(is_enabled=True)


WatchManager = VisibleManager.from_queryset(WatchQuerySet)


class Watch(models.Model):
    """Results of the same configuration or key over time; it may run the configuration again by itself."""

    PROJECT = "project"

    class Schedule(models.TextChoices):
        """See `schedules.PERIODS`."""

        HOURLY = "hourly", "hourly"
        DAILY = "daily", "daily"
        WEEKDAYS = "weekdays", "Monday to Friday"
        WEEKLY = "weekly", "weekly"
        FOUR_WEEKLY = "4-weekly", "every four weeks"

    project = models.ForeignKey(
        "lab.Project", models.PROTECT, default=home_project_id, related_name="watches", editable=False
    )
    name = models.CharField(max_length=120)
    key = models.CharField(max_length=200, help_text="Results of other runs with this key belong to the watch as well.")
    config = models.ForeignKey(
        Config,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="watches",
        help_text="Configuration or sweep that is run again; empty: the watch only collects results.",
    )
    node = models.ForeignKey(
        Node,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="health_watches",
        help_text="The node whose health sweeps it follows; empty: it follows a configuration.",
    )
    peer = models.ForeignKey(
        Node,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text="The node at the other end of a link between nodes.",
    )
    schedule = models.CharField(max_length=16, blank=True, choices=Schedule, help_text="Empty: no time of its own.")
    next_at = models.DateTimeField(null=True, blank=True, help_text="The next time of the schedule.")
    repository = models.CharField(max_length=500, blank=True, help_text="Path or address of a git repository.")
    branch = models.CharField(max_length=200, blank=True)
    on_node_change = models.BooleanField(default=False, help_text="Run again when the software of a node changes.")
    software: models.JSONField[dict[str, Any]] = models.JSONField(
        default=dict, blank=True, help_text="The software of each node when it was last compared."
    )
    repeats = models.PositiveSmallIntegerField(default=1, help_text="Runs of each point per occasion.")
    max_extra = models.PositiveSmallIntegerField(
        default=6, help_text="Further runs that it may order by itself while a change is not certain."
    )
    is_enabled = models.BooleanField(default=True)
    is_muted = models.BooleanField(
        default=False, help_text="Its changes are listed, but neither announced nor put into the inbox."
    )
    problem = models.TextField(blank=True, help_text="Why its last occasion could not be used.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    checked_at = models.DateTimeField(
        null=True, blank=True, help_text="When it last looked for results; empty: the next look reads all runs."
    )

    objects = WatchManager()

    class Meta:
        ordering = ["name"]
        verbose_name_plural = "watches"
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="watch_name_once"),
            models.UniqueConstraint(fields=["project", "key"], name="watch_key_once"),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("watch", args=[self.pk])

    def title_of(self, measure: str) -> str:
        """Return the title of a measure; a rate between two nodes names them instead of its ranks."""
        title = measure_of(measure).title
        if self.node is None or self.peer is None or not measure.startswith(LINK_RATES):
            return title
        return f"{title.partition(' of ')[0]} between {self.node} and {self.peer}"

    @property
    def starts_runs(self) -> bool:
        """Whether it runs its configuration by itself; otherwise it only collects results."""
        return self.config_id is not None and bool(self.schedule or self.repository or self.on_node_change)


class Commit(models.Model):
    """A commit of the watched branch, in the order of its first parents."""

    watch = models.ForeignKey(Watch, models.CASCADE, related_name="commits")
    sha = models.CharField(max_length=64)
    position = models.PositiveIntegerField()
    subject = models.CharField(max_length=300)
    author = models.CharField(max_length=200, blank=True)
    at = models.DateTimeField()

    class Meta:
        ordering = ["watch", "position"]
        constraints = [
            models.UniqueConstraint(fields=["watch", "sha"], name="commit_once"),
            models.UniqueConstraint(fields=["watch", "position"], name="commit_position_once"),
        ]

    def __str__(self) -> str:
        return f"{self.sha[:10]} {self.subject}"


class Result(models.Model):
    """The numbers of one ended run, or of one line of an imported history, with their environment."""

    watch = models.ForeignKey(Watch, models.CASCADE, related_name="results")
    run = models.ForeignKey(Run, models.CASCADE, null=True, blank=True, related_name="watch_results")
    attempt_number = models.PositiveSmallIntegerField(null=True, blank=True)
    line = models.CharField(max_length=200, blank=True, help_text="Identity within an imported history.")
    series = models.CharField(max_length=300, blank=True, help_text="The point of a sweep; empty without a sweep.")
    at = models.DateTimeField()
    position = models.PositiveIntegerField(default=0, help_text="Of its commit; 0 without a repository.")
    commit = models.CharField(max_length=64, blank=True)
    node = models.CharField(max_length=200, blank=True)
    hardware = models.CharField(
        max_length=16, blank=True, help_text="Digest of the processor and GPUs: a node may be replaced under its name."
    )
    environment: models.JSONField[dict[str, Any]] = models.JSONField(default=dict, blank=True)
    values: models.JSONField[dict[str, float]] = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["position", "at", "pk"]
        constraints = [
            models.UniqueConstraint(fields=["watch", "run", "attempt_number"], name="watch_result_once"),
            models.UniqueConstraint(fields=["watch", "line"], name="watch_line_once", condition=~models.Q(line="")),
        ]
        indexes = [models.Index(fields=["watch", "series", "position", "at"], name="watch_results_in_order")]

    def __str__(self) -> str:
        return f"{self.watch} at {self.at:%Y-%m-%d %H:%M}"


class Series(models.Model):
    """The state of the detection in one measure of one point."""

    PROJECT = "watch__project"

    watch = models.ForeignKey(Watch, models.CASCADE, related_name="series")
    point = models.CharField(max_length=300, blank=True)
    measure = models.CharField(max_length=200)
    digest = models.CharField(max_length=64, blank=True, help_text="Of the results that the state contains.")
    count = models.PositiveIntegerField(default=0)
    state: models.JSONField[dict[str, Any]] = models.JSONField(default=dict, blank=True)
    changes: models.JSONField[list[dict[str, Any]]] = models.JSONField(default=list, blank=True)
    suspicion: models.JSONField[dict[str, Any]] = models.JSONField(default=dict, blank=True)
    notes: models.JSONField[list[str]] = models.JSONField(default=list, blank=True)

    objects = Visible()

    class Meta:
        ordering = ["watch", "point", "measure"]
        verbose_name_plural = "series"
        constraints = [models.UniqueConstraint(fields=["watch", "point", "measure"], name="watch_series_once")]

    def __str__(self) -> str:
        return f"{self.measure} of {self.watch}"


class AlertQuerySet(VisibleQuerySet["Alert"]):
    def open(self) -> AlertQuerySet:
        return self.filter(state__in=Alert.OPEN)


AlertManager = VisibleManager.from_queryset(AlertQuerySet)


class Alert(models.Model):
    """A change with one cause: all measures and points that changed between the same two results."""

    PROJECT = "watch__project"

    class State(models.TextChoices):
        NEW = "new", "new"
        ACKNOWLEDGED = "acknowledged", "acknowledged"
        FIXED = "fixed", "fixed"
        EXPECTED = "expected", "expected"
        WRONG = "wrong", "wrong"

    OPEN = (State.NEW, State.ACKNOWLEDGED)

    watch = models.ForeignKey(Watch, models.CASCADE, related_name="alerts")
    first_bad = models.ForeignKey(Result, models.CASCADE, related_name="+")
    last_good = models.ForeignKey(Result, models.CASCADE, related_name="+")
    kind = models.CharField(max_length=8, help_text="step, slope or node.")
    node = models.CharField(max_length=200, blank=True)
    is_worse = models.BooleanField(default=True)
    parts: models.JSONField[list[dict[str, Any]]] = models.JSONField(
        default=list, help_text="Per measure and point: size with interval."
    )
    state = models.CharField(max_length=12, choices=State, default=State.NEW)
    reason = models.TextField(blank=True)
    fixed_by = models.ForeignKey(Result, models.SET_NULL, null=True, blank=True, related_name="+")
    changed_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    changed_at = models.DateTimeField(null=True, blank=True)
    cause = models.CharField(max_length=300, blank=True, help_text="What changed: a commit, software, or a node.")
    leader = models.ForeignKey(
        "self",
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="followers",
        help_text="The first alert with the same cause, of any watch; only that one is announced.",
    )
    created_at = models.DateTimeField(default=timezone.now)

    objects = AlertManager()

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"change in {self.watch}"

    def get_absolute_url(self) -> str:
        return reverse("watch-alert", args=[self.watch_id, self.pk])

    @property
    def is_open(self) -> bool:
        return self.state in self.OPEN

    @property
    def largest(self) -> dict[str, Any]:
        """The part with the largest change; of both directions the worse one counts."""
        return max(self.parts, key=lambda part: (part["is_worse"] == self.is_worse, abs(part["size"])), default={})


class Order(models.Model):
    """Runs that a watch wants: of the configuration, at one commit if it watches a repository."""

    class State(models.TextChoices):
        OPEN = "open", "open"
        DONE = "done", "done"
        FAILED = "failed", "failed"

    watch = models.ForeignKey(Watch, models.CASCADE, related_name="orders")
    commit = models.CharField(max_length=64, blank=True)
    count = models.PositiveSmallIntegerField(default=1, help_text="Runs of each point.")
    reason = models.CharField(max_length=300)
    suspect = models.CharField(max_length=64, blank=True, help_text="The suspicion that it is to settle.")
    targets: models.JSONField[dict[str, int]] = models.JSONField(
        default=dict, blank=True, help_text="Attempts that each run has in the end, by its id."
    )
    state = models.CharField(max_length=8, choices=State, default=State.OPEN)
    problem = models.TextField(blank=True)
    ordered_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="Who ordered them, whose budget they count in; empty: the watch by itself, for who made it.",
    )
    created_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-pk"]
        indexes = [models.Index(fields=["watch", "state"], name="watch_orders")]

    def __str__(self) -> str:
        return f"{self.count} runs of {self.watch}: {self.reason}"


class Bisect(models.Model):
    """A search for the commit of a change, by runs; its steps follow from the results of the commits."""

    class State(models.TextChoices):
        RUNNING = "running", "running"
        PAUSED = "paused", "paused"
        DONE = "done", "done"
        FAILED = "failed", "failed"

    alert = models.ForeignKey(Alert, models.CASCADE, related_name="bisects")
    series = models.CharField(max_length=300, blank=True)
    measure = models.CharField(max_length=200)
    good = models.CharField(max_length=64)
    bad = models.CharField(max_length=64)
    culprit = models.CharField(max_length=64, blank=True)
    state = models.CharField(max_length=8, choices=State, default=State.RUNNING)
    reason = models.TextField(blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"bisection of {self.alert}"
