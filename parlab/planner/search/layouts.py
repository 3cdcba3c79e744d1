"""Search the layouts of a job on a cluster and rank them by predicted time, with the reason why each is slower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from parlab.planner.calibration.calibration import Calibration, default_for
from parlab.planner.job.cluster import Cluster
from parlab.planner.job.practice import in_units_of
from parlab.planner.job.workload import Job, Recompute
from parlab.planner.prediction.fitting import CONFIDENT, is_confident
from parlab.planner.prediction.prediction import Prediction, predict_job

from .candidates import OverlapOf, families

_RECOMPUTES: tuple[Recompute, Recompute] = ("selective", "full")
_WEIGHTS: tuple[Recompute, ...] = ("none", "selective", "operations", "full")
_PARTS = {
    "compute_s": "compute",
    "bubble_s": "pipeline bubble",
    "tensor_s": "tensor parallel messages",
    "context_s": "context parallel messages",
    "expert_s": "expert parallel messages",
    "pipeline_s": "messages between stages",
    "data_s": "data parallel messages",
    "optimizer_s": "optimizer",
    "other_s": "fixed cost",
}
MAX_LAYOUTS = 20_000
"""Upper limit of predictions in one search; a larger search is refused."""
LISTED = 20
"""Layouts that a search lists at least, if so many fit: with fewer splits also other micro batches and schedules."""
LAUNCH_S = 600.0
"""Usual time from the start of a job on many nodes until its first iteration, in which it runs out of memory (s)."""
_LEAST_CHANCE = 0.05
"""Probability of fitting below which a layout is no risk worth naming."""
_RISEN = 1.02
"""Time relative to that of smaller micro batches from which on larger ones are not tried."""


@dataclass(frozen=True)
class Layout:
    """One layout, its prediction, and why it is not the best (`reason`; empty for the best)."""

    prediction: Prediction
    reason: str

    @property
    def job(self) -> Job:
        """The job in this layout."""
        return self.prediction.job


@dataclass(frozen=True)
class Risk:
    """A faster layout that may run out of memory, and what trying it costs and gains."""

    layout: Layout
    lost_s: float
    """Expected time that failed launches cost (s): the probability of running out of memory x the time of a launch."""
    gained_s: float | None
    """Time that each iteration gains if it fits, over the best layout that surely fits (s); None without one."""

    @property
    def iterations(self) -> float | None:
        """Iterations after which the expected gain exceeds the expected loss; None without a layout to compare with."""
        if not self.gained_s:
            return None
        return self.lost_s / (self.gained_s * self.layout.prediction.fits_probability)


@dataclass(frozen=True)
class Search:
    """Layouts that fit with the wanted probability, fastest first, and others, smallest first."""

    fitting: list[Layout]
    too_large: list[Layout]
    tried: int
    risky: Risk | None = None
    """The fastest layout at any risk, if it is faster than the best of `fitting`."""


def search(
    job: Job,
    cluster: Cluster,
    calibration: Calibration | None = None,
    overlap: OverlapOf | None = None,
    listed: int = LISTED,
    confidence: float = CONFIDENT,
    near: Job | None = None,
) -> Search:
    """Predict layouts of a job on all GPUs of a cluster, ignoring the job's own sizes, recomputation and ZeRO stage.

    A layout is offered if its probability of fitting is at least `confidence`; the fastest that is less likely to fit
    is `risky`. `candidates` describes the layouts. Of the job count its schedule and its offloading, which few trainers
    have: a search covers them only if the job has them. Each layout uses the lightest recomputation that fits, since
    more recomputation is only slower. The fastest `listed` splits are exact; a layout that would be slower than these
    even without recomputation is dropped before its memory is reduced, and so are larger micro batches once they are
    slower. `near` limits the search to layouts whose tensor, pipeline, context and expert parallel sizes differ from
    those of another job by a factor of at most two: for the best layout on half or twice as many GPUs.
    Raises ValueError for more than MAX_LAYOUTS layouts.
    """
    job = in_units_of(job, cluster.device)
    constants = calibration or default_for(cluster)
    ranking, risks = _Ranking(listed, confidence), _Risks()
    tried = 0
    for family in families(job, cluster, overlap):
        if near is not None and not _is_near(family[0], near):
            continue
        fastest = inf
        for candidate in family:
            tried += 1
            if tried > MAX_LAYOUTS:
                raise ValueError(f"gpus {cluster.gpus} allow more than {MAX_LAYOUTS} layouts; use fewer GPUs")
            prediction = predict_job(candidate, cluster, constants)
            if prediction.iteration_s > ranking.cutoff_s:
                if prediction.iteration_s > fastest:
                    break
                fastest = prediction.iteration_s
                continue
            if prediction.fits_probability < confidence:
                risks.add(prediction)
                prediction = _lightest(candidate, cluster, constants, confidence, has_offload=job.offloads_activations)
            ranking.add(prediction)
            if prediction.fits_probability < confidence or prediction.iteration_s > _RISEN * fastest:
                break
            fastest = min(fastest, prediction.iteration_s)
    by_time, by_size = ranking.fitting(), ranking.too_large()
    return Search(
        [
            Layout(prediction, why_slower(prediction, by_time[0]) if index else "")
            for index, prediction in enumerate(by_time)
        ],
        [Layout(prediction, prediction.reasons[0]) for prediction in by_size],
        tried,
        risks.fastest(by_time[0] if by_time else None),
    )


def _is_near(job: Job, other: Job) -> bool:
    pairs = (
        (job.tensor_parallel, other.tensor_parallel),
        (job.pipeline_parallel, other.pipeline_parallel),
        (job.context_parallel, other.context_parallel),
        (job.expert_parallel, other.expert_parallel),
    )
    return (job.zero_stage == 3) == (other.zero_stage == 3) and all(one <= 2 * two <= 4 * one for one, two in pairs)


class _Risks:
    """The fastest layout that may run out of memory."""

    def __init__(self) -> None:
        self._fastest: Prediction | None = None

    def add(self, prediction: Prediction) -> None:
        is_faster = self._fastest is None or prediction.iteration_s < self._fastest.iteration_s
        if is_faster and prediction.fits_probability >= _LEAST_CHANCE:
            self._fastest = prediction

    def fastest(self, best: Prediction | None) -> Risk | None:
        """Return the risk, if it promises to be faster than the best layout that is confident to fit."""
        risky = self._fastest
        if risky is None or (best is not None and risky.iteration_s >= best.iteration_s):
            return None
        gained_s = best.iteration_s - risky.iteration_s if best else None
        lost_s = (1 - risky.fits_probability) * LAUNCH_S
        reason = f"{risky.fits_probability:.0%} likely to fit; failed launches cost {_duration(lost_s)} on average"
        return Risk(Layout(risky, reason), lost_s, gained_s)


class _Ranking:
    """The best layout of each split; a layout slower than `cutoff_s` cannot be listed."""

    def __init__(self, listed: int, confidence: float) -> None:
        self._listed = listed
        self._confidence = confidence
        self._fitting: list[Prediction] = []
        self._fastest: dict[tuple[int, ...], float] = {}
        self._smallest: dict[tuple[int, ...], Prediction] = {}
        self.cutoff_s = inf

    def add(self, prediction: Prediction) -> None:
        key, seconds = _split(prediction), prediction.iteration_s
        if prediction.fits_probability < self._confidence:
            if key not in self._smallest or prediction.memory_bytes < self._smallest[key].memory_bytes:
                self._smallest[key] = prediction
            return
        self._fitting.append(prediction)
        if seconds < self._fastest.get(key, inf):
            self._fastest[key] = seconds
            if len(self._fastest) >= self._listed:
                self.cutoff_s = sorted(self._fastest.values())[self._listed - 1]

    def fitting(self) -> list[Prediction]:
        """Return the fastest layout of each split, fastest first, and others if these are too few."""
        best: dict[tuple[int, ...], Prediction] = {}
        others = []
        for prediction in sorted(self._fitting, key=_seconds):
            if best.setdefault(_split(prediction), prediction) is not prediction:
                others.append(prediction)
        return sorted([*best.values(), *others[: max(0, self._listed - len(best))]], key=_seconds)

    def too_large(self) -> list[Prediction]:
        """Return the smallest layout of each split of which none fits, smallest first."""
        return sorted((entry for key, entry in self._smallest.items() if key not in self._fastest), key=_bytes)


def _split(prediction: Prediction) -> tuple[int, ...]:
    """Return what makes layouts different in kind; the others differ in micro batch and schedule."""
    layout = prediction.job
    return (
        layout.tensor_parallel,
        layout.pipeline_parallel,
        layout.data_parallel,
        layout.context_parallel,
        layout.expert_parallel,
        layout.expert_tensor_parallel,
        layout.zero_stage,
        layout.shards,
    )


def _lightest(
    job: Job, cluster: Cluster, calibration: Calibration, confidence: float, *, has_offload: bool
) -> Prediction:
    """Predict a job with the least recomputation that fits, with full recomputation if none fits.

    Of several that fit, each the lightest of its kind, the fastest counts.
    """
    options = _reduced(job, cluster, calibration, confidence, has_offload=has_offload)
    return min((predict_job(option, cluster, calibration) for option in options), key=_seconds)


def _reduced(
    job: Job, cluster: Cluster, calibration: Calibration, confidence: float, *, has_offload: bool
) -> list[Job]:
    """Return a job that does not fit with less memory: the lightest of each kind that fits, or all recomputed.

    From light to heavy: norms and activation functions, everything in some layers, everything in all layers. Where
    offloading helps, it is another way; for FSDP so is recomputing every second product, which torchtitan has.
    """

    def fits(option: Job) -> bool:
        return is_confident(option, cluster, calibration, confidence)

    selective, full = (replace(job, recompute=kind, recomputed_layers=None) for kind in _RECOMPUTES)
    if fits(selective):
        return [selective]
    others = [option for option in _other_ways(job, has_offload=has_offload) if fits(option)]
    if not fits(full):
        return others or [full]
    low, high = 0, -(-job.model.num_layers // job.pipeline_parallel)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(replace(full, recomputed_layers=middle)):
            high = middle
        else:
            low = middle
    partly = replace(full, recomputed_layers=high)
    return [*others, partly if fits(partly) else full]


def _other_ways(job: Job, *, has_offload: bool) -> Iterator[Job]:
    if has_offload:
        yield replace(job, offloads_activations=True)
    if job.zero_stage == 3:
        yield replace(job, recompute="operations")


def why_slower(slower: Prediction, best: Prediction) -> str:
    """Describe how much slower a layout is than the best one, and which part of the iteration grew most."""
    excess = {name: getattr(slower.parts, name) - getattr(best.parts, name) for name in _PARTS}
    name = max(excess, key=lambda part: excess[part])
    reason = f"{_PARTS[name]} {_duration(excess[name])} longer"
    heavier = _WEIGHTS.index(slower.job.recompute) > _WEIGHTS.index(best.job.recompute)
    if name == "compute_s" and heavier:
        reason += f" with recomputation {slower.job.recompute}"
    elif name == "compute_s" and slower.job.micro_batch_size < best.job.micro_batch_size:
        reason += f" with micro batches of {slower.job.micro_batch_size}"
    return f"{_three(100 * (slower.iteration_s / best.iteration_s - 1))} % slower: {reason}"


def _duration(seconds: float) -> str:
    return f"{_three(seconds)} s" if seconds >= 1 else f"{_three(seconds * 1e3)} ms"


def _three(value: float) -> str:
    """Write three digits, also zeros at the end."""
    return f"{value:#.3g}".rstrip(".")


def _seconds(prediction: Prediction) -> float:
    return prediction.iteration_s


def _bytes(prediction: Prediction) -> float:
    return prediction.memory_bytes
