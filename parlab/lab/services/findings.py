"""Findings in the database: computed by rules, kept up to date, acknowledged by users."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.core.cache import cache
from django.db import transaction
from django.utils import timezone

from parlab.findings import RULES, RunFacts, run_findings, sweep_findings
from parlab.formats import schema
from parlab.lab.models import Attempt, Experiment, Finding, Run, Source
from runners.config import digest, engine_of, filled_fields

from . import events, storable
from .configs import lock_experiment
from .inbox import item_reopen_by_key

SWEEP_EVERY_S = 30.0
"""Minimum interval between comparisons of all runs of an experiment while some are active, in seconds."""
_MAX_MESSAGE = 2_000
_RUN_RULES = [id for id, rule in RULES.items() if rule.runs and not rule.sweeps]


class _Match(NamedTuple):
    """A finding that a rule reported, with its run or source."""

    finding: schema.Finding
    run_id: int | None
    source_id: int | None

    @property
    def where(self) -> dict[str, Any]:
        place: dict[str, Any] = storable.json(self.finding.where.model_dump(exclude_none=True))
        return place

    @property
    def key(self) -> tuple[str, str]:
        """Identity of the finding, regardless of its numbers: the rule, and a digest of owner and place."""
        owner = {"source": self.source_id} if self.source_id else {"run": self.run_id}
        # The number of the run is redundant: the run is the owner.
        place = {name: value for name, value in self.where.items() if name != "run"}
        text = json.dumps({**owner, **place}, sort_keys=True)
        return self.finding.rule, hashlib.sha256(text.encode()).hexdigest()


@transaction.atomic
def findings_refresh(*, experiment: Experiment) -> list[Finding]:
    """Apply all rules to the runs and documents of an experiment, and store exactly their findings.

    Findings that still hold keep their acknowledgement; those that no longer hold are deleted.
    """
    lock_experiment(experiment)
    runs = list(_runs(experiment))
    matches = [*_document_matches(experiment, runs), *_run_matches(runs)]
    return _store(experiment, _without_repeats(matches), experiment.findings.all())


def ended_findings_refresh(*, runs: Sequence[Run]) -> None:
    """Compute the findings of runs that have just ended, and at most every SWEEP_EVERY_S those of their whole sweeps.

    The cost of a sweep of n runs therefore grows with n, not with n squared. The last runs always check the sweep.
    """
    by_experiment: dict[int, list[int]] = {}
    for run in runs:
        by_experiment.setdefault(run.experiment_id, []).append(run.pk)
    for experiment_id, pks in by_experiment.items():
        _ended_refresh(experiment_id, pks)


@transaction.atomic
def _ended_refresh(experiment_id: int, pks: Sequence[int]) -> None:
    experiment = Experiment.objects.filter(pk=experiment_id).first()
    if experiment is None:
        return
    has_active_runs = experiment.runs.active().exclude(pk__in=pks).exists()
    if not has_active_runs or cache.add(f"parlab.findings.{experiment_id}", True, SWEEP_EVERY_S):
        findings_refresh(experiment=experiment)
        return
    lock_experiment(experiment)
    runs = list(experiment.runs.filter(pk__in=pks))
    devices = _devices(runs)
    for run in runs:
        matches = [_Match(finding, run.pk, None) for finding in run_findings(_facts(run, devices.get(run.pk)))]
        # Findings of the comparison with other runs remain until the next comparison.
        existing = run.findings.filter(source=None, rule__in=_RUN_RULES)
        _store(experiment, _without_repeats(matches), existing)


@transaction.atomic
def finding_acknowledge(*, finding: Finding, user: User, reason: str) -> Finding:
    """Acknowledge a finding with a reason; raises ValueError without a reason."""
    reason = storable.text(reason).strip()
    if not reason:
        raise ValueError("reason is empty; explain why the finding is acceptable")
    Finding.objects.filter(pk=finding.pk).update(
        acknowledged_by=user, acknowledged_at=timezone.now(), acknowledged_reason=reason
    )
    events.findings_judged(experiment=finding.experiment, user=user)
    finding.refresh_from_db()
    return finding


@transaction.atomic
def finding_reopen(*, finding: Finding) -> Finding:
    """Withdraw the acknowledgement of a finding."""
    Finding.objects.filter(pk=finding.pk).update(acknowledged_by=None, acknowledged_at=None, acknowledged_reason="")
    item_reopen_by_key(key=events.finding_key(finding.experiment_id, finding.rule))
    events.findings_judged(experiment=finding.experiment)
    finding.refresh_from_db()
    return finding


def _runs(experiment: Experiment) -> Iterable[Run]:
    fields = (
        "experiment_id",
        "config_id",
        "number",
        "state",
        "origin",
        "point",
        "resolved",
        "summary",
        "launch",
        "source_id",
        "place",
    )
    return experiment.runs.final().only(*fields).order_by("number")


def _document_matches(experiment: Experiment, runs: Sequence[Run]) -> Iterator[_Match]:
    """Return the findings reported when imported files were read, each with the run that it concerns."""
    by_place = {(run.source_id or 0, _place_key(run.place)): run.pk for run in runs if run.source_id}
    for source_id, findings in Source.objects.filter(experiment=experiment).values_list("pk", "document__findings"):
        for data in findings or []:
            finding = schema.Finding.model_validate(data)
            yield _Match(finding, _run_at(finding.where, source_id, by_place), source_id)


def _run_at(place: schema.Place, source_id: int, by_place: Mapping[tuple[int, str], int]) -> int | None:
    """Return the run that was created from a place in a document: a launch, a row or a cell of a table."""
    candidates: list[dict[str, int | None]] = [{"segment": place.segment}]
    if place.table is not None and place.row is not None:
        candidates = [
            {"table": place.table, "row": place.row, "column": place.column},
            {"table": place.table, "row": place.row},
        ]
    for candidate in candidates:
        if None not in candidate.values() and (run_id := by_place.get((source_id, _place_key(candidate)))):
            return run_id
    return None


def _place_key(place: Mapping[str, Any]) -> str:
    return json.dumps(place, sort_keys=True)


def _run_matches(runs: Sequence[Run]) -> Iterator[_Match]:
    devices = _devices(runs)
    facts = [_facts(run, devices.get(run.pk)) for run in runs]
    ids = {run.number: run.pk for run in runs}
    for run, run_facts in zip(runs, facts, strict=True):
        for finding in run_findings(run_facts):
            yield _Match(finding, run.pk, None)
    for finding in sweep_findings(_pooled(runs, facts)):
        yield _Match(finding, ids.get(finding.where.run or 0), None)


def _pooled(runs: Sequence[Run], facts: Sequence[RunFacts]) -> list[RunFacts]:
    """Replace finished repeats by one run with their mean throughput, as the rules of sweeps compare points."""
    groups: dict[Any, list[RunFacts]] = {}
    for run, run_facts in zip(runs, facts, strict=True):
        is_repeat = run.origin == Run.Origin.MEASURED and run_facts.summary.get("samples_per_s")
        key = (run.config_id, digest(run.point), run_facts.state) if is_repeat else run.pk
        groups.setdefault(key, []).append(run_facts)
    points = []
    for members in groups.values():
        values = [member.summary.get("samples_per_s") for member in members]
        speeds = tuple(float(value) for value in values if value)
        first = members[0]
        if len(speeds) > 1:
            first = first._replace(summary={**first.summary, "samples_per_s": fmean(speeds)}, repeats=speeds)
        points.append(first)
    return points


def _devices(runs: Sequence[Run]) -> dict[int, str]:
    """Return the GPU name of measured runs, as reported by their latest attempt: run id -> name."""
    measured = [run.pk for run in runs if run.origin == Run.Origin.MEASURED]
    rows = Attempt.objects.filter(run__experiment_id__in={run.experiment_id for run in runs}).exclude(environment={})
    devices = {}
    for run_id, gpus in rows.order_by("number").values_list("run_id", "environment__gpus"):
        if isinstance(gpus, list) and gpus and isinstance(gpus[0], dict) and run_id in measured:
            devices[run_id] = str(gpus[0].get("name", ""))
    return devices


def _facts(run: Run, device: str | None = None) -> RunFacts:
    """Return the facts of a run for the rules; an imported run is finished only if its source states how it ended."""
    state = run.summary.get("end", run.state) if run.origin == Run.Origin.IMPORTED else run.state
    arguments = {
        **run.launch.get("arguments", {}),
        **{name: value for name, value in run.launch.items() if value is not None},
    }
    arguments.pop("arguments", None)
    is_product = engine_of(run.resolved).has_product_layout
    return RunFacts(run.number, str(state), _config(run), run.summary, arguments, run.point, device, is_product)


def _config(run: Run) -> Mapping[str, Any]:
    """Return the settings of a run; for a command only those passed to it, its cluster and its engine."""
    resolved: Mapping[str, Any] = run.resolved
    engine = engine_of(resolved)
    if run.origin != Run.Origin.MEASURED or not engine.is_external:
        return resolved
    filled = filled_fields(resolved)
    return {**filled, "cluster": resolved["cluster"], "parallel": {**filled["parallel"], "engine": engine.name}}


def _without_repeats(matches: Iterable[_Match]) -> dict[tuple[str, str], _Match]:
    """Drop repeats: if a file and the numbers of its run violate the same rule, only the finding of the file counts."""
    unique: dict[tuple[str, str], _Match] = {}
    in_documents: set[tuple[str, int]] = set()
    for match in matches:
        rule = match.finding.rule
        if match.source_id is None and match.run_id is not None and (rule, match.run_id) in in_documents:
            continue
        if match.source_id is not None and match.run_id is not None:
            in_documents.add((rule, match.run_id))
        unique.setdefault(match.key, match)
    return unique


def _store(
    experiment: Experiment, matches: Mapping[tuple[str, str], _Match], existing: Iterable[Finding]
) -> list[Finding]:
    """Update the existing rows to the matches: change those that differ, add new ones, delete those without a match."""
    existing_rows = {(row.rule, row.where_digest): row for row in existing}
    gone = [row.pk for key, row in existing_rows.items() if key not in matches]
    Finding.objects.filter(pk__in=gone).delete()
    rows, new, changed = [], [], []
    for (rule, where_digest), match in matches.items():
        row = existing_rows.get((rule, where_digest))
        if row is None:
            row = Finding(experiment=experiment, rule=rule, where_digest=where_digest)
            new.append(row)
            _fill(row, match)
        elif _fill(row, match):
            changed.append(row)
        rows.append(row)
    Finding.objects.bulk_create(new, batch_size=100)
    events.findings_added(experiment=experiment, findings=new)
    fields = ["run", "source", "severity", "message", "numbers", "where", "lines"]
    Finding.objects.bulk_update(changed, fields, batch_size=100)
    if new or changed or gone:
        events.findings_judged(experiment=experiment)
    return rows


def _fill(row: Finding, match: _Match) -> bool:
    """Copy a match into a row; returns whether anything changed."""
    finding = match.finding
    facts = {
        "run_id": match.run_id,
        "source_id": match.source_id,
        "severity": finding.severity,
        "message": storable.text(finding.message)[:_MAX_MESSAGE],
        "numbers": storable.json(finding.numbers),
        "where": match.where,
        "lines": list(finding.lines),
    }
    if all(getattr(row, name) == value for name, value in facts.items()):
        return False
    for name, value in facts.items():
        setattr(row, name, value)
    return True
