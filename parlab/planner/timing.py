"""Predict the time of one iteration, part by part.

Matrix products follow a roofline (Williams et al. 2009): FLOPs at the compute ceiling plus bytes at the memory
bandwidth. Sources of the counts: Narayanan et al. 2021 (SC21), Korthikanti et al. 2022; see docs/planner.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .cluster import Cluster
from .hardware import Gpu
from .memory import layers_of_stage
from .parameters import TimeParameters
from .workload import Job

_SMOOTH = 4.0
"""Order of the norm that combines two concurrent durations: slightly more than the longer one."""
_BUBBLES = {"zb-h1": 0.5, "zb-h2": 0.05, "zb-v": 0.05}
"""Bubble of zero-bubble schedules relative to 1F1B (Qi et al. 2023, tables 3 to 5: bubble rates)."""
_FP32_SHARE = 0.9
"""Share of the peak that large fp32 products reach outside of matrix units."""
_USUAL_SHARE = 0.8
"""Share of the peak of matrix units without a measurement; A100 and H100 reach 0.87 and 0.80."""
_SCORES_BYTES = (12.0, 16.0)
"""Bytes per attention score moved by unfused attention, forward and backward, at 2 bytes per value."""


@dataclass(frozen=True)
class Timing:
    """Time of one iteration on the slowest rank (s), in parts that add up to `total_s`."""

    compute_s: float
    bubble_s: float
    tensor_s: float
    pipeline_s: float
    data_s: float
    hidden_s: float
    """Communication that overlaps with computation; not included in the total."""
    optimizer_s: float
    other_s: float

    @property
    def total_s(self) -> float:
        """Time of one iteration."""
        return (
            self.compute_s
            + self.bubble_s
            + self.tensor_s
            + self.pipeline_s
            + self.data_s
            + self.optimizer_s
            + self.other_s
        )


@dataclass(frozen=True)
class Clock:
    """The time model for one job, cluster and set of parameters; all times in seconds."""

    job: Job
    cluster: Cluster
    parameters: TimeParameters

    def _share(self, efficiency: float) -> float:
        """Return the share of the bandwidth between nodes that messages reach."""
        return self.parameters.shaped_efficiency if self.cluster.between.is_measured else efficiency

    @cached_property
    def _flops_s(self) -> float:
        return ceiling(self.cluster, self.job.precision) * self.parameters.matmul_efficiency

    @cached_property
    def _bytes_s(self) -> float:
        return self.cluster.device.memory_bandwidth * self.parameters.memory_efficiency

    def _matmul(self, rows: float, columns: float, inner: float) -> float:
        moved = self.job.value_bytes * (rows * columns + columns * inner + inner * rows)
        traffic_s = moved * self.parameters.matmul_traffic / self.cluster.device.memory_bandwidth
        return 2 * rows * columns * inner / self._flops_s + traffic_s

    @cached_property
    def _tokens(self) -> float:
        return float(self.job.micro_batch_size * self.job.model.sequence_length)

    @cached_property
    def _matmuls_s(self) -> float:
        """Time of the forward matrix products of one layer on one rank."""
        model, tensor = self.job.model, self.job.tensor_parallel
        rows, hidden = self._tokens, model.hidden_size
        total = self._matmul(rows, (hidden + 2 * model.kv_size) / tensor, hidden)
        total += self._matmul(rows, hidden, hidden / tensor)
        rows *= model.experts_per_token
        total += self._matmul(rows, (model.mlp_matrices - 1) * model.ffn_size / tensor, hidden)
        return total + self._matmul(rows, hidden, model.ffn_size / tensor)

    @cached_property
    def _attention_s(self) -> tuple[float, float]:
        """Time of the attention core of one layer (scores and context), forward and backward."""
        job, model = self.job, self.job.model
        pairs = job.micro_batch_size * model.sequence_length**2 / job.tensor_parallel
        flops = 4 * pairs * model.hidden_size
        slow = self.parameters.misaligned_slowdown if model.head_size % 8 and job.precision != "fp32" else 1.0
        rate = min(self._flops_s, ceiling(self.cluster, "bf16") * self.parameters.matmul_efficiency)
        if job.has_flash_attention:
            flops *= 0.5 if model.is_causal else 1.0
            return flops / rate, 2.5 * flops / rate
        scores = pairs * model.num_heads * job.value_bytes / 2 / self._bytes_s
        forward, backward = (scores * count for count in _SCORES_BYTES)
        return slow * flops / rate + forward, 2 * slow * flops / rate + backward

    @cached_property
    def _pointwise_s(self) -> float:
        """Time of norms, residuals, dropout and activation function of one layer, forward."""
        job, model = self.job, self.job.model
        replicated = 22 * model.hidden_size / (job.tensor_parallel if job.sequence_parallel else 1)
        split = 4 * model.ffn_size * (model.mlp_matrices - 1) * model.experts_per_token / job.tensor_parallel
        return self._tokens * (replicated + split) * job.value_bytes / 2 / self._bytes_s

    @cached_property
    def layer_s(self) -> tuple[float, float]:
        """Time of one micro batch in one layer, forward and backward with recomputation, without messages."""
        attention_forward, attention_backward = self._attention_s
        forward = self._matmuls_s + self._pointwise_s + attention_forward
        backward = 2 * (self._matmuls_s + self._pointwise_s) + attention_backward
        passes = 2
        if self.job.recompute == "full":
            backward += forward
            passes = 3
        elif self.job.recompute == "selective" and not self.job.has_flash_attention:
            backward += attention_forward
        host = self.parameters.host_s
        return _longer(forward, host), _longer(backward, host * (passes - 1))

    @cached_property
    def head_s(self) -> float:
        """Time of logits and loss of one micro batch on the last stage, forward and backward."""
        job, model = self.job, self.job.model
        logits = model.vocab_size / job.tensor_parallel
        return 3 * self._matmul(self._tokens, logits, model.hidden_size) + 24 * self._tokens * logits / self._bytes_s

    @cached_property
    def tensor_layer_s(self) -> float:
        """Time of the tensor parallel all-reduces of one micro batch and layer."""
        job, tensor = self.job, self.job.tensor_parallel
        if tensor == 1:
            return 0.0
        count = 6 if job.recompute == "full" else 4
        size = job.value_bytes * self._tokens * job.model.hidden_size
        return count * self._all_reduce_s(size, tensor, tensor)

    def _all_reduce_s(self, size: float, ranks: int, span: int) -> float:
        """Return the time of a ring all-reduce of `size` bytes among ranks spread over `span` neighbouring devices."""
        bandwidth, latency = self.ring(ranks, span)
        return 2 * (ranks - 1) / ranks * size / bandwidth + 2 * (ranks - 1) * latency

    def _is_between(self, span: int) -> bool:
        return span > self.cluster.gpus_per_node and self.cluster.nodes > 1

    def ring(self, ranks: int, span: int) -> tuple[float, float]:
        """Return bandwidth (bytes/s) and latency per hop (s) of a ring of ranks on `span` neighbouring devices."""
        cluster = self.cluster
        inside = cluster.inside.bandwidth * self.parameters.inside_efficiency
        if not self._is_between(span):
            return inside, cluster.inside.latency_s
        members = max(1, min(cluster.gpus_per_node, cluster.gpus_per_node * ranks // span))
        rings = cluster.gpus_per_node / members
        between = cluster.between.bandwidth * self._share(self.parameters.between_efficiency) / rings
        nodes = max(1, ranks // members)
        latency = cluster.between.latency_s * nodes / ranks + cluster.inside.latency_s
        return min(inside, between), latency

    def timing(self) -> Timing:
        """Return all parts of the iteration."""
        job = self.job
        micro_batches, stages = job.num_micro_batches, job.pipeline_parallel
        forward, backward = self.layer_s
        layer = forward + backward
        tensor = self.tensor_layer_s
        most, last = stage_layers(job.model.num_layers, stages)
        inner = most * (layer + tensor)
        final = last * (layer + tensor) + self.head_s
        slowest = max(inner, final) if stages > 1 else final
        through = (stages - 1) * inner + final
        bubble_s = self._bubble_s(through - slowest)
        pipeline_s = self._pipeline_s(slowest, self._hop_s())
        tensor_s = micro_batches * most * tensor
        compute_s = micro_batches * slowest - tensor_s
        data_s, hidden_s = self._data_s(compute_s)
        return Timing(
            compute_s, bubble_s, tensor_s, pipeline_s, data_s, hidden_s, self._optimizer_s(), self.parameters.step_s
        )

    def _bubble_s(self, others_s: float) -> float:
        """Return the time a stage waits while the pipeline fills and drains.

        `others_s` is the time of one micro batch on all other stages.
        """
        job = self.job
        chunks = job.virtual_stages if job.schedule == "interleaved-1f1b" else 1
        return others_s * _BUBBLES.get(job.schedule, 1.0) / chunks

    def _hop_s(self) -> tuple[float, float]:
        """Return transfer time and latency of the activations of one micro batch between two stages."""
        job, cluster = self.job, self.cluster
        # Tensor parallel ranks hold the same activations, so each sends a part (Narayanan et al. 2021, section 4.1).
        size = job.value_bytes * self._tokens * job.model.hidden_size / job.tensor_parallel
        if job.tensor_parallel * job.data_parallel * job.pipeline_parallel <= cluster.gpus_per_node:
            return size / (cluster.inside.bandwidth * self.parameters.inside_efficiency), cluster.inside.latency_s
        share = cluster.between.bandwidth / min(cluster.gpus_per_node, job.tensor_parallel * job.data_parallel)
        return size / (share * self.parameters.shaped_efficiency), cluster.between.latency_s

    def _pipeline_s(self, slowest_s: float, hop_s: tuple[float, float]) -> float:
        """Return the time that messages between stages add to the iteration."""
        job = self.job
        stages, micro_batches = job.pipeline_parallel, job.num_micro_batches
        if stages == 1:
            return 0.0
        transfer_s, latency_s = hop_s
        message_s = transfer_s + latency_s
        fill = 2 * (stages - 1) * message_s
        if job.schedule == "gpipe":
            forward, backward = self.layer_s
            share = forward / (forward + backward)
            period = max(slowest_s * share, transfer_s) + max(slowest_s * (1 - share), transfer_s)
            return fill + (micro_batches - 1) * (period - slowest_s)
        chunks = job.virtual_stages if job.schedule == "interleaved-1f1b" else 1
        return fill + (micro_batches - 1) * 2 * chunks * message_s * (stages - 1) / stages

    def _data_s(self, compute_s: float) -> tuple[float, float]:
        """Return exposed and hidden time of data parallel communication: gradients, and weights under ZeRO-3."""
        job = self.job
        ranks = job.data_parallel
        if ranks == 1:
            return 0.0, 0.0
        rank_parameters = job.model.parameters / (job.tensor_parallel * job.pipeline_parallel)
        span = job.tensor_parallel * ranks
        bandwidth, latency = self.ring(ranks, span)
        share = (ranks - 1) / ranks
        if job.zero_stage == 3:
            if not (self._is_between(span) and self.cluster.between.is_measured):
                efficiency = self.parameters.between_efficiency
                bandwidth /= efficiency if self._is_between(span) else self.parameters.inside_efficiency
                bandwidth *= self.parameters.sharded_efficiency
            # Layers are gathered ahead of use, so that only a few latencies are exposed.
            gather = rank_parameters * job.value_bytes * share / bandwidth + 3 * (ranks - 1) * latency
            seconds = gather * 3 * job.num_micro_batches
            exposed = seconds if self.cluster.device.is_cpu else _longer(seconds, compute_s) - compute_s
            return exposed, seconds - exposed
        # ZeRO-2 reduces the gradients after every micro batch, since no rank stores the full gradients.
        rounds = (1 + job.num_micro_batches) / 2 if job.zero_stage == 2 else 1.0
        size = rank_parameters * (job.gradient_bytes or job.value_bytes) * rounds
        seconds = 2 * share * size / bandwidth + 2 * (ranks - 1) * latency * job.gradient_messages
        if not job.overlaps_gradients or self.cluster.device.is_cpu:
            return seconds, 0.0
        backward_s = compute_s * 2 / 3
        exposed = _longer(seconds, backward_s) - backward_s
        return exposed, seconds - exposed

    def _optimizer_s(self) -> float:
        job = self.job
        rank_parameters = job.model.parameters / (job.tensor_parallel * job.pipeline_parallel)
        if job.zero_stage:
            rank_parameters /= job.data_parallel
        return rank_parameters * 32 / self._bytes_s


def stage_layers(layers: int, stages: int) -> tuple[int, int]:
    """Return the number of layers of the largest stage, and of the last one."""
    most = max(layers_of_stage(layers, stages, stage) for stage in {0, min(1, stages - 1)})
    return most, layers_of_stage(layers, stages, stages - 1)


def ceiling(cluster: Cluster, precision: str) -> float:
    """Return the FLOP/s that large matrix products reach on the device.

    The measured ratio to the bf16 peak applies to all precisions with matrix units. Raises ValueError if the device has
    no peak for the precision or a substitute.
    """
    device = cluster.device
    peaks = device.peak_flops
    for name in (precision, {"bf16": "fp16", "fp16": "bf16", "fp8": "bf16"}.get(precision, "fp32"), "fp16", "fp32"):
        if name in peaks:
            return peaks[name] * (_FP32_SHARE if name == "fp32" else matrix_share(device))
    raise ValueError(f"precision {precision!r} is not supported by {device.name}; use {', '.join(peaks)}")


def matrix_share(device: Gpu) -> float:
    """Return the measured share of the matrix units' peak that large products reach, or the usual share."""
    peak = device.peak_flops.get("bf16") or device.peak_flops.get("fp16")
    if device.matmul_ceiling_flops is None or not peak:
        return _USUAL_SHARE
    return device.matmul_ceiling_flops / peak


def _longer(first: float, second: float) -> float:
    return float((first**_SMOOTH + second**_SMOOTH) ** (1 / _SMOOTH))
