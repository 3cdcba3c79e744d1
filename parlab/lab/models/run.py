import re
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Value
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Coalesce, NullIf
from django.urls import reverse
from django.utils import timezone

from parlab.lab.forms.config_layout import shown_label
from parlab.lab.models.access.viewer import VisibleManager, VisibleQuerySet
from runners.config import engine_of, filled_fields
from runners.config.devices import AUTO, CPU, DEVICES
from runners.wire.protocol import ACTIVE_STATES, FINAL_STATES, RunState

from .config import Config
from .experiment import Experiment
from .node import Node
from .source import Source


def _number_at(path: str) -> NullIf:
    """Return a number of a JSON column as a float: products of sizes would overflow integers."""
    # SQLite reads a JSON null as 0, which is not a valid size or time.
    return NullIf(Cast(KT(path), models.FloatField()), Value(0.0))


def _text_fact(path: str) -> "models.GeneratedField":
    return models.GeneratedField(expression=KT(path), output_field=models.TextField(null=True), db_persist=True)


def _number_fact(path: str) -> "models.GeneratedField":
    return models.GeneratedField(
        expression=_number_at(path), output_field=models.FloatField(null=True), db_persist=True
    )


STATE_CHOICES = [(state.value, state.value) for state in RunState]


FACTS = (
    "state", "origin", "engine", "schedule", "precision", "gpus", "tensor_parallel_size", "pipeline_parallel_size",
    "data_parallel_size", "micro_batch_size", "global_batch_size", "samples_per_s", "tokens_per_s", "step_time_s",
    "ms_per_sample", "memory_max_bytes", "mfu", "queued_at", "started_at", "ended_at",
)  # fmt: skip
"""Columns by which lists of runs are filtered and sorted."""

MAIN_NUMBERS = ("step_time_s", "samples_per_s", "tokens_per_s", "memory_max_bytes")
"""Headline numbers with columns of their own."""


class RunQuerySet(VisibleQuerySet["Run"]):
    def active(self) -> "RunQuerySet":
        return self.filter(state__in=ACTIVE_STATES)

    def final(self) -> "RunQuerySet":
        return self.filter(state__in=FINAL_STATES)


RunManager = VisibleManager.from_queryset(RunQuerySet)


class ShownRuns(RunManager["Run"]):
    """Runs without those that a script has deleted: pages, lists, figures and findings never see them."""

    def get_queryset(self) -> RunQuerySet:
        shown: RunQuerySet = super().get_queryset().filter(hidden_at=None)
        return shown


class Run(models.Model):
    """One point of a sweep, with a chain of attempts of which the last one is current.

    `state`, `reason`, `summary` and the headline numbers are those of the current attempt. They are
    changed only by conditional updates in `lab.services`.
    """

    PROJECT = "experiment__project"

    UNFINISHED = "unfinished"
    """Shown in place of `finished` where a log does not state how the training ended."""
    SILENT = "silent"
    """Shown in place of `running` where a script has reported nothing for a minute; its reason begins with it."""

    class LossMark(models.TextChoices):
        """What a rule says about the loss (`ingest.summaries.loss`)."""

        NAN = "nan", "loss is NaN"
        DIVERGED = "diverged", "loss diverged"

    class Origin(models.TextChoices):
        MEASURED = "measured", "measured by parlab"
        PUBLISHED = "published", "published figures, entered as data"
        IMPORTED = "imported", "imported from a file"
        REPORTED = "reported", "reported by a script"

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="runs")
    # Not PROTECT: deleting an experiment deletes its configs and runs; a used config cannot be deleted alone.
    config = models.ForeignKey(Config, models.RESTRICT, related_name="runs")
    number = models.PositiveIntegerField(help_text="Number within the experiment.")
    label = models.CharField(max_length=300, blank=True)
    origin = models.CharField(max_length=12, choices=Origin, default=Origin.MEASURED)
    point = models.JSONField(default=dict, help_text="Axis values of this point.")
    point_digest = models.CharField(max_length=64)
    repeat = models.PositiveSmallIntegerField(
        default=1, help_text="Number among the runs of its point, which differ only in their seed."
    )
    resolved = models.JSONField(
        help_text="The complete RunConfig with defaults; of an imported run only what its source states."
    )
    source = models.ForeignKey(Source, models.CASCADE, null=True, blank=True, related_name="runs")
    place: "models.JSONField[dict[str, int]]" = models.JSONField(
        default=dict, blank=True, help_text="The part of its source: a segment, or a table with row and column."
    )
    first_line = models.BigIntegerField(null=True, blank=True, help_text="First line of the run in its source.")
    last_line = models.BigIntegerField(null=True, blank=True)
    launch: "models.JSONField[dict[str, Any]]" = models.JSONField(
        default=dict,
        blank=True,
        help_text="Launch of an imported run: a formats.schema.Launch with all its arguments as printed.",
    )
    state = models.CharField(max_length=12, choices=STATE_CHOICES, default=RunState.QUEUED)
    attempt_number = models.PositiveSmallIntegerField(default=1)
    approval = models.ForeignKey(
        "lab.LaunchApproval",
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="runs",
        help_text="Beyond the budget of its project: it waits for a maintainer, or was approved.",
    )
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    chain_ended_at = models.DateTimeField(
        null=True, blank=True, help_text="When a person ended its chain: the current attempt is the last one."
    )
    chain_from = models.PositiveSmallIntegerField(
        default=1, help_text="First attempt of its chain: that of the launch, or of the last relaunch."
    )
    reason = models.TextField(blank=True)
    summary = models.JSONField(default=dict, blank=True)
    step_time_s = models.FloatField(null=True, blank=True)
    samples_per_s = models.FloatField(null=True, blank=True)
    tokens_per_s = models.FloatField(null=True, blank=True)
    memory_max_bytes = models.FloatField(null=True, blank=True)
    has_end = models.BooleanField(
        default=True, help_text="False if an imported log does not state how the training ended."
    )
    loss_mark = models.CharField(max_length=10, choices=LossMark, blank=True)
    # Generated columns for filtering and sorting (`selectors.filters`): the database keeps them up to date.
    engine = _text_fact("resolved__parallel__engine")
    schedule = _text_fact("resolved__parallel__schedule")
    precision = _text_fact("resolved__train__precision")
    tensor_parallel_size = _number_fact("resolved__parallel__tensor_parallel_size")
    pipeline_parallel_size = _number_fact("resolved__parallel__pipeline_parallel_size")
    data_parallel_size = _number_fact("resolved__parallel__data_parallel_size")
    micro_batch_size = _number_fact("resolved__train__micro_batch_size")
    global_batch_size = _number_fact("resolved__train__global_batch_size")
    ms_per_sample = _number_fact("summary__ms_per_sample")
    mfu = models.GeneratedField(
        expression=Coalesce(_number_at("summary__mfu"), _number_at("summary__mfu_pct") / Value(100.0)),
        output_field=models.FloatField(null=True),
        db_persist=True,
    )
    """Share of the peak FLOP/s, as computed by parlab, else as stated by the imported file."""
    gpus = models.GeneratedField(
        expression=Coalesce(
            _number_at("launch__world_size"),
            _number_at("resolved__cluster__gpus_per_node")
            * Coalesce(_number_at("resolved__cluster__nodes"), Value(1.0)),
            _number_at("resolved__parallel__tensor_parallel_size")
            * _number_at("resolved__parallel__pipeline_parallel_size")
            * _number_at("resolved__parallel__data_parallel_size"),
        ),
        output_field=models.FloatField(null=True),
        db_persist=True,
    )
    """Number of GPUs, or of processes if the run used no GPUs; NULL if a file states neither it nor a whole layout."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    queued_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        db_index=False,
        help_text="Who relaunched it last, whose budget it counts in; empty: who launched it.",
    )
    queued_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    numbers_at = models.DateTimeField(
        default=timezone.now, editable=False, db_index=True, help_text="When its summary was last stored."
    )

    hidden_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When a script deleted its reported run; restoring clears it."
    )

    objects = ShownRuns()
    everything = RunManager()

    class Meta:
        ordering = ["experiment", "number"]
        constraints = [
            models.UniqueConstraint(fields=["experiment", "number"], name="run_number_once"),
            models.UniqueConstraint(fields=["config", "point_digest"], name="run_point_once"),
        ]
        indexes = [
            # Covers what Home, the planner and notifications select ended runs by.
            models.Index(fields=["state", "ended_at", "experiment", "hidden_at", "origin"], name="run_ends"),
            models.Index(fields=["-ended_at", "-id"], condition=models.Q(hidden_at=None), name="run_newest_end"),
            models.Index(fields=["experiment"], condition=models.Q(repeat__gt=1), name="run_repeats"),
            # Covers all columns that lists filter, sort and count by: rows are long because of their JSON.
            models.Index(fields=["experiment", *FACTS, "hidden_at"], name="run_facts"),
        ]

    def __str__(self) -> str:
        return f"{self.experiment} #{self.number}"

    def get_absolute_url(self) -> str:
        return reverse("run", args=[self.experiment.slug, self.number])

    @property
    def shown_label(self) -> str:
        """The label with the names of fields as pages show them."""
        return shown_label(self.label)

    @property
    def shown_state(self) -> str:
        """The state as pages show it: an imported log that does not state an end is not called finished."""
        if (
            self.state == RunState.RUNNING
            and self.origin == self.Origin.REPORTED
            and self.reason.startswith(self.SILENT)
        ):
            return self.SILENT
        return self.shown_state_of(self.state, has_end=self.has_end)

    @classmethod
    def shown_state_of(cls, state: str, *, has_end: bool) -> str:
        return cls.UNFINISHED if state == RunState.FINISHED and not has_end else state

    @property
    def has_printed_numbers(self) -> bool:
        """Whether a file states the numbers, which are then shown with its digits."""
        return self.origin in (self.Origin.IMPORTED, self.Origin.PUBLISHED)

    def prints(self, figure: str) -> bool:
        """Return whether to show a number of the summary with its digits: a file states it, and it is no quotient."""
        return self.has_printed_numbers and not (figure.endswith("_per_s") and self.kind_of(figure) == "derived")

    def kind_of(self, figure: str) -> str:
        """Return how a number of the summary came about where it is not printed: derived, average, smoothed or part."""
        # Lists leave the summary out, and select this part of it.
        kinds = self.__dict__["stored_kinds"] if "stored_kinds" in self.__dict__ else self.summary.get("kinds")
        return str((kinds or {}).get(figure, ""))

    def series_kind(self, *metrics: str) -> str:
        """Return how the values of a series came about that a file states; empty for what parlab has measured.

        Of several names a run has one, and only series that are not printed have a kind of their own.
        """
        if not self.has_printed_numbers:
            return ""
        kinds = self.summary.get("series_kinds") or {}
        return next((str(kinds[metric]) for metric in metrics if metric in kinds), "printed")

    @property
    def kinds(self) -> dict[str, str]:
        """How each main number of a file came about: printed, derived, average, smoothed or part."""
        if not self.has_printed_numbers:
            return {}
        shown = (name for name in MAIN_NUMBERS if getattr(self, name) is not None)
        return {name: self.kind_of(name) or "printed" for name in shown}

    @property
    def run_state(self) -> RunState:
        return RunState(self.state)

    @property
    def is_final(self) -> bool:
        return self.run_state.is_final

    @property
    def is_chain(self) -> bool:
        """Whether its attempts go on from each other's checkpoints and are shown as one training."""
        return bool((self.resolved.get("launcher") or {}).get("chain"))

    @property
    def unit_name(self) -> str:
        """What `unit_time_s` is the time of."""
        return "step" if self.step_time_s else str((self.summary.get("unit") or {}).get("name") or "step")

    @property
    def unit_time_s(self) -> float | None:
        """Step time; of an engine without steps the time that it is judged by, such as that of a whole search (s)."""
        value = self.step_time_s or (self.summary.get("unit") or {}).get("time_s")
        return float(value) if isinstance(value, int | float) and value > 0 else None

    @property
    def iterations(self) -> int:
        """Planned steps; 0 if neither the source of an imported run nor the output of a command states them."""
        if engine_of(self.resolved).is_external and self.origin == self.Origin.MEASURED:
            filled = filled_fields(self.resolved)["train"].get("iterations")
            return int(filled or (self.summary.get("steps") or {}).get("total") or 0)
        return int(self.resolved.get("train", {}).get("iterations") or 0)

    @property
    def is_emulated(self) -> bool:
        """Whether stages waited for configured times instead of computing; such results do not measure the hardware."""
        return bool(self.resolved.get("train", {}).get("compute") == "emulated")

    @property
    def is_on_cpu(self) -> bool:
        """Whether `gpus` counts processes on processors, which are not called GPUs."""
        if self.origin != self.Origin.MEASURED or self.summary.get("gpu_utilization"):
            return False
        chosen = DEVICES.get(str(self.resolved.get("cluster", {}).get("device")), AUTO)
        if chosen is not AUTO:
            return not chosen.may_use_gpus
        # A run that chose its device itself and reports no GPU used none.
        reported = str((self.summary.get("peak") or {}).get("device") or CPU.name)
        return re.search(CPU.name, reported, re.IGNORECASE) is not None

    @property
    def marks(self) -> tuple[str, ...]:
        """What to know of all numbers of the run: `emulated`, or `learnt` if a learnt format read them."""
        return tuple(["emulated"] * self.is_emulated + ["learnt"] * ("learnt" in self.summary))

    def current_attempt(self) -> "Attempt":
        return self.attempts.get(number=self.attempt_number)


class AttemptQuerySet(models.QuerySet["Attempt"]):
    def with_members(self) -> "AttemptQuerySet":
        """Fetch the members with their nodes in one more query."""
        return self.prefetch_related("members__node")


class Attempt(models.Model):
    """One execution of a run on one or several nodes; its state follows from those of its members."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="attempts")
    number = models.PositiveSmallIntegerField()
    state = models.CharField(max_length=12, choices=STATE_CHOICES, default=RunState.QUEUED)
    last_step = models.IntegerField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True, help_text="Of the first cause of its end.")
    reason = models.TextField(blank=True)
    traceback = models.TextField(blank=True)
    command: "models.JSONField[list[str]]" = models.JSONField(default=list, blank=True)
    environment: "models.JSONField[dict[str, Any]]" = models.JSONField(default=dict, blank=True)
    summary: "models.JSONField[dict[str, Any]]" = models.JSONField(default=dict, blank=True)
    numbers_at = models.DateTimeField(
        default=timezone.now, editable=False, db_index=True, help_text="When its summary was last stored."
    )

    objects = AttemptQuerySet.as_manager()

    class Meta:
        ordering = ["run", "number"]
        constraints = [models.UniqueConstraint(fields=["run", "number"], name="attempt_number_once")]

    def __str__(self) -> str:
        return f"{self.run} attempt {self.number}"

    @property
    def node(self) -> Node | None:
        """The node with rank 0; None before the attempt is dispatched."""
        return next((member.node for member in self.members.all()), None)

    @property
    def nodes(self) -> list[Node]:
        return [member.node for member in self.members.all() if member.node is not None]

    @property
    def node_names(self) -> str:
        """The first machines by rank, each once, and the number of the others."""
        names = list(dict.fromkeys(member.place_name for member in self.members.all() if member.node is not None))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return ", ".join(names[:3]) + more

    @property
    def committed(self) -> int:
        """Bytes of all spools that are stored."""
        return sum(member.committed for member in self.members.all())
