"""Database rows as JSON; numbers are in SI units, times in UTC."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from parlab.ingest.files.received import Refused
from parlab.ingest.files.requested_format import formats, wanted_format
from parlab.lab.models import AuditEntry, Experiment, Finding, Run
from parlab.publishing.figures.chains import Chain, ChainAttempt, chain_of


class ImportRequest(serializers.Serializer[Any]):
    """One file to import."""

    file = serializers.FileField(help_text="A log, a document, a configuration, or an archive of them.")
    experiment = serializers.SlugField(
        required=False,
        allow_blank=True,
        help_text="Slug of the experiment to import into; by default a new experiment is created.",
    )
    format = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=80,
        help_text="Format of the file; recognised from its content by default. One of "
        f"{', '.join(formats())}, or `learnt:NAME` for a log format of the team.",
    )
    dry_run = serializers.BooleanField(default=False, help_text="Return a preview without storing anything.")

    def validate_format(self, value: str) -> str:
        """Refuse an unknown format."""
        try:
            wanted_format(value or None)
        except Refused as problem:
            raise serializers.ValidationError(str(problem)) from problem
        return value


class ErrorItem(serializers.Serializer[Any]):
    field = serializers.CharField(allow_null=True)
    value = serializers.CharField(allow_null=True)
    message = serializers.CharField()
    remedy = serializers.CharField()


class Errors(serializers.Serializer[Any]):
    """The errors of a request."""

    errors = ErrorItem(many=True)  # type: ignore[assignment]  # the field has the name of a property


class ExperimentItem(serializers.ModelSerializer[Experiment]):
    """One experiment of the list."""

    owner = serializers.CharField(source="owner.username")
    runs = serializers.IntegerField(source="run_count", help_text="Number of runs.")
    findings_open = serializers.IntegerField(help_text="Open findings.")
    url = serializers.CharField(source="get_absolute_url", help_text="Address of its page.")

    class Meta:
        model = Experiment
        fields = ["slug", "name", "question", "owner", "runs", "findings_open", "created_at", "updated_at", "url"]


class SourceItem(serializers.Serializer[Any]):
    """One imported file of an experiment."""

    id = serializers.IntegerField(source="pk")
    name = serializers.CharField()
    format = serializers.CharField()
    size = serializers.IntegerField(help_text="Bytes.")
    sha256 = serializers.CharField()
    created_at = serializers.DateTimeField()


class ExperimentDetail(ExperimentItem):
    """One experiment."""

    states = serializers.DictField(child=serializers.IntegerField(), help_text="State -> number of runs.")
    sources = SourceItem(many=True)

    class Meta(ExperimentItem.Meta):
        fields = [*ExperimentItem.Meta.fields, "notes", "source", "states", "sources"]


class RunItem(serializers.ModelSerializer[Run]):
    """One run of the list."""

    config_version = serializers.IntegerField(source="config.version")
    findings_open = serializers.IntegerField(help_text="Open findings of this run.")
    mfu = serializers.SerializerMethodField(help_text="Model FLOPs utilisation, 0 to 1; the summary contains the peak.")
    gpu_utilization = serializers.SerializerMethodField(
        help_text="Mean over all GPUs and the timed steps, in per cent."
    )
    url = serializers.CharField(source="get_absolute_url", help_text="Address of its page.")
    last_step = serializers.IntegerField(allow_null=True, help_text="Highest step so far of the current attempt.")
    planned_steps = serializers.IntegerField(allow_null=True, help_text="Steps of the whole run, where they are known.")
    kinds = serializers.SerializerMethodField(
        help_text="Figure of a file -> how it came about: printed, derived, average, smoothed or part of the step."
    )
    is_emulated = serializers.SerializerMethodField(
        help_text="Whether its stages waited for given times instead of computing."
    )

    class Meta:
        model = Run
        fields = [
            "number", "label", "origin", "is_emulated", "state", "reason", "point", "config_version", "attempt_number",
            "last_step", "planned_steps",
            "step_time_s", "samples_per_s", "tokens_per_s", "memory_max_bytes", "mfu", "gpu_utilization", "kinds",
            "findings_open", "source", "first_line", "last_line", "queued_at", "started_at", "ended_at", "url",
        ]  # fmt: skip

    @extend_schema_field(serializers.BooleanField())
    def get_is_emulated(self, run: Run) -> bool:
        return bool(getattr(run, "stored_compute", None) == "emulated")

    @extend_schema_field(serializers.DictField(child=serializers.CharField()))
    def get_kinds(self, run: Run) -> dict[str, str]:
        return run.kinds | dict(getattr(run, "stored_kinds", None) or {})

    @extend_schema_field(serializers.FloatField(allow_null=True))
    def get_mfu(self, run: Run) -> float | None:
        return _number_or_none(getattr(run, "stored_mfu", None))

    @extend_schema_field(serializers.FloatField(allow_null=True))
    def get_gpu_utilization(self, run: Run) -> float | None:
        return _number_or_none(getattr(run, "stored_utilization", None))


def _number_or_none(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


class AttemptItem(serializers.Serializer[ChainAttempt]):
    """One attempt of a chain."""

    number = serializers.IntegerField()
    state = serializers.CharField()
    reason = serializers.CharField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    waited_s = serializers.FloatField(allow_null=True, help_text="Gap before it: queue, preparation, start.")
    first_step = serializers.IntegerField(allow_null=True)
    last_step = serializers.IntegerField(allow_null=True)
    nodes = serializers.CharField()


class ChainItem(serializers.Serializer[Chain]):
    """The attempts of a chain as one training."""

    attempts = AttemptItem(many=True)
    steps = serializers.IntegerField(help_text="Steps that were made, each counted once.")
    repeated = serializers.IntegerField(help_text="Steps that were made again, each further time.")
    once_pct = serializers.FloatField(allow_null=True, help_text="Share of the steps that were computed once.")
    waited_s = serializers.FloatField(help_text="All gaps after the first start.")
    longest_gap_s = serializers.FloatField()


class RunDetail(RunItem):
    """One run with summary, configuration and launch arguments."""

    chain = serializers.SerializerMethodField(help_text="Attempts, if the run is a chain; else null.")

    class Meta(RunItem.Meta):
        fields = [*RunItem.Meta.fields, "summary", "resolved", "launch", "chain"]

    @extend_schema_field(ChainItem(allow_null=True))
    def get_chain(self, run: Run) -> Any:
        chain = chain_of(run)
        return None if chain is None else ChainItem(chain).data


class FindingItem(serializers.ModelSerializer[Finding]):
    """Two numbers that cannot both be true."""

    experiment = serializers.CharField(source="experiment.slug")
    run = serializers.SerializerMethodField(
        help_text="Number of the run; null for findings about a file or an experiment."
    )
    acknowledged_by = serializers.SerializerMethodField()

    class Meta:
        model = Finding
        fields = [
            "id", "experiment", "run", "source", "rule", "severity", "message", "numbers", "where", "lines",
            "created_at", "acknowledged_by", "acknowledged_at", "acknowledged_reason",
        ]  # fmt: skip

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_run(self, finding: Finding) -> int | None:
        return finding.run.number if finding.run else None

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_acknowledged_by(self, finding: Finding) -> str | None:
        return finding.acknowledged_by.get_username() if finding.acknowledged_by else None


class AuditItem(serializers.ModelSerializer[AuditEntry]):
    """A request that has changed something."""

    user = serializers.CharField(source="username")

    class Meta:
        model = AuditEntry
        fields = ["id", "at", "user", "action", "route", "method", "path", "status", "token", "address"]
