"""Generate the layouts of a job on a cluster, for a search to predict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from parlab.planner.job.cluster import Cluster
from parlab.planner.job.workload import Job, Overlap, Schedule

_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_CHUNKS = (2, 4, 8)
_SHORTEST_PART = 4096
"""Fewest tokens of a sequence that each context parallel rank keeps."""
_FEW_EXPERTS = 8
"""Up to this number of experts, which are large then, layouts without expert parallelism and with experts that tensor
parallel ranks share (not with FSDP) are tried as well."""
_MOST_EXPERT_RANKS = 64
"""Ranks of the largest expert parallel groups across nodes of eight (DeepSeek-V3 report 2024, section 3.2)."""
_TWO_CHUNKS = ("zb-v", "dualpipe", "dualpipe-v")
"""Schedules in which each rank has two parts of the layers."""
OverlapOf = Callable[[Schedule, int, int], Overlap]
"""What overlaps in a layout with a schedule, chunks and ZeRO stage; None: as in the job, and gradients in FSDP."""


def families(job: Job, cluster: Cluster, overlap: OverlapOf | None = None) -> Iterator[list[Job]]:
    """Generate layouts that use all GPUs of the cluster, without recomputation.

    The layouts of a family differ only in their micro batches, smallest first, so that none after the first that does
    not fit can fit.
    """
    overlap = overlap or _overlap_of(job)
    for split in _splits(job, cluster):
        for sharded in _shards(split, cluster):
            for experts in _expert_sizes(sharded, cluster):
                yield from _schedules(experts, job.schedule, overlap)


def _splits(job: Job, cluster: Cluster) -> Iterator[Job]:
    """Generate the tensor, context, pipeline and data parallel sizes."""
    gpus, model = cluster.gpus, job.model
    for tensor in _divisors(gpus):
        # Tensor parallel ranks without fast links among them would wait for the network in every layer.
        if cluster.domain % tensor or model.num_heads % tensor or (model.num_kv_heads or tensor) % tensor:
            continue
        for context in _context_sizes(job, gpus // tensor):
            for pipeline in _divisors(gpus // (tensor * context)):
                replicas = gpus // (tensor * pipeline * context)
                if pipeline > model.num_layers or job.global_batch_size % replicas:
                    continue
                yield replace(
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
                )


def _context_sizes(job: Job, ranks: int) -> Iterator[int]:
    """Generate context parallel sizes that leave each rank a part of the sequence worth exchanging."""
    yield 1
    size = 2
    while ranks % size == 0 and job.model.sequence_length // size >= _SHORTEST_PART:
        yield size
        size *= 2


def _shards(split: Job, cluster: Cluster) -> Iterator[Job]:
    """Generate what the replicas partition: the optimizer (ZeRO 1), or all states (FSDP, and HSDP within a domain).

    With a pipeline FSDP keeps its gathered weights until the end of the iteration, since it would gather them again for
    each micro batch otherwise.
    """
    if split.replicas == 1:
        yield replace(split, zero_stage=0, reshards_after_forward=True)
        return
    yield replace(split, zero_stage=1, reshards_after_forward=True)
    fsdp = replace(split, zero_stage=3, reshards_after_forward=split.pipeline_parallel == 1)
    yield fsdp
    within = cluster.domain // split.tensor_parallel
    if split.pipeline_parallel == 1 and 1 < within < split.replicas and split.replicas % within == 0:
        yield replace(fsdp, shard_ranks=within)


def _expert_sizes(job: Job, cluster: Cluster) -> Iterator[Job]:
    """Generate expert parallel sizes: powers of two within two domains, with small domains of up to eight nodes."""
    experts, ranks = job.model.num_experts, job.tensor_parallel * job.replicas
    if experts == 1:
        yield job
        return
    is_shared = experts <= _FEW_EXPERTS and job.tensor_parallel > 1 and job.zero_stage < 3
    shared = (1, job.tensor_parallel) if is_shared else (1,)
    most = max(2 * cluster.domain, _MOST_EXPERT_RANKS)
    for tensor in shared:
        size = 1
        while experts % size == 0 and ranks % (size * tensor) == 0 and size * tensor <= most:
            if size > 1 or ranks == 1 or experts <= _FEW_EXPERTS:
                yield replace(job, expert_parallel=size, expert_tensor_parallel=tensor)
            size *= 2


def _schedules(job: Job, stated: Schedule, overlap: OverlapOf) -> Iterator[list[Job]]:
    """Generate a family for each schedule: 1F1B, interleaved 1F1B, and the one that the question states.

    Few trainers have zero-bubble schedules and DualPipe, so that only a question that names one gets it. Uneven stages
    are allowed: the embedding and the logits count as layers.
    """
    stages, layers = job.pipeline_parallel, job.model.num_layers
    options: list[tuple[Schedule, int]] = [("1f1b", 1)]
    if stages > 1:
        options += [("interleaved-1f1b", chunks) for chunks in _CHUNKS if stages * chunks <= layers + 2]
        parts = 2 * stages if stated in _TWO_CHUNKS else stages
        is_odd = stated.startswith("dualpipe") and stages % 2
        if stated not in ("1f1b", "interleaved-1f1b") and parts <= layers and not is_odd:
            options.append((stated, 1))
    for schedule, chunks in options:
        family = replace(job, schedule=schedule, virtual_stages=chunks, **overlap(schedule, chunks, job.zero_stage))
        sizes = list(_micro_batches(family))
        if sizes:
            yield [replace(family, micro_batch_size=size) for size in sizes]


def _micro_batches(job: Job) -> Iterator[int]:
    """Generate micro batch sizes; one sequence may leave fewer micro batches than stages, more sequences may not.

    Interleaved schedules need a multiple of the stages.
    """
    share, stages = job.global_batch_size // job.data_parallel, job.pipeline_parallel
    for size in _MICRO_BATCHES:
        count, rest = divmod(share, size)
        is_short = count < stages and (size > 1 or job.chunks > 1)
        if rest or not count or is_short or (job.chunks > 1 and count % stages):
            continue
        yield size


def _overlap_of(job: Job) -> OverlapOf:
    """Return the overlap of a job for all of its layouts; FSDP gathers weights ahead of their use."""

    def overlap(_schedule: Schedule, _chunks: int, zero: int) -> Overlap:
        return Overlap(
            overlaps_gradients=job.overlaps_gradients or zero == 3,
            overlaps_tensor=job.overlaps_tensor,
            overlaps_experts=job.overlaps_experts,
            overlaps_pipeline=job.overlaps_pipeline,
            has_cuda_graphs=job.has_cuda_graphs,
            dispatcher=job.dispatcher,
        )

    return overlap


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
