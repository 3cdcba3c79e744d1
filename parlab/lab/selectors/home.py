"""The home page: active runs, recent results, failures and open findings."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Exists, Max, OuterRef

from parlab.lab.models import Config, Experiment, Finding, Run
from parlab.lab.selectors.analysis.rankings import Lead, experiment_leads
from runners.wire.protocol import RunState

from .experiments import StateCount, experiment_states, with_current_attempt
from .runs import step_time

ACTIVE_SHOWN = 12
RECENT_SHOWN = 8
TROUBLE_SHOWN = 5
FINDINGS_SHOWN = 6
READY_READ = 16


class ActiveRun(NamedTuple):
    """A queued or running run."""

    run: Run
    step: int | None
    remaining_s: float | None


class RecentResult(NamedTuple):
    """An experiment whose runs ended recently."""

    experiment: Experiment
    ended_at: datetime
    states: list[StateCount]
    lead: Lead | None
    doubts: list[Finding]
    """Open findings of the best run."""


class Home(NamedTuple):
    active: list[ActiveRun]
    active_count: int
    recent: list[RecentResult]
    troubled: list[Run]
    """Runs that failed, were lost or ran out of memory, most recent first."""
    findings: list[Finding]
    findings_count: int
    ready: list[Experiment]
    """Experiments with a configuration but without runs."""
    has_experiments: bool


def home() -> Home:
    """Return the contents of the home page with a constant number of queries."""
    findings = Finding.objects.open().filter(experiment__archived_at=None)
    ranked = sorted(findings.values_list("severity", "pk"), key=lambda row: (row[0] != Finding.Severity.ERROR, -row[1]))
    full = findings.select_related("experiment", "run").defer("run__resolved", "run__summary", "run__launch")
    by_id = full.in_bulk([pk for _, pk in ranked[:FINDINGS_SHOWN]])
    active, count = active_runs()
    recent, ready = _recent(), _ready()
    return Home(
        active=active,
        active_count=count,
        recent=recent,
        troubled=_troubled(),
        findings=[by_id[pk] for _, pk in ranked[:FINDINGS_SHOWN] if pk in by_id],
        findings_count=len(ranked),
        ready=ready,
        has_experiments=bool(active or recent or ready) or Experiment.objects.exists(),
    )


def active_runs() -> tuple[list[ActiveRun], int]:
    """Return the first active runs, running ones first, and the total number of active runs."""
    runs = Run.objects.active().filter(experiment__archived_at=None)
    states = list(runs.values_list("pk", "state"))
    order = [RunState.RUNNING, RunState.DISPATCHED, RunState.QUEUED]
    first = sorted(states, key=lambda row: (order.index(RunState(row[1])), row[0]))[:ACTIVE_SHOWN]
    positions = {pk: position for position, (pk, _) in enumerate(first)}
    selected: list[Any] = list(with_current_attempt(runs.select_related("experiment").filter(pk__in=positions)))
    active = [ActiveRun(run, run.last_step, _remaining_s(run)) for run in selected]
    return sorted(active, key=lambda item: positions[item.run.pk]), len(states)


def _remaining_s(run: Any) -> float | None:
    measured = step_time(run.summary)
    done = run.last_step or 0
    if measured is None or not done or not run.iterations:
        return None
    remaining_steps: int = max(0, run.iterations - done)
    return measured.median * remaining_steps


def _recent() -> list[RecentResult]:
    """Return the experiments whose runs ended most recently, with their leads."""
    ended = Run.objects.final().filter(experiment__archived_at=None, ended_at__isnull=False)
    last = dict(
        ended.order_by().values_list("experiment_id").annotate(last=Max("ended_at")).order_by("-last")[:RECENT_SHOWN]
    )
    experiments = Experiment.objects.defer("notes", "source").in_bulk(list(last))
    states = experiment_states(last)
    leads = experiment_leads(last)
    doubts: dict[int, list[Finding]] = {}
    for finding in Finding.objects.open().filter(run__in=[lead.best.pk for lead in leads.values()]):
        doubts.setdefault(finding.experiment_id, []).append(finding)
    return [
        RecentResult(experiments[pk], at, states[pk], leads.get(pk), doubts.get(pk, []))
        for pk, at in last.items()
        if pk in experiments
    ]


def _ready() -> list[Experiment]:
    has_runs = Exists(Run.objects.filter(experiment=OuterRef("pk")))
    has_config = Exists(Config.objects.filter(experiment=OuterRef("pk")))
    ready = Experiment.objects.in_use().filter(has_config, ~has_runs)
    return list(ready.defer("notes", "source").order_by("-created_at")[:READY_READ])


def _troubled() -> list[Run]:
    states = [RunState.FAILED, RunState.LOST, RunState.OOM]
    runs = Run.objects.filter(state__in=states, ended_at__isnull=False, experiment__archived_at=None)
    # Select ids first: they come from an index, without sorting whole rows.
    recent = list(runs.order_by("-ended_at").values_list("pk", flat=True)[:TROUBLE_SHOWN])
    rows = Run.objects.select_related("experiment").defer("resolved", "summary", "launch").in_bulk(recent)
    return [rows[pk] for pk in recent if pk in rows]
