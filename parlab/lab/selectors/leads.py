"""Which run of an experiment is the fastest, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from django.db.models import F, FloatField, Q, QuerySet, Window
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, RowNumber

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
_HAS_SPEED = Q(samples_per_s__isnull=False) | Q(tokens_per_s__isnull=False) | Q(step_time_s__isnull=False)


class Lead(NamedTuple):
    """The fastest run beside the next one."""

    best: Run
    unit: str
    value: float
    second: Run | None
    ahead: float | None
    """How many times as fast as the second one; None where there is none to compare with."""
    noise: float | None = None
    """Half the range from p10 to p90 of the steps of whichever varies more, in per cent of its median."""

    @property
    def is_within_noise(self) -> bool:
        """Whether single steps vary more than the two runs differ, so that another try may turn them round."""
        return self.percent is not None and self.noise is not None and self.percent < self.noise

    @property
    def differs(self) -> str:
        """How many GPUs the two have, where that differs: then the lead says how it scales, not who is better."""
        if self.second is None or self.best.gpus == self.second.gpus:
            return ""
        return f"{_count(self.best.gpus)} against {_count(self.second.gpus)} GPUs"

    @property
    def percent(self) -> float | None:
        """How much faster than the second one, in per cent."""
        return None if self.ahead is None else 100 * (self.ahead - 1)


def lead(runs: Sequence[Run]) -> Lead | None:
    """Compare the first two of runs in LEAD_ORDER; None where the first has no speed."""
    if not runs:
        return None
    best, second = runs[0], runs[1] if len(runs) > 1 else None
    for name, unit in _SPEEDS.items():
        value = _speed(best, name)
        if value is None:
            continue
        other = _speed(second, name) if second else None
        if not second or not other or not value:
            return Lead(best, unit, value, None, None)
        ahead = other / value if name == "step_time_s" else value / other
        return Lead(best, unit, value, second, ahead, _noise([best, second]))
    return None


_SPEEDS = {
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "step_time_s": "s",
    "tflops_per_gpu": "TFLOP/s",
}
"""What a lead is told in, the first that is known; FLOP/s of a GPU where a table states nothing else."""


def _speed(run: Run, name: str) -> float | None:
    value = run.__dict__.get(name)
    if value is None and name == "tflops_per_gpu" and "summary" in run.__dict__:
        value = run.summary.get(name)
    return float(value) if isinstance(value, int | float) else None


def _noise(runs: Iterable[Run]) -> float | None:
    """Say how much steps vary, in per cent; None where the spread of one of the runs is not known."""
    found = []
    for run in runs:
        spread = (run.summary.get("step_time_s") or {}) if "summary" in run.__dict__ else run.__dict__
        low, middle, high = (spread.get(name) for name in ("p10", "median", "p90"))
        if low is None or high is None or not middle:
            return None
        found.append(50 * (high - low) / middle)
    return max(found, default=None)


def _count(gpus: float | None) -> str:
    return "?" if gpus is None else f"{gpus:,.0f}"


def experiment_leads(experiment_ids: Iterable[int], runs: Q | None = None) -> dict[int, Lead]:
    """Say for each experiment which finished run is the fastest, and how far ahead of the next."""
    finished = Run.objects.filter(runs or Q(), experiment__in=list(experiment_ids), state=RunState.FINISHED).order_by()
    standing = Window(RowNumber(), partition_by=F("experiment_id"), order_by=list(LEAD_ORDER))
    leads = _leads(finished.filter(_HAS_SPEED).annotate(standing=standing).filter(standing__lte=_BEST))
    without = {pk for pk in experiment_ids if pk not in leads}
    if without:
        # Few: of tables that state nothing but FLOP/s, and only there their JSON is looked into.
        rate = [F("tflops_per_gpu").desc(), F("number").asc()]
        by_rate = Window(RowNumber(), partition_by=F("experiment_id"), order_by=rate)
        stated = finished.filter(experiment__in=without, summary__tflops_per_gpu__isnull=False)
        ranked = stated.annotate(tflops_per_gpu=_stated("tflops_per_gpu")).annotate(standing=by_rate)
        leads |= _leads(ranked.filter(standing__lte=_BEST))
    return leads


def _leads(first: QuerySet[Run]) -> dict[int, Lead]:
    """Read the first runs of experiments with what tells how far they are apart, not their whole summaries."""
    runs = Run.objects.defer("resolved", "summary", "launch", "point").annotate(
        p10=_stated("step_time_s__p10"),
        median=_stated("step_time_s__median"),
        p90=_stated("step_time_s__p90"),
        tflops_per_gpu=_stated("tflops_per_gpu"),
    )
    by_experiment: dict[int, list[Run]] = {}
    for run in sorted(runs.filter(pk__in=first.values("pk")), key=_place):
        by_experiment.setdefault(run.experiment_id, []).append(run)
    leads = {pk: lead(members) for pk, members in by_experiment.items()}
    return {pk: one for pk, one in leads.items() if one is not None}


def _stated(path: str) -> Cast:
    return Cast(KT(f"summary__{path}"), FloatField())


def _place(run: Run) -> tuple[float, float, float, float, int]:
    """LEAD_ORDER for rows that have been read, with the rate of a GPU where nothing else is known."""
    slowest = float("inf")
    return (
        -(run.samples_per_s or 0.0),
        -(run.tokens_per_s or 0.0),
        slowest if run.step_time_s is None else run.step_time_s,
        -(_speed(run, "tflops_per_gpu") or 0.0),
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
