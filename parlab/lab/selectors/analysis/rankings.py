"""The fastest run of an experiment, and its lead over the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from django.db.models import F

from parlab.findings.noise import Noise, noise
from parlab.lab.models import Run
from runners.wire.protocol import RunState

from .repeats import has_repeats, repeat_groups
from .surroundings import TITLES, Surroundings, differing

LEAD_ORDER = (
    F("samples_per_s").desc(nulls_last=True),
    F("tokens_per_s").desc(nulls_last=True),
    F("step_time_s").asc(nulls_last=True),
    F("number").asc(),
)
"""Fastest first; runs of one experiment mostly have the same kinds of numbers."""
_TIE = 5e-5


class Lead(NamedTuple):
    """The fastest run and the next one."""

    best: Run
    unit: str
    value: float
    second: Run | None
    ahead: float | None
    """Speed of the best run divided by that of the second; None without a second run."""
    noise: float | None = None
    """Half the p10 to p90 range of the step times in percent of their median, of the run that varies more.

    With repeats, the difference of the two means in percent that their noise exceeds once in 20 times.
    """
    repeats: int = 1
    """Runs of which the value is the mean; `best` is the first of them."""
    is_of_repeats: bool = False
    """Whether `noise` is that of repeats."""

    @property
    def is_within_noise(self) -> bool:
        """Whether step times vary more than the two runs differ, so that a repetition may reverse their order."""
        return self.percent is not None and self.noise is not None and self.percent < self.noise

    @property
    def is_tied(self) -> bool:
        """Whether the two speeds are equal to the digits that a page shows."""
        return self.ahead is not None and abs(self.ahead - 1) < _TIE

    @property
    def differs(self) -> str:
        """The GPU counts of the two runs if they differ: the lead then shows scaling, not a better configuration."""
        if self.second is None or self.best.gpus == self.second.gpus:
            return ""
        devices = "processes" if self.best.is_on_cpu and self.second.is_on_cpu else "GPUs"
        return f"{_count(self.best.gpus)} vs {_count(self.second.gpus)} {devices}"

    @property
    def percent(self) -> float | None:
        """How much faster the best run is than the second, in percent."""
        return None if self.ahead is None else 100 * (self.ahead - 1)


def lead(standings: Sequence[Sequence[Run]], noises: Mapping[str, Noise | None] = {}) -> Lead | None:
    """Compare the first two points, each given by its repeats, fastest first; None if the first has no speed.

    `noises` are those of the repeats by name of a speed.
    """
    if not standings:
        return None
    best, second = standings[0], standings[1] if len(standings) > 1 else []
    for name, unit in _SPEEDS.items():
        value, other = _mean_speed(best, name), _mean_speed(second, name)
        if value is None:
            continue
        own = Lead(best[0], unit, value, None, None, repeats=len(best))
        if not other or not value:
            return own
        ahead = other / value if name == "step_time_s" else value / other
        of_repeats = noises.get(name)
        steps = None if of_repeats else _noise([best[0], second[0]])
        limit = 100 * of_repeats.limit(len(best), len(second)) if of_repeats else steps
        return own._replace(second=second[0], ahead=ahead, noise=limit, is_of_repeats=of_repeats is not None)
    return None


def _mean_speed(runs: Sequence[Run], name: str) -> float | None:
    speeds = _speeds(runs, name)
    return fmean(speeds) if speeds else None


def _speeds(runs: Sequence[Run], name: str) -> list[float]:
    return [speed for run in runs if (speed := _speed(run, name)) is not None]


def ranked(runs: Sequence[Run]) -> tuple[list[list[Run]], dict[str, Noise | None]]:
    """Return finished runs by point, the fastest mean first, and the noise of their repeats by name of a speed."""
    groups = sorted(repeat_groups(runs), key=_mean_key)
    if not has_repeats(groups):
        return groups, {}
    return groups, {name: noise(_speeds(group, name) for group in groups) for name in _SPEEDS}


_SPEEDS = {
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "step_time_s": "s",
    "tflops_per_gpu": "TFLOP/s",
    "fps": "fps",
}
"""Fields that express a lead, in order of preference: name -> unit; the last ones for files with no other."""
_IN_SUMMARY = ("tflops_per_gpu", "fps")


def _speed(run: Run, name: str) -> float | None:
    value = run.__dict__.get(name)
    if value is None and name in _IN_SUMMARY and "summary" in run.__dict__:
        value = run.summary.get(name)
    return float(value) if isinstance(value, int | float) else None


def _noise(runs: Iterable[Run]) -> float | None:
    """Return the largest variation of step times in percent; None if a run has no percentiles."""
    percentages = []
    for run in runs:
        spread = (run.summary.get("step_time_s") or {}) if "summary" in run.__dict__ else run.__dict__
        low, middle, high = (spread.get(name) for name in ("p10", "median", "p90"))
        if low is None or high is None or not middle:
            return None
        percentages.append(50 * (high - low) / middle)
    return max(percentages, default=None)


def _count(gpus: float | None) -> str:
    return "?" if gpus is None else f"{gpus:,.0f}"


def _lead_key(run: Run) -> tuple[float, float, float, float, int]:
    """Return the sort key of LEAD_ORDER for loaded rows, with FLOP/s per GPU as the last criterion."""
    slowest = float("inf")
    return (
        -(run.samples_per_s or 0.0),
        -(run.tokens_per_s or 0.0),
        slowest if run.step_time_s is None else run.step_time_s,
        -(_speed(run, "tflops_per_gpu") or 0.0),
        run.number,
    )


def _mean_key(group: Sequence[Run]) -> tuple[float, float, float, float, int]:
    """Return the key of `_lead_key` for the means of repeats."""
    if len(group) == 1:
        return _lead_key(group[0])
    samples, tokens, step_time, flops = (
        _mean_speed(group, name) for name in ("samples_per_s", "tokens_per_s", "step_time_s", "tflops_per_gpu")
    )
    slowest = float("inf") if step_time is None else step_time
    return -(samples or 0.0), -(tokens or 0.0), slowest, -(flops or 0.0), group[0].number


class Verdict(NamedTuple):
    """The outcome of the runs of an experiment."""

    lead: Lead | None
    slowest: Run | None
    """The slowest finished run, if there are more than two."""
    times: float | None
    """Speedup of the fastest run over the slowest."""
    failed: list[Run]
    """Runs that failed or were lost."""
    differs: str
    """Settings in which the work of a step differs between finished runs, as text; their speeds are not comparable."""


def verdict(runs: Sequence[Run], surroundings: Mapping[int, Surroundings] | None = None) -> Verdict:
    """Summarize loaded runs: the lead of the best, the speedup over the slowest, and the failures.

    `surroundings` says where runs ran, by run id, so that the verdict names differences of the machines.
    """
    finished = [run for run in runs if run.state == RunState.FINISHED]
    standings, repeat_noise = ranked(finished)
    best = lead(standings, repeat_noise)
    ends = lead([standings[0], standings[-1]]) if len(standings) > 2 else None
    return Verdict(
        best,
        ends.second if ends else None,
        ends.ahead if ends else None,
        [run for run in runs if run.state in (RunState.FAILED, RunState.LOST)],
        ", ".join([*_differing_work(finished), *_differing_places(finished, surroundings or {})]),
    )


def _differing_work(runs: Sequence[Run]) -> list[str]:
    return [name for name, value_of in _WORK.items() if len({repr(value_of(run)) for run in runs}) > 1]


def _differing_places(runs: Sequence[Run], surroundings: Mapping[int, Surroundings]) -> list[str]:
    return [TITLES[part] for part in differing(surroundings, [run.pk for run in runs])]


def _setting(section: str, name: str) -> Callable[[Run], Any]:
    return lambda run: run.resolved.get(section, {}).get(name)


_WORK: dict[str, Callable[[Run], Any]] = {
    "GPUs": lambda run: run.gpus,
    "layers": _setting("model", "num_layers"),
    "hidden size": _setting("model", "hidden_size"),
    "sequence length": _setting("model", "sequence_length"),
    "precision": _setting("train", "precision"),
}
