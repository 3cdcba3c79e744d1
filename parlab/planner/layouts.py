"""Search the layouts of a job on a cluster and rank them by predicted time, with the reason why each is slower."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .calibration import Calibration, default_for
from .cluster import Cluster
from .memory import memory
from .prediction import Prediction, predict_job
from .workload import Job, Overlap, Recompute, Schedule

_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_CHUNKS = (2, 4, 8)
_SHORTEST_PART = 4096
"""Fewest tokens of a sequence that each context parallel rank keeps."""
_FEW_EXPERTS = 8
"""Up to this number of experts, layouts without expert parallelism are tried as well."""
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
OverlapOf = Callable[[Schedule, int, int], Overlap]
"""What overlaps in a layout with a schedule, chunks and ZeRO stage; None: as in the job, and gradients in FSDP."""
MAX_LAYOUTS = 20_000
"""Upper limit of predictions in one search; a larger search is refused."""


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
class Search:
    """Layouts that fit, fastest first, and layouts that do not fit, smallest first."""

    fitting: list[Layout]
    too_large: list[Layout]
    tried: int


def search(
    job: Job, cluster: Cluster, calibration: Calibration | None = None, overlap: OverlapOf | None = None
) -> Search:
    """Predict layouts of a job on all GPUs of a cluster, ignoring the job's own layout, recomputation and ZeRO stage.

    The search covers tensor parallel sizes that divide the heads and the GPUs of a node, pipelines with at most one
    stage per layer, micro batches that are powers of two, 1F1B and interleaved 1F1B with 2 and 4 chunks, ZeRO 1, and
    ZeRO 3 without tensor and pipeline parallelism. Each layout uses the lightest recomputation that fits, since more
    recomputation is only slower. Raises ValueError for more than MAX_LAYOUTS layouts.
    """
    constants = calibration or default_for(cluster)
    fitting: dict[tuple[int, ...], Prediction] = {}
    too_large: dict[tuple[int, ...], Prediction] = {}
    tried = 0
    for candidate in candidates(job, cluster, overlap):
        tried += 1
        if tried > MAX_LAYOUTS:
            raise ValueError(f"gpus {cluster.gpus} allow more than {MAX_LAYOUTS} layouts; use fewer GPUs")
        layout = with_lightest_recompute(candidate, cluster, constants)
        prediction = predict_job(layout, cluster, constants)
        key = (
            layout.tensor_parallel,
            layout.pipeline_parallel,
            layout.data_parallel,
            layout.context_parallel,
            layout.expert_parallel,
            layout.zero_stage,
        )
        best, measure = (fitting, _seconds) if prediction.fits else (too_large, _bytes)
        if key not in best or measure(prediction) < measure(best[key]):
            best[key] = prediction
    by_time = sorted(fitting.values(), key=_seconds)
    by_size = sorted((prediction for key, prediction in too_large.items() if key not in fitting), key=_bytes)
    return Search(
        [
            Layout(prediction, why_slower(prediction, by_time[0]) if index else "")
            for index, prediction in enumerate(by_time)
        ],
        [Layout(prediction, prediction.reasons[0]) for prediction in by_size],
        tried,
    )


def candidates(job: Job, cluster: Cluster, overlap: OverlapOf | None = None) -> Iterator[Job]:
    """Generate layouts that use all GPUs of the cluster, without recomputation."""
    overlap = overlap or _overlap_of(job)
    gpus, model = cluster.gpus, job.model
    for tensor in _divisors(gpus):
        # Tensor parallel ranks on several nodes would wait for the network in every layer.
        if cluster.gpus_per_node % tensor or model.num_heads % tensor or (model.num_kv_heads or tensor) % tensor:
            continue
        for context in _context_sizes(job, gpus // tensor):
            for pipeline in _divisors(gpus // (tensor * context)):
                replicas = gpus // (tensor * pipeline * context)
                if pipeline > model.num_layers or job.global_batch_size % replicas:
                    continue
                split = replace(
                    job,
                    tensor_parallel=tensor,
                    pipeline_parallel=pipeline,
                    data_parallel=replicas,
                    context_parallel=context,
                    expert_parallel=1,
                    expert_tensor_parallel=1,
                    shard_ranks=None,
                    recomputed_layers=None,
                    first_stage_layers=None,
                    last_stage_layers=None,
                    offloads_activations=False,
                    recompute="none",
                    sequence_parallel=tensor > 1,
                    reshards_after_forward=pipeline == 1,
                )
                for experts in _expert_sizes(split, cluster):
                    yield from _batches(replace(split, expert_parallel=experts), overlap)


def _context_sizes(job: Job, ranks: int) -> Iterator[int]:
    """Generate context parallel sizes that leave each rank a part of the sequence worth exchanging."""
    yield 1
    size = 2
    while ranks % size == 0 and job.model.sequence_length // size >= _SHORTEST_PART:
        yield size
        size *= 2


def _expert_sizes(job: Job, cluster: Cluster) -> Iterator[int]:
    """Generate expert parallel sizes: powers of two within a domain, and one that spans domains."""
    experts, ranks = job.model.num_experts, job.tensor_parallel * job.replicas
    size = 1
    while experts > 1 and experts % size == 0 and ranks % size == 0 and size <= 2 * cluster.domain:
        if size > 1 or ranks == 1 or experts <= _FEW_EXPERTS:
            yield size
        size *= 2
    if experts == 1:
        yield 1


def _overlap_of(job: Job) -> OverlapOf:
    """Return the overlap of a job for all of its layouts; FSDP gathers weights ahead of their use."""

    def overlap(_schedule: Schedule, _chunks: int, zero: int) -> Overlap:
        return Overlap(
            overlaps_gradients=job.overlaps_gradients or zero == 3,
            overlaps_tensor=job.overlaps_tensor,
            overlaps_experts=job.overlaps_experts,
            overlaps_pipeline=job.overlaps_pipeline,
            has_cuda_graphs=job.has_cuda_graphs,
        )

    return overlap


def _batches(job: Job, overlap: OverlapOf) -> Iterator[Job]:
    """Generate the micro batch sizes, ZeRO stages and schedules of a split."""
    share = job.global_batch_size // job.data_parallel
    stages, layers = job.pipeline_parallel, job.model.num_layers
    # ZeRO 3 gathers the weights for every micro batch: with tensor and pipeline parallelism ZeRO 1 is faster.
    zero_stages = (1, 3) if job.tensor_parallel == stages == 1 else (1,)
    for micro in _MICRO_BATCHES:
        if share % micro or share // micro < stages:
            continue
        for zero in zero_stages if job.replicas > 1 else (0,):
            layout = replace(
                job,
                micro_batch_size=micro,
                zero_stage=zero,
                schedule="1f1b",
                virtual_stages=1,
                copies_logits=zero == 3,
                **overlap("1f1b", 1, zero),
            )
            yield layout
            if stages == 1 or (share // micro) % stages:
                continue
            # With one layer less on the first and the last stage, embedding and logits count as layers.
            even = layers + 2 if (layers + 2) % stages == 0 else layers
            for chunks in _CHUNKS:
                if even % (stages * chunks) == 0:
                    settled = overlap("interleaved-1f1b", chunks, zero)
                    yield replace(layout, schedule="interleaved-1f1b", virtual_stages=chunks, **settled)


def with_lightest_recompute(job: Job, cluster: Cluster, calibration: Calibration) -> Job:
    """Return the job with the least recomputation that fits, with full recomputation if none fits.

    Between selective and full recomputation lies full recomputation of half of the layers.
    """
    capacity = cluster.device.memory_bytes * calibration.usable_share
    half = -(-job.model.num_layers // (2 * job.pipeline_parallel))
    options: tuple[tuple[Recompute, int | None], ...] = (("none", None), ("selective", None), ("full", half))
    for recompute, layers in options:
        candidate = replace(job, recompute=recompute, recomputed_layers=layers)
        if memory(candidate, calibration.memory, cluster.domain).total_bytes <= capacity:
            return candidate
    return replace(job, recompute="full", recomputed_layers=None)


def why_slower(slower: Prediction, best: Prediction) -> str:
    """Describe how much slower a layout is than the best one, and which part of the iteration grew most."""
    excess = {name: getattr(slower.parts, name) - getattr(best.parts, name) for name in _PARTS}
    name = max(excess, key=lambda part: excess[part])
    reason = f"{_PARTS[name]} {_duration(excess[name])} longer"
    if name == "compute_s" and slower.job.recompute != best.job.recompute:
        reason += f" with recomputation {slower.job.recompute}"
    elif name == "compute_s" and slower.job.micro_batch_size < best.job.micro_batch_size:
        reason += f" with micro batches of {slower.job.micro_batch_size}"
    return f"{100 * (slower.iteration_s / best.iteration_s - 1):.3g} % slower: {reason}"


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _seconds(prediction: Prediction) -> float:
    return prediction.iteration_s


def _bytes(prediction: Prediction) -> float:
    return prediction.memory_bytes


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
