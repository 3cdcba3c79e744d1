"""Which run of an experiment is the fastest, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from django.db.models import F, Q, Window
from django.db.models.functions import RowNumber

from parlab.lab.models import Run
from runners.protocol import RunState

_BEST = 2
"""Runs of an experiment that tell who leads and by how much."""

LEAD_ORDER = (
    F("samples_per_s").desc(nulls_last=True),
    F("tokens_per_s").desc(nulls_last=True),
    F("step_time_s").asc(nulls_last=True),
    F("number").asc(),
)
"""The fastest first; runs of one experiment mostly have the same numbers."""


class Lead(NamedTuple):
    """The fastest run beside the next one."""

    best: Run
    unit: str
    value: float
    second: Run | None
    ahead: float | None
    """How many times as fast as the second one; None where there is none to compare with."""

    @property
    def percent(self) -> float | None:
        """How much faster than the second one, in per cent."""
        return None if self.ahead is None else 100 * (self.ahead - 1)


def lead(runs: Sequence[Run]) -> Lead | None:
    """Compare the first two of runs in LEAD_ORDER; None where the first has no speed."""
    if not runs:
        return None
    best, second = runs[0], runs[1] if len(runs) > 1 else None
    for name, unit in (("samples_per_s", "samples/s"), ("tokens_per_s", "tokens/s"), ("step_time_s", "s")):
        value = getattr(best, name)
        if value is None:
            continue
        other = getattr(second, name) if second else None
        if not other or not value:
            return Lead(best, unit, value, None, None)
        return Lead(best, unit, value, second, other / value if name == "step_time_s" else value / other)
    return None


def experiment_leads(experiment_ids: Iterable[int], runs: Q | None = None) -> dict[int, Lead]:
    """Say for each experiment which finished run is the fastest, and how far ahead of the next."""
    standing = Window(RowNumber(), partition_by=F("experiment_id"), order_by=list(LEAD_ORDER))
    finished = Run.objects.filter(runs or Q(), experiment__in=list(experiment_ids), state=RunState.FINISHED)
    best = finished.order_by().annotate(standing=standing).filter(standing__lte=_BEST).values_list("pk", flat=True)
    found = Run.objects.defer("resolved", "summary", "launch", "point").in_bulk(list(best))
    by_experiment: dict[int, list[Run]] = {}
    for run in sorted(found.values(), key=_place):
        by_experiment.setdefault(run.experiment_id, []).append(run)
    leads = {pk: lead(members) for pk, members in by_experiment.items()}
    return {pk: one for pk, one in leads.items() if one is not None}


def _place(run: Run) -> tuple[float, float, float, int]:
    """LEAD_ORDER for rows that have been read."""
    slowest = float("inf")
    return (
        -(run.samples_per_s or 0.0),
        -(run.tokens_per_s or 0.0),
        slowest if run.step_time_s is None else run.step_time_s,
        run.number,
    )


class Verdict(NamedTuple):
    """What the runs of an experiment say at a glance."""

    lead: Lead | None
    slowest: Run | None
    """The slowest finished run beside the fastest, where there are more than two."""
    times: float | None
    """How many times as fast as the slowest the fastest is."""
    failed: list[Run]
    """Runs that failed or were lost."""
    differs: str
    """On what the work of a step of finished runs differs, in words; such runs are compared with care."""


def verdict(runs: Sequence[Run]) -> Verdict:
    """Sum up runs that have been read: which is best, by how much, and what went wrong."""
    finished = sorted((run for run in runs if run.state == RunState.FINISHED), key=_place)
    best = lead(finished)
    ends = lead([finished[0], finished[-1]]) if len(finished) > 2 else None
    return Verdict(
        best,
        ends.second if ends else None,
        ends.ahead if ends else None,
        [run for run in runs if run.state in (RunState.FAILED, RunState.LOST)],
        ", ".join(words for words, of in _WORK.items() if len({repr(of(run)) for run in finished}) > 1),
    )


def _set(section: str, name: str) -> Callable[[Run], Any]:
    return lambda run: run.resolved.get(section, {}).get(name)


_WORK: dict[str, Callable[[Run], Any]] = {
    "GPUs": lambda run: run.gpus,
    "layers": _set("model", "num_layers"),
    "hidden size": _set("model", "hidden_size"),
    "sequence length": _set("model", "sequence_length"),
    "precision": _set("train", "precision"),
}
