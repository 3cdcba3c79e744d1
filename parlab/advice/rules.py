"""Rules: a measured step and the planner's prediction of its neighbours -> changes with their gain, ranked.

The gain is not the planner's step time but a change of the measured one: each measured term is multiplied by the ratio
of the planner's terms after and before the change. What the planner gets wrong for both configurations cancels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from parlab.planner import Calibration, Cluster, Job, Prediction, predict_job
from parlab.planner.timing import Timing

from .neighbours import KINDS, neighbours
from .terms import TERMS
from .waterfall import Waterfall

SMALLEST_GAIN = 0.02
"""Smaller gains are within the noise of most step times."""
SPREADS = {"micro_batch": 0.11, "schedule": 0.07, "layout": 0.15, "recompute": 0.15, "zero": 0.15, "wire": 0.15}
"""Error that 80 % of the advised changes of a kind stay within, in shares of the step time (`make bench`). The
published sweeps vary neither recomputation nor ZeRO nor the wire alone: those have the widest of the others."""
_COMPUTE = ("ideal", "matrix_rate", "kernels", "compute", "recompute")
"""Terms of the waterfall that the planner's compute describes; its other parts are a term each."""
_PARTS = ("compute_s", "bubble_s", "tensor_s", "context_s", "pipeline_s", "data_s", "expert_s", "optimizer_s")
"""Parts of the planner's step time that have terms in the waterfall."""
_MOST = 8
_NOTICEABLE = 0.03
"""Share of the step from which waits and data loading are worth a look."""


class Advice(NamedTuple):
    """A change with its predicted gain."""

    kind: str
    title: str
    gain: float
    """Share of the step time that the change saves (0.1: the step takes 10 % less)."""
    low: float
    high: float
    """Interval of the gain that 80 % of such predictions stay within."""
    part: str
    """Key of the term that it comes from."""
    rule: str
    evidence: str
    settings: Mapping[str, Any]
    """Fields of the configuration with their new values; empty: not a setting."""

    @property
    def cost(self) -> str:
        return KINDS[self.kind].cost

    @property
    def risk(self) -> str:
        return KINDS[self.kind].risk

    @property
    def part_title(self) -> str:
        return TERMS[self.part].title

    def predicted_s(self, step_time_s: float) -> float:
        """Return the step time after the change (s)."""
        return step_time_s * (1 - self.gain)


@dataclass(frozen=True)
class Case:
    """A measured step with what its advice is computed from."""

    waterfall: Waterfall
    job: Job | None = None
    cluster: Cluster | None = None
    calibration: Calibration | None = None
    slowest: tuple[int, float] | None = None
    """Rank with the longest compute, and its excess over the median rank (0.2: 20 % longer)."""
    idle_host_share: float | None = None
    """Share of a traced step in which the device waits for the host."""


def advise(case: Case) -> list[Advice]:
    """Return the changes worth trying, the one with the highest certain gain first."""
    changes = [*_looks(case)]
    if case.job is not None and case.cluster is not None:
        changes += _changes(case, case.job, case.cluster)
    return sorted(changes, key=lambda advice: (-advice.low, -advice.gain))[:_MOST]


def _changes(case: Case, job: Job, cluster: Cluster) -> list[Advice]:
    before = predict_job(job, cluster, case.calibration)
    best: dict[str, Advice] = {}
    for neighbour in neighbours(job):
        try:
            after = predict_job(neighbour.job, cluster, case.calibration)
        except ValueError:
            continue
        if not after.fits:
            continue
        gain = gain_of(case.waterfall, before.parts, after.parts)
        spread = SPREADS[neighbour.kind]
        part = _part(case.waterfall, before.parts, after.parts)
        advice = Advice(
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
        if gain >= SMALLEST_GAIN and (neighbour.kind not in best or gain > best[neighbour.kind].gain):
            best[neighbour.kind] = advice
    return list(best.values())


def gain_of(waterfall: Waterfall, before: Timing, after: Timing) -> float:
    """Return the share of the measured step that a change saves; negative if it makes the step longer."""
    total_s, saved_s = waterfall.total_s, 0.0
    scale = total_s / before.total_s
    if not _is_measured(waterfall):
        return 1 - after.total_s / before.total_s
    for part in _PARTS:
        saved_s += _saved_s(waterfall, part, getattr(before, part), getattr(after, part), scale)
    return saved_s / total_s if total_s else 0.0


def _terms(part: str) -> tuple[str, ...]:
    return _COMPUTE if part == "compute_s" else (part.removesuffix("_s"),)


def _is_measured(waterfall: Waterfall) -> bool:
    return any(part.kind in ("measured", "derived") for part in waterfall.parts)


def _saved_s(waterfall: Waterfall, part: str, before_s: float, after_s: float, scale: float) -> float:
    """Return how much shorter a term gets. A term that the planner lacks before appears at the planner's size."""
    measured_s = sum(waterfall.ns(key) for key in _terms(part)) / 1e9
    if before_s > 0 and measured_s > 0:
        return measured_s * (1 - after_s / before_s)
    return min(1.0, scale) * (before_s - after_s) if before_s <= 0 else 0.0


def _part(waterfall: Waterfall, before: Timing, after: Timing) -> str:
    """Return the measured term that shrinks most."""
    scale = waterfall.total_s / before.total_s
    part = max(_PARTS, key=lambda name: _saved_s(waterfall, name, getattr(before, name), getattr(after, name), scale))
    keys = _terms(part)
    if part == "compute_s" and waterfall.ns("recompute") and after.compute_s < before.compute_s:
        recomputed_s = waterfall.ns("recompute") / 1e9
        if recomputed_s > 0.5 * (before.compute_s - after.compute_s) * scale:
            return "recompute"
    return max(keys, key=waterfall.ns)


def _evidence(waterfall: Waterfall, before: Prediction, after: Prediction, part: str) -> str:
    share = 100 * waterfall.share(part)
    ratio = after.iteration_s / before.iteration_s
    return (
        f"{TERMS[part].title} takes {share:.3g} % of the measured step; the planner predicts {ratio:.3g} times the step"
        f" time and {after.memory_bytes / 2**30:.3g} GiB instead of {before.memory_bytes / 2**30:.3g} GiB"
    )


def _looks(case: Case) -> list[Advice]:
    """Return advice that no setting follows: what the measurements alone show."""
    rows = []
    waiting = case.waterfall.share("straggler")
    if case.slowest is not None and waiting >= _NOTICEABLE and case.slowest[1] >= 0.1:
        rank, excess = case.slowest
        rows.append(
            Advice(
                "rank",
                f"Look at rank {rank}",
                waiting,
                0.5 * waiting,
                waiting,
                "straggler",
                "the others wait while the slowest rank computes",
                f"rank {rank} computes {100 * excess:.3g} % longer than the median rank",
                {},
            )
        )
    loading = case.waterfall.share("loading")
    if loading >= _NOTICEABLE:
        rows.append(
            Advice(
                "loading",
                "Load batches ahead with more data workers",
                loading,
                0.5 * loading,
                loading,
                "loading",
                "data loading that compute does not hide can be hidden",
                f"data loading takes {100 * loading:.3g} % of the step",
                {},
            )
        )
    if case.idle_host_share is not None and case.idle_host_share >= 0.1:
        share = case.idle_host_share
        rows.append(
            Advice(
                "host",
                "Launch fewer kernels: compile the model or record CUDA graphs",
                share,
                0.3 * share,
                share,
                "kernels",
                "the device waits for launches",
                f"in the trace the device waits for the host {100 * share:.3g} % of a step",
                {},
            )
        )
    return rows
