"""Findings as rows: computed by rules, kept in step with the numbers, acknowledged by people."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.core.cache import cache
from django.db import transaction
from django.utils import timezone

from parlab.findings import RULES, RunFacts, run_findings, sweep_findings
from parlab.formats import schema
from parlab.lab.models import Attempt, Experiment, Finding, Run, Source
from runners.config import engine_of, filled_fields

from . import storable
from .configs import lock_experiment

SWEEP_EVERY_S = 30.0
"""While runs of an experiment go on, the comparison of all of them is made no more often than this."""
_MAX_MESSAGE = 2_000
_RUN_RULES = [id for id, rule in RULES.items() if rule.runs and not rule.sweeps]


class _Found(NamedTuple):
    """A finding that holds, and what it belongs to."""

    finding: schema.Finding
    run_id: int | None
    source_id: int | None

    @property
    def where(self) -> dict[str, Any]:
        place: dict[str, Any] = storable.json(self.finding.where.model_dump(exclude_none=True))
        return place

    @property
    def key(self) -> tuple[str, str]:
        """What makes it the same finding after its numbers changed: rule, owner and place."""
        owner = {"source": self.source_id} if self.source_id else {"run": self.run_id}
        # The number of a run repeats its owner.
        place = {name: value for name, value in self.where.items() if name != "run"}
        text = json.dumps({**owner, **place}, sort_keys=True)
        return self.finding.rule, hashlib.sha256(text.encode()).hexdigest()


@transaction.atomic
def findings_refresh(*, experiment: Experiment) -> list[Finding]:
    """Compute what the rules say of an experiment's runs and documents, and keep exactly that.

    Findings that still hold keep their acknowledgements; those that no longer hold go.
    """
    lock_experiment(experiment)
    runs = list(_runs(experiment))
    found = [*_of_documents(experiment, runs), *_of_runs(runs)]
    return _keep(experiment, _once(found), experiment.findings.all())


@transaction.atomic
def run_findings_refresh(*, run: Run) -> list[Finding]:
    """Compute the findings of one run that has just ended; those of the whole sweep with the last one, or now and then.

    A sweep of n runs so costs n looks at one run, not n looks at n.
    """
    current = Run.objects.select_related("experiment").filter(pk=run.pk).first()
    if current is None:
        return []
    others_go_on = current.experiment.runs.active().exclude(pk=run.pk).exists()
    if not others_go_on or cache.add(f"parlab.findings.{current.experiment_id}", True, SWEEP_EVERY_S):
        return findings_refresh(experiment=current.experiment)
    lock_experiment(current.experiment)
    device = _devices([current]).get(current.pk)
    found = [_Found(finding, current.pk, None) for finding in run_findings(_facts(current, device))]
    # What the comparison with other runs said stays until it is made again.
    mine = current.findings.filter(source=None, rule__in=_RUN_RULES)
    return _keep(current.experiment, _once(found), mine)


@transaction.atomic
def finding_acknowledge(*, finding: Finding, user: User, reason: str) -> Finding:
    """Note that a person has looked at a finding, and why it may stand; raises ValueError without a reason."""
    reason = storable.text(reason).strip()
    if not reason:
        raise ValueError("reason is empty; say why the finding may stand, so that others need not ask")
    Finding.objects.filter(pk=finding.pk).update(
        acknowledged_by=user, acknowledged_at=timezone.now(), acknowledged_reason=reason
    )
    finding.refresh_from_db()
    return finding


@transaction.atomic
def finding_reopen(*, finding: Finding) -> Finding:
    """Take an acknowledgement back."""
    Finding.objects.filter(pk=finding.pk).update(acknowledged_by=None, acknowledged_at=None, acknowledged_reason="")
    finding.refresh_from_db()
    return finding


def _runs(experiment: Experiment) -> Iterable[Run]:
    fields = (
        "experiment_id",
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


def _of_documents(experiment: Experiment, runs: Sequence[Run]) -> Iterator[_Found]:
    """Findings of the imported files, as they were found when the files were read; with the run that they doubt."""
    by_place = {(run.source_id or 0, _name(run.place)): run.pk for run in runs if run.source_id}
    for source_id, findings in Source.objects.filter(experiment=experiment).values_list("pk", "document__findings"):
        for data in findings or []:
            finding = schema.Finding.model_validate(data)
            yield _Found(finding, _doubted(finding.where, source_id, by_place), source_id)


def _doubted(place: schema.Place, source_id: int, by_place: Mapping[tuple[int, str], int]) -> int | None:
    """Find the run that a place of a document became: a launch, a row or a cell of a table."""
    candidates: list[dict[str, int | None]] = [{"segment": place.segment}]
    if place.table is not None and place.row is not None:
        candidates = [
            {"table": place.table, "row": place.row, "column": place.column},
            {"table": place.table, "row": place.row},
        ]
    for candidate in candidates:
        if None not in candidate.values() and (run_id := by_place.get((source_id, _name(candidate)))):
            return run_id
    return None


def _name(place: Mapping[str, Any]) -> str:
    return json.dumps(place, sort_keys=True)


def _of_runs(runs: Sequence[Run]) -> Iterator[_Found]:
    devices = _devices(runs)
    facts = [_facts(run, devices.get(run.pk)) for run in runs]
    ids = {run.number: run.pk for run in runs}
    for run, known in zip(runs, facts, strict=True):
        for finding in run_findings(known):
            yield _Found(finding, run.pk, None)
    for finding in sweep_findings(facts):
        yield _Found(finding, ids.get(finding.where.run or 0), None)


def _devices(runs: Sequence[Run]) -> dict[int, str]:
    """Run -> name of the GPU that its current attempt found."""
    measured = [run.pk for run in runs if run.origin == Run.Origin.MEASURED]
    rows = Attempt.objects.filter(run__experiment_id__in={run.experiment_id for run in runs}).exclude(environment={})
    devices = {}
    for run_id, gpus in rows.order_by("number").values_list("run_id", "environment__gpus"):
        if isinstance(gpus, list) and gpus and isinstance(gpus[0], dict) and run_id in measured:
            devices[run_id] = str(gpus[0].get("name", ""))
    return devices


def _facts(run: Run, device: str | None = None) -> RunFacts:
    """Hand a run to the rules; an imported one whose end nobody knows is not called finished."""
    state = run.summary.get("end", run.state) if run.origin == Run.Origin.IMPORTED else run.state
    arguments = {
        **run.launch.get("arguments", {}),
        **{name: value for name, value in run.launch.items() if value is not None},
    }
    arguments.pop("arguments", None)
    is_product = engine_of(run.resolved).has_product_layout
    return RunFacts(run.number, str(state), _config(run), run.summary, arguments, run.point, device, is_product)


def _config(run: Run) -> Mapping[str, Any]:
    """Say what a run was set to; of a command only what it was filled with, where it ran and by which engine."""
    resolved: Mapping[str, Any] = run.resolved
    engine = engine_of(resolved)
    if run.origin != Run.Origin.MEASURED or not engine.is_external:
        return resolved
    told = filled_fields(resolved)
    return {**told, "cluster": resolved["cluster"], "parallel": {**told["parallel"], "engine": engine.name}}


def _once(found: Iterable[_Found]) -> dict[tuple[str, str], _Found]:
    """Say each doubt once: what a file says of a run stands for what the same rule says of its numbers."""
    kept: dict[tuple[str, str], _Found] = {}
    said: set[tuple[str, int]] = set()
    for entry in found:
        rule = entry.finding.rule
        if entry.source_id is None and entry.run_id is not None and (rule, entry.run_id) in said:
            continue
        if entry.source_id is not None and entry.run_id is not None:
            said.add((rule, entry.run_id))
        kept.setdefault(entry.key, entry)
    return kept


def _keep(experiment: Experiment, found: Mapping[tuple[str, str], _Found], among: Iterable[Finding]) -> list[Finding]:
    """Make the rows say what was found: change what changed, add what is new, remove what no longer holds."""
    existing = {(row.rule, row.where_digest): row for row in among}
    Finding.objects.filter(pk__in=[row.pk for key, row in existing.items() if key not in found]).delete()
    kept, new, changed = [], [], []
    for (rule, where_digest), entry in found.items():
        row = existing.get((rule, where_digest))
        if row is None:
            row = Finding(experiment=experiment, rule=rule, where_digest=where_digest)
            new.append(row)
            _fill(row, entry)
        elif _fill(row, entry):
            changed.append(row)
        kept.append(row)
    Finding.objects.bulk_create(new, batch_size=100)
    fields = ["run", "source", "severity", "message", "numbers", "where", "lines"]
    Finding.objects.bulk_update(changed, fields, batch_size=100)
    return kept


def _fill(row: Finding, entry: _Found) -> bool:
    """Bring a row up to date; returns whether anything changed."""
    finding = entry.finding
    facts = {
        "run_id": entry.run_id,
        "source_id": entry.source_id,
        "severity": finding.severity,
        "message": storable.text(finding.message)[:_MAX_MESSAGE],
        "numbers": storable.json(finding.numbers),
        "where": entry.where,
        "lines": list(finding.lines),
    }
    if all(getattr(row, name) == value for name, value in facts.items()):
        return False
    for name, value in facts.items():
        setattr(row, name, value)
    return True
