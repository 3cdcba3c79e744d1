"""Rules: a measured step and the planner's prediction of its neighbours -> changes with their gain, ranked.

The gain is not the planner's step time but a change of the measured one: each measured term is multiplied by the ratio
of the planner's terms after and before the change. What the planner gets wrong for both configurations cancels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from parlab.advice.waterfalls.terms import TERMS
from parlab.advice.waterfalls.waterfall import Waterfall
from parlab.planner import Calibration, Cluster, Job, Prediction, predict_job
from parlab.planner.prediction.timing import Timing

from .adjacent_settings import neighbours
from .advice import Advice
from .observations import NO_SIGNS, Signs, looks
from .simulated import Passes, simulated

SMALLEST_GAIN = 0.02
"""Smaller gains are within the noise of most step times."""
_WIDEST = 0.15
SPREADS = {"micro_batch": 0.11, "schedule": 0.07} | dict.fromkeys(
    ("layout", "recompute", "zero", "wire", "overlap"), _WIDEST
)
"""Error that 80 % of the advised changes of a kind stay within, in shares of the step time (`make bench-advice`). The
published sweeps vary neither recomputation, ZeRO, overlap nor the wire alone: those have the widest of the others."""
CERTAIN = 2.5
"""A change has to save this many times what it adds to other terms: a larger bubble for faster kernels, for example.
Otherwise a small error of one side turns the sign of the gain."""
_COMPUTE = ("ideal", "matrix_rate", "kernels", "compute", "recompute")
"""Terms of the waterfall that the planner's compute describes; its other parts are a term each."""
_PARTS = ("compute_s", "bubble_s", "tensor_s", "context_s", "pipeline_s", "data_s", "expert_s", "optimizer_s")
"""Parts of the planner's step time that have terms in the waterfall."""
_MOST = 8


@dataclass(frozen=True)
class Case:
    """A measured step with what its advice is computed from."""

    waterfall: Waterfall
    job: Job | None = None
    cluster: Cluster | None = None
    calibration: Calibration | None = None
    signs: Signs = NO_SIGNS
    passes: Passes | None = None
    """Pipeline of the run, for a simulation of other schedules."""


_SAME = 0.02
"""Sizes that differ by less, as a share, are told as one."""


def advise(case: Case) -> list[Advice]:
    """Return the changes worth trying: what ends the run, then the one with the highest certain gain."""
    changes = looks(case.waterfall, case.signs)
    settings = simulated(case.waterfall, case.passes, SPREADS) if case.passes is not None else []
    if case.job is not None and case.cluster is not None:
        settings += _changes(case, case.job, case.cluster)
    changes += _best_by_kind(settings)
    return sorted(changes, key=lambda advice: (advice.kind != "memory", -advice.low, -advice.gain))[:_MOST]


def _changes(case: Case, job: Job, cluster: Cluster) -> list[Advice]:
    before = predict_job(job, cluster, case.calibration)
    changes = []
    for neighbour in neighbours(job):
        try:
            after = predict_job(neighbour.job, cluster, case.calibration)
        except ValueError:
            continue
        if not after.fits:
            continue
        if not is_certain(case.waterfall, before.parts, after.parts):
            continue
        gain = gain_of(case.waterfall, before.parts, after.parts)
        spread = SPREADS[neighbour.kind]
        part = _part(case.waterfall, neighbour.kind, before.parts, after.parts)
        changes.append(
            Advice(
                neighbour.kind,
                neighbour.title,
                gain,
                gain - spread,
                min(1.0, gain + spread),
                part,
                "measured terms x the planner's ratio after and before the change",
                _evidence(case.waterfall, before, after, part),
                neighbour.settings,
            )
        )
    return changes


def _best_by_kind(changes: Iterable[Advice]) -> list[Advice]:
    """Return the change of each kind with the highest gain, of those that are worth trying."""
    best: dict[str, Advice] = {}
    for advice in changes:
        if advice.gain >= SMALLEST_GAIN and (advice.kind not in best or advice.gain > best[advice.kind].gain):
            best[advice.kind] = advice
    return list(best.values())


def gain_of(waterfall: Waterfall, before: Timing, after: Timing) -> float:
    """Return the share of the measured step that a change saves; negative if it makes the step longer."""
    if not _is_measured(waterfall):
        return 1 - after.total_s / before.total_s
    total_s, scale = waterfall.total_s, waterfall.total_s / before.total_s
    saved_s = sum(_saved_s(waterfall, part, getattr(before, part), getattr(after, part), scale) for part in _PARTS)
    return saved_s / total_s if total_s else 0.0


def is_certain(waterfall: Waterfall | None, before: Timing, after: Timing) -> bool:
    """Return whether a change saves CERTAIN times what it adds; without measured terms by the planner's parts."""
    is_measured, changes = waterfall is not None and _is_measured(waterfall), []
    for part in _PARTS:
        before_s, after_s = getattr(before, part), getattr(after, part)
        if waterfall is not None and is_measured:
            scale = waterfall.total_s / before.total_s
            changes.append(_saved_s(waterfall, part, before_s, after_s, scale))
        else:
            changes.append(before_s - after_s)
    saved_s = sum(seconds for seconds in changes if seconds > 0)
    return saved_s >= CERTAIN * -sum(seconds for seconds in changes if seconds < 0)


def _terms(part: str) -> tuple[str, ...]:
    return _COMPUTE if part == "compute_s" else (part.removesuffix("_s"),)


def _is_measured(waterfall: Waterfall) -> bool:
    return any(part.kind in ("measured", "derived") for part in waterfall.parts)


def _saved_s(waterfall: Waterfall, part: str, before_s: float, after_s: float, scale: float) -> float:
    """Return how much shorter a term gets.

    A term that only the change adds has the planner's size. One that no timer separates has the planner's share of the
    step: ZeRO-3 gathers weights inside the timers of the passes.
    """
    measured_s = sum(waterfall.ns(key) for key in _terms(part)) / 1e9
    if before_s > 0 and measured_s > 0:
        return measured_s * (1 - after_s / before_s)
    return (min(1.0, scale) if before_s <= 0 else scale) * (before_s - after_s)


def _part(waterfall: Waterfall, kind: str, before: Timing, after: Timing) -> str:
    """Return the measured term that a change of a kind shrinks most; `unexplained` if nothing was measured."""
    if not _is_measured(waterfall):
        return "unexplained"
    scale = waterfall.total_s / before.total_s
    part = max(_PARTS, key=lambda name: _saved_s(waterfall, name, getattr(before, name), getattr(after, name), scale))
    keys = _terms(part)
    if kind == "recompute" and part == "compute_s" and waterfall.ns("recompute"):
        return "recompute"
    # A change of another kind leaves the FLOPs as they are: it shrinks what the device loses beside them.
    losses = [key for key in keys if key not in ("ideal", "recompute") and waterfall.ns(key)]
    return max(losses or keys, key=waterfall.ns)


def _evidence(waterfall: Waterfall, before: Prediction, after: Prediction, part: str) -> str:
    share = 100 * waterfall.share(part)
    ratio = after.iteration_s / before.iteration_s
    measured = f"{TERMS[part].title}: {share:.3g} % of the measured step" if share > 0 else "No timer splits this"
    return (
        f"{measured}; the planner predicts {ratio:.3g} times the step"
        f" time and {memory_change(before.memory_bytes, after.memory_bytes)}"
    )


def memory_change(before: float, after: float) -> str:
    """Return two sizes in one unit and with one number of decimals; one size where they hardly differ."""
    low, high = sorted((before / 2**30, after / 2**30))
    decimals = max(0, 2 - math.floor(math.log10(low))) if low > 0 else 2
    if high - low < _SAME * high:
        return f"as much memory, {after / 2**30:.{decimals}f} GiB"
    return f"{after / 2**30:.{decimals}f} GiB instead of {before / 2**30:.{decimals}f} GiB"
