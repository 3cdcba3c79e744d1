"""Calculon's time model (Isaev et al. 2023, SC23), rebuilt from its paper and its published description of an A100.

It counts the operations of transformer blocks, each as FLOPs plus memory traffic at efficiencies that depend on their
size; embedding and logits are not part of it. Rows that it can express: dense GPTs in 16 bits on A100s with unfused
attention, 1F1B or interleaved 1F1B, without ZeRO-3.
"""

from __future__ import annotations

from parlab.planner.job.workload import Job
from parlab.planner.publications.rows import Row

_MATRIX = ((128e9, 0.95), (16e9, 0.9), (1e9, 0.6), (0.0, 0.1))
_VECTOR = ((16e9, 0.95), (1e9, 0.5), (0.0, 0.1))
_MEMORY = ((100e6, 0.9), (10e6, 0.75), (1e6, 0.6), (0.0, 0.3))
"""Size of an operation (FLOPs, bytes) -> efficiency; the first entry that is not larger counts."""
_MATRIX_FLOPS_S, _VECTOR_FLOPS_S, _BYTES_S = 312e12, 78e12, 2048e9
_INSIDE_S, _INSIDE_BYTES_S, _INSIDE_SCALE = 1e-6, 300e9 * 0.6, 2.0
_BETWEEN_S, _BETWEEN_BYTES_S, _BETWEEN_SCALE = 2e-6, 25e9 * 0.9, 1.0


def can_express(row: Row) -> bool:
    """Return whether Calculon can describe the row."""
    job = row.job
    return (
        row.cluster.device.name.startswith("A100")
        and job.model.is_plain
        and job.value_bytes == 2
        and not job.is_low_precision
        and not job.has_flash_attention
        and job.effective_zero < 3
        and job.schedule in ("1f1b", "interleaved-1f1b")
        and job.context_parallel == 1
        and row.measured.iteration_s is not None
    )


def iteration_s(job: Job) -> float:
    """Return the time of an iteration (s)."""
    forward, backward = _block(job)
    exchange = 2 * _all_reduce_s(2 * job.rank_tokens * job.model.hidden_size, job.tensor_parallel, is_inside=True)
    passes = 3 if job.recompute == "full" else 2
    repeated = forward if job.recompute == "full" else _scores(job)[0] if job.recompute == "selective" else 0.0
    blocks = job.model.num_layers / job.pipeline_parallel
    each = blocks * (forward + backward + repeated + passes * exchange)
    bubble = (job.pipeline_parallel - 1) * each / job.chunks
    hop = 2 * job.rank_tokens * job.model.hidden_size / job.tensor_parallel / _BETWEEN_BYTES_S + _BETWEEN_S
    hops = 2 * job.num_micro_batches * job.chunks * hop if job.pipeline_parallel > 1 else 0.0
    parameters = 12 * job.model.hidden_size**2 * blocks / job.tensor_parallel
    reduced = _all_reduce_s(2 * parameters, job.data_parallel, is_inside=False)
    return job.num_micro_batches * each + bubble + hops + reduced + _vector_s(11 * parameters, 32 * parameters)


def _block(job: Job) -> tuple[float, float]:
    """Return the time of a block, forward and backward."""
    hidden, tokens, tensor = job.model.hidden_size, job.rank_tokens, job.tensor_parallel
    sizes = ((hidden, 3 * hidden / tensor), (hidden / tensor, hidden), (hidden, 4 * hidden / tensor))
    products = [_product_s(tokens, inner, columns) for inner, columns in (*sizes, (4 * hidden / tensor, hidden))]
    share = tensor if job.sequence_parallel else 1
    wide = tokens * hidden / share
    # Two norms, two dropouts and two sums of the whole width, GeLU of the split one.
    pointwise = 2 * _vector_s(9 * wide, 4 * wide) + 2 * _vector_s(wide, 5 * wide) + 2 * _vector_s(wide, 6 * wide)
    pointwise += _vector_s(8 * 4 * tokens * hidden / tensor, 4 * 4 * tokens * hidden / tensor)
    scores_forward, scores_backward = _scores(job)
    forward = sum(products) + pointwise + scores_forward
    return forward, 2 * sum(products) + pointwise + scores_backward


def _scores(job: Job) -> tuple[float, float]:
    """Return the time of the attention core of a block, forward and backward."""
    model = job.model
    pairs = job.micro_batch_size * model.num_heads / job.tensor_parallel * model.sequence_length**2
    states = 2 * job.rank_tokens * model.hidden_size / job.tensor_parallel
    product = _rated_s(2 * pairs * model.head_size, _MATRIX, _MATRIX_FLOPS_S) + _memory_s(2 * (states + pairs))
    simple = _vector_s(5 * pairs, 4 * pairs) + _vector_s(pairs, 5 * pairs)
    return 2 * product + simple, 4 * product + simple


def _product_s(rows: float, inner: float, columns: float) -> float:
    flops = 2 * rows * inner * columns
    return _rated_s(flops, _MATRIX, _MATRIX_FLOPS_S) + _memory_s(2 * (rows * inner + inner * columns + rows * columns))


def _vector_s(flops: float, moved: float) -> float:
    return _rated_s(flops, _VECTOR, _VECTOR_FLOPS_S) + _memory_s(moved)


def _memory_s(moved: float) -> float:
    return _rated_s(moved, _MEMORY, _BYTES_S)


def _rated_s(amount: float, efficiencies: tuple[tuple[float, float], ...], rate: float) -> float:
    efficiency = next(value for size, value in efficiencies if amount >= size)
    return amount / (rate * efficiency)


def _all_reduce_s(size: float, ranks: int, *, is_inside: bool) -> float:
    if ranks == 1:
        return 0.0
    latency, bandwidth, scale = (
        (_INSIDE_S, _INSIDE_BYTES_S, _INSIDE_SCALE) if is_inside else (_BETWEEN_S, _BETWEEN_BYTES_S, _BETWEEN_SCALE)
    )
    return latency + scale * size * (ranks - 1) / ranks / bandwidth
