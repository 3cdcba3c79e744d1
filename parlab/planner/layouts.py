"""The layouts of a job on a cluster, ranked by predicted time, each loser with the reason why it loses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .calibration import Calibration, default_for
from .cluster import Cluster
from .memory import memory
from .prediction import Prediction, predict_job
from .workload import Job, Recompute

_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_CHUNKS = (2, 4)
_LIGHTEST: tuple[Recompute, ...] = ("none", "selective", "full")
_PARTS = {
    "compute_s": "compute",
    "bubble_s": "pipeline bubble",
    "tensor_s": "tensor parallel messages",
    "pipeline_s": "messages between stages",
    "data_s": "data parallel messages",
    "optimizer_s": "optimizer",
    "other_s": "fixed cost",
}
MAX_LAYOUTS = 20_000
"""Predictions of one search; a search that would take more is refused."""


@dataclass(frozen=True)
class Layout:
    """One layout, its prediction, and why it is not the best one; empty for the best."""

    prediction: Prediction
    reason: str

    @property
    def job(self) -> Job:
        """The job in this layout."""
        return self.prediction.job


@dataclass(frozen=True)
class Search:
    """What a search found, the fastest first; layouts that do not fit come last, the smallest first."""

    fitting: list[Layout]
    too_large: list[Layout]
    tried: int


def search(job: Job, cluster: Cluster, calibration: Calibration | None = None) -> Search:
    """Predict layouts of a job on all GPUs of a cluster; its own layout, recomputation and ZeRO stage are ignored.

    Tried are tensor parallel sizes that divide heads and the GPUs of a node, pipelines of at most as many stages as
    layers, micro batches that are powers of two, 1F1B and interleaved 1F1B with 2 and 4 chunks, ZeRO 1, and 3 (without
    tensor and pipeline parallelism). Of the recomputation only the lightest that fits counts: more is only slower.
    """
    known = calibration or default_for(cluster)
    best: dict[tuple[int, ...], Prediction] = {}
    large: dict[tuple[int, ...], Prediction] = {}
    tried = 0
    for candidate in candidates(job, cluster):
        tried += 1
        if tried > MAX_LAYOUTS:
            raise ValueError(f"gpus {cluster.gpus} have more than {MAX_LAYOUTS} layouts; use fewer GPUs")
        chosen = _lightest(candidate, cluster, known)
        prediction = predict_job(chosen, cluster, known)
        key = (chosen.tensor_parallel, chosen.pipeline_parallel, chosen.data_parallel, chosen.zero_stage)
        kept, measure = (best, _seconds) if prediction.fits else (large, _bytes)
        if key not in kept or measure(prediction) < measure(kept[key]):
            kept[key] = prediction
    ranked = sorted(best.values(), key=_seconds)
    fitting = [Layout(one, why_slower(one, ranked[0]) if one is not ranked[0] else "") for one in ranked]
    unfit = sorted((one for key, one in large.items() if key not in best), key=_bytes)
    return Search(fitting, [Layout(one, one.reasons[0]) for one in unfit], tried)


def candidates(job: Job, cluster: Cluster) -> Iterator[Job]:
    """Layouts that use all GPUs of the cluster, with no recomputation yet."""
    gpus, model = cluster.gpus, job.model
    for tensor in _divisors(gpus):
        # A tensor parallel group that crosses nodes waits for the network in every layer.
        if cluster.gpus_per_node % tensor or model.num_heads % tensor or (model.num_kv_heads or tensor) % tensor:
            continue
        for pipeline in _divisors(gpus // tensor):
            replicas = gpus // (tensor * pipeline)
            if pipeline > model.num_layers or job.global_batch_size % replicas:
                continue
            split = replace(job, tensor_parallel=tensor, pipeline_parallel=pipeline, data_parallel=replicas)
            yield from _batches(split)


def _batches(job: Job) -> Iterator[Job]:
    share = job.global_batch_size // job.data_parallel
    stages, layers = job.pipeline_parallel, job.model.num_layers
    stage_options = (1, 3) if job.data_parallel > 1 and job.tensor_parallel == stages == 1 else (1,)
    for micro in _MICRO_BATCHES:
        if share % micro or share // micro < stages:
            continue
        for zero in stage_options if job.data_parallel > 1 else (0,):
            one = replace(
                job,
                micro_batch_size=micro,
                zero_stage=zero,
                recompute="none",
                sequence_parallel=job.tensor_parallel > 1,
                schedule="1f1b",
                virtual_stages=1,
            )
            yield one
            for chunks in _CHUNKS:
                if stages > 1 and layers % (stages * chunks) == 0 and (share // micro) % stages == 0:
                    yield replace(one, schedule="interleaved-1f1b", virtual_stages=chunks)


def _lightest(job: Job, cluster: Cluster, known: Calibration) -> Job:
    """The job with as little recomputation as fits; with all of it where nothing does."""
    room = cluster.device.memory_bytes * known.usable_share
    options = ("none", "full") if job.has_flash_attention else _LIGHTEST
    for recompute in options:
        tried = replace(job, recompute=recompute)
        if memory(tried, known.memory).total_bytes <= room:
            return tried
    return replace(job, recompute="full")


def why_slower(loser: Prediction, best: Prediction) -> str:
    """Name the part of the iteration that costs the loser most, against the best."""
    more = {name: getattr(loser.parts, name) - getattr(best.parts, name) for name in _PARTS}
    name = max(more, key=lambda part: more[part])
    late = loser.iteration_s - best.iteration_s
    words = f"{_PARTS[name]} {_duration(more[name])} longer"
    if name == "compute_s" and loser.job.recompute != best.job.recompute:
        words += f" with recomputation {loser.job.recompute}"
    elif name == "compute_s" and loser.job.micro_batch_size < best.job.micro_batch_size:
        words += f" in micro batches of {loser.job.micro_batch_size}"
    return f"{100 * late / best.iteration_s:.3g} % slower: {words}"


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _seconds(prediction: Prediction) -> float:
    return prediction.iteration_s


def _bytes(prediction: Prediction) -> float:
    return prediction.memory_bytes


def _divisors(number: int) -> list[int]:
    small = [one for one in range(1, int(number**0.5) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})
