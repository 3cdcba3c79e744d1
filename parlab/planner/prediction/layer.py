"""Time of one layer and one micro batch on one rank, part by part (s).

Matrix products follow a roofline (Williams et al. 2009): FLOPs at the compute ceiling plus bytes at the memory
bandwidth. Sources of the counts: Narayanan et al. 2021 (SC21), Korthikanti et al. 2022; see docs/understand/planner.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from parlab.planner.job.cluster import Cluster, host_bandwidth
from parlab.planner.job.hardware import Gpu
from parlab.planner.job.workload import Job

from .attention import fused_share
from .dispatch import KERNELS, Kernels
from .links import SENDING_SHARE, Links
from .memory import activation_bytes
from .parameters import TimeParameters

SMOOTH = 4.0
"""Order of the norm that combines two concurrent durations: slightly more than the longer one."""
_FP32_SHARE = 0.9
"""Share of the peak that large fp32 products reach outside of matrix units."""
_USUAL_SHARE = 0.8
"""Share of the peak of matrix units without a measurement; A100 and H100 reach 0.87 and 0.80."""
_SCORES_BYTES = (12.0, 16.0)
"""Bytes per attention score moved by unfused attention, forward and backward, at 2 bytes per value."""
_CAST_BYTES = {"fp8": 4.0, "mxfp8": 4.0, "nvfp4": 8.0}
"""Bytes moved to quantise one value: read 2, write it and its transpose in 8 bits (Micikevicius et al. 2022); in 4 bits
a random Hadamard transform comes before (NVIDIA, Pretraining Large Language Models with NVFP4, 2025)."""
_GRAPH_SHARE = 0.25
"""Time of the processor with recorded kernels: a few graphs per layer are still launched one by one."""
_EXPERT_SHARE = 1 / 3
"""Time in which the processor launches the kernels of one MLP, relative to those of a layer."""
_WAITING = 2.0
"""Order of the norm of device and processor where the processor waits in each layer, so that it cannot run ahead."""
_EAGER_SCORES = 5 / 3
"""Bytes moved per score by eager attention relative to Megatron-LM's fused scale, mask and softmax: 20 to 12 forward,
27 to 16 backward."""
_UNFUSED = 2.0
"""Bytes moved by eager norms, rotary positions and activations relative to fused ones: intermediate values in fp32."""
_RECOMPUTED_SHARE = 0.5
"""Share of the matrix products that the recomputation of operations repeats: every second (torchtitan)."""


@dataclass(frozen=True)
class LayerClock:
    """The time model of one layer for one job, cluster and set of parameters."""

    job: Job
    cluster: Cluster
    parameters: TimeParameters

    @cached_property
    def links(self) -> Links:
        """The links of the cluster."""
        return Links(self.cluster, self.parameters)

    @cached_property
    def flops_s(self) -> float:
        """FLOP/s of the products of a layer."""
        rate = ceiling(self.cluster, self.job.precision) * self.parameters.matmul_efficiency
        return rate * self.parameters.low_precision_efficiency if self.has_low_precision else rate

    @cached_property
    def wide_flops_s(self) -> float:
        """FLOP/s of the products that are never in 8 bits: attention and logits."""
        if not self.has_low_precision:
            return self.flops_s
        return ceiling(self.cluster, "bf16") * self.parameters.matmul_efficiency

    @cached_property
    def has_low_precision(self) -> bool:
        """The device has matrix units for the 8 or 4 bits of the job."""
        return self.job.is_low_precision and self.cluster.device.peak(self.job.precision) is not None

    @cached_property
    def bytes_s(self) -> float:
        """Memory bandwidth that simple kernels reach."""
        return self.cluster.device.memory_bandwidth * self.parameters.memory_efficiency

    def product_s(self, rows: float, columns: float, inner: float, flops_s: float, copies: float = 1.0) -> float:
        """Return the time of a product; `copies` is the number of weight matrices (experts) that share the rows."""
        moved = self.job.value_bytes * (rows * columns + copies * columns * inner + inner * rows)
        traffic_s = moved * self.parameters.matmul_traffic / self.cluster.device.memory_bandwidth
        return 2 * rows * columns * inner / flops_s + traffic_s

    @cached_property
    def _dense_share(self) -> float:
        model = self.job.model
        return model.dense_layers / model.num_layers if model.num_experts > 1 else 1.0

    def _mlp_s(self, rows: float, width: float, copies: float = 1.0) -> float:
        model = self.job.model
        first = self.product_s(rows, (model.mlp_matrices - 1) * width, model.hidden_size, self.flops_s, copies)
        return first + self.product_s(rows, model.hidden_size, width, self.flops_s, copies)

    @cached_property
    def _matmuls_s(self) -> float:
        """Time of the forward matrix products of one layer on one rank, averaged over dense and expert layers."""
        job, model = self.job, self.job.model
        tensor, tokens = job.tensor_parallel, job.rank_tokens
        hidden = model.hidden_size
        total = 0.0
        for inner, columns in model.attention_products:
            # Products from the residual stream are split by columns, those into it by rows.
            by_rows = columns == hidden
            split = (columns, inner / tensor) if by_rows else (columns / tensor, inner)
            total += self.product_s(tokens, *split, self.flops_s)
        if model.num_experts == 1:
            return total + self._mlp_s(tokens, model.ffn_size / tensor)
        dense_s = self._mlp_s(tokens, (model.dense_ffn_size or model.ffn_size) / tensor) if self._dense_share else 0.0
        experts = model.num_experts / job.expert_parallel
        width = model.ffn_size / job.expert_tensor_parallel
        routed_s = self._mlp_s(self._routed_rows, width, experts) / self.parameters.grouped_efficiency
        shared_s = self._mlp_s(tokens, model.shared_experts * model.ffn_size / tensor) if model.shared_experts else 0.0
        return total + self._dense_share * dense_s + (1 - self._dense_share) * (routed_s + shared_s)

    @cached_property
    def _expansion_s(self) -> float:
        """Time to expand the compressed queries, keys and values of MLA again in one layer; 0 for other attention."""
        job, model = self.job, self.job.model
        if model.attention != "mla":
            return 0.0
        ranks = {float(model.q_lora_rank), float(model.kv_lora_rank)}
        expansions = [(inner, columns) for inner, columns in model.attention_products if inner in ranks]
        return sum(
            self.product_s(job.rank_tokens, columns / job.tensor_parallel, inner, self.flops_s)
            for inner, columns in expansions
        )

    @cached_property
    def _routed_rows(self) -> float:
        """Tokens that the experts of a rank receive; tensor parallel ranks share the tokens of a sequence."""
        job = self.job
        share = job.busiest_share * job.expert_tensor_parallel / job.tensor_parallel
        return job.rank_tokens * job.model.experts_per_token * share

    @cached_property
    def _casts_s(self) -> tuple[float, float]:
        """Time to quantise the operands of the products of one layer, forward and backward."""
        if not self.has_low_precision:
            return 0.0, 0.0
        job, model = self.job, self.job.model
        tensor = job.tensor_parallel
        kv_size = model.kv_size if model.attention == "gqa" else model.kv_lora_rank
        share = 1 / tensor if job.sequence_parallel else 1.0
        routed = self._routed_rows / job.rank_tokens if model.num_experts > 1 else 1 / tensor
        routed *= not self._is_fused
        shared = routed + model.shared_experts / tensor
        inputs = model.hidden_size * (share + routed) + model.attention_size / tensor + shared * model.ffn_size
        outputs = (model.attention_size + 2 * kv_size) / tensor + model.hidden_size * (share + routed)
        outputs += shared * model.ffn_size * (model.mlp_matrices - 1)
        scale = _CAST_BYTES[job.precision] * job.rank_tokens / self.bytes_s
        return inputs * scale, outputs * scale

    @cached_property
    def _attention_s(self) -> tuple[float, float]:
        """Time of the attention core of one layer (scores and context), forward and backward."""
        job, model = self.job, self.job.model
        heads = job.rank_tokens / job.tensor_parallel
        slow = self.parameters.misaligned_slowdown if model.head_size % 8 and job.precision != "fp32" else 1.0
        if job.has_flash_attention:
            flops = 4 * heads * model.keys_per_token * model.score_size
            # A ring attends to the keys of one rank at a time.
            length = model.sequence_length / (job.context_parallel if job.context_exchange == "ring" else 1)
            share = fused_share(self.cluster.device, job.flash_generation, length, model.head_size)
            rate = ceiling(self.cluster, "bf16") * share * self.parameters.attention_efficiency
            if job.precision == "fp32" or self.cluster.device.is_cpu:
                rate = self.wide_flops_s
            return flops / rate, 2.5 * flops / rate
        pairs = heads * model.sequence_length
        flops = 4 * pairs * model.score_size
        scores = pairs * model.num_heads * job.value_bytes / 2 / self.bytes_s
        scores *= 1 if job.fuses_pointwise else _EAGER_SCORES
        forward, backward = (scores * count for count in _SCORES_BYTES)
        return slow * flops / self.wide_flops_s + forward, 2 * slow * flops / self.wide_flops_s + backward

    @cached_property
    def _pointwise_s(self) -> float:
        """Time of norms, residuals, dropout, activation function and routing of one layer, forward."""
        job, model = self.job, self.job.model
        replicated = 22 * model.hidden_size / (job.tensor_parallel if job.sequence_parallel else 1)
        width = 4 * model.ffn_size * (model.mlp_matrices - 1)
        if model.num_experts == 1:
            split = width / job.tensor_parallel
        else:
            rows = self._routed_rows / job.rank_tokens
            moved = self.kernels.moved_bytes * model.hidden_size
            routed = rows * (width * (not self._is_fused) + moved) + model.shared_experts * width
            dense = 4 * (model.dense_ffn_size or model.ffn_size) * (model.mlp_matrices - 1) / job.tensor_parallel
            split = (1 - self._dense_share) * routed + self._dense_share * dense
        eager = 1 if job.fuses_pointwise else _UNFUSED
        norms = 1 if job.has_fused_norms else eager
        moved = job.rank_tokens * (replicated * norms + split * eager) * job.value_bytes / 2
        return moved / self.bytes_s

    @cached_property
    def _exchange_s(self) -> tuple[float, float]:
        """Time in which context parallel ranks exchange keys and values, beyond attention; forward and backward."""
        job, model, ranks = self.job, self.job.model, self.job.context_parallel
        if ranks == 1:
            return 0.0, 0.0
        bandwidth, latency = self.links.ring(ranks, ranks * job.tensor_parallel)
        kv_size = model.kv_size if model.attention == "gqa" else model.attention_size
        size = 2 * job.value_bytes * job.rank_tokens * kv_size / job.tensor_parallel * (ranks - 1)
        forward = size / bandwidth + (ranks - 1) * latency
        if job.context_exchange == "all-gather":
            return forward, 2 * forward
        attention_forward, attention_backward = self._attention_s
        # Attention to the next keys begins when they have arrived, so that the latencies stay.
        floor = (ranks - 1) * latency
        return exposed(forward, attention_forward) + floor, exposed(2 * forward, attention_backward) + floor

    @cached_property
    def context_s(self) -> float:
        """Time of the context parallel exchange of one micro batch in one layer."""
        forward, backward = self._exchange_s
        return backward + forward * (1 + self._repeated_share)

    @cached_property
    def _repeated_share(self) -> float:
        """Share of the forward communication that recomputation repeats."""
        job = self.job
        return job.recomputed_share * {"full": 1.0, "operations": 0.5}.get(job.recompute, 0.0)

    @cached_property
    def expert_s(self) -> float:
        """Time of the all-to-all of experts of one micro batch, averaged over all layers."""
        job = self.job
        if job.expert_parallel == 1:
            return 0.0
        tokens = job.rank_tokens / job.tensor_parallel
        once = self.links.dispatch_s(job, tokens)
        seconds = (4 + 2 * self._repeated_share) * once * (1 - self._dense_share)
        if not job.overlaps_experts:
            return seconds
        # The passes of another micro batch lack the multiprocessors that send tokens meanwhile.
        return exposed(seconds, sum(self.passes_s)) + self.kernels.multiprocessors * seconds

    @cached_property
    def passes_s(self) -> tuple[float, float]:
        """Time of one micro batch in one layer, forward and backward with recomputation, without messages."""
        job = self.job
        attention_forward, attention_backward = self._attention_s
        cast_forward, cast_backward = self._casts_s
        forward = self._matmuls_s + self._pointwise_s + attention_forward + cast_forward
        backward = 2 * (self._matmuls_s + self._pointwise_s) + attention_backward + cast_backward
        recomputed, passes = 0.0, 1.0
        if job.recompute == "full":
            recomputed, passes = forward, 2.0
        elif job.recompute == "operations":
            recomputed, passes = _RECOMPUTED_SHARE * self._matmuls_s + self._pointwise_s, 1.5
            # The scores of plain attention are not stored either.
            recomputed += 0.0 if job.has_flash_attention else attention_forward
        elif job.recompute == "selective":
            recomputed = self._pointwise_s + self._expansion_s if job.has_flash_attention else attention_forward
        backward += recomputed * job.recomputed_share
        if job.offloads_activations:
            copy_s = activation_bytes(job)[0] / host_bandwidth(self.cluster.device)
            forward, backward = longer(forward, copy_s), longer(backward, copy_s)
        host = self._host_s
        return self._pass_s(forward, host), self._pass_s(backward, host * (1 + (passes - 1) * job.recomputed_share))

    @property
    def _is_fused(self) -> bool:
        """The products of experts include their activation function and the quantisation of their operands."""
        return self.job.model.num_experts > 1 and self.job.grouped_products == "fused"

    @property
    def kernels(self) -> Kernels:
        """What sends tokens to their experts."""
        return KERNELS[self.job.dispatcher]

    @property
    def _waits(self) -> bool:
        """The processor waits in each layer with experts."""
        return self.job.expert_parallel > 1 and self.kernels.waits

    @cached_property
    def _host_s(self) -> float:
        """Time in which the processor launches the kernels of one pass through one layer."""
        job, parameters = self.job, self.parameters
        each = {"separate": parameters.host_s * _EXPERT_SHARE, "grouped": parameters.expert_s, "fused": 0.0}
        experts = each[job.grouped_products] * (job.model.num_experts / job.expert_parallel)
        recorded = _GRAPH_SHARE if job.has_cuda_graphs else 1.0
        # Kernels of changing sizes cannot be recorded, nor those that the processor launches after it has waited.
        routing = parameters.routing_s * (1.0 if self._waits else recorded) + experts
        return parameters.host_s * recorded + routing * (1 - self._dense_share)

    def _pass_s(self, device_s: float, host_s: float) -> float:
        """Return the time of a pass in which device and processor run concurrently."""
        order = _WAITING if self._waits else SMOOTH
        seconds: float = (device_s**order + host_s**order) ** (1 / order)
        return seconds

    @cached_property
    def tensor_s(self) -> float:
        """Time of the tensor parallel all-reduces of one micro batch and layer."""
        job, tensor = self.job, self.job.tensor_parallel
        if tensor == 1:
            return 0.0
        count = 4 + 2 * self._repeated_share
        if job.model.num_experts > 1:
            # Routed tokens are exchanged by the all-to-all instead.
            count = count * (1 + self._dense_share) / 2
        size = job.value_bytes * job.rank_tokens * job.model.hidden_size
        once = self.links.all_reduce_s(size, tensor, tensor)
        if job.overlaps_tensor:
            # Products and messages run in as many parts as ranks; the first or the last message has no product beside,
            # and each of the others begins with a latency.
            floor = once / tensor + (tensor - 1) * self.links.ring(tensor, tensor)[1]
            return exposed(count * once, 3 * self._matmuls_s) + count * floor
        if not job.fuses_pointwise or self.cluster.device.is_cpu:
            return count * once
        # Both messages of the backward pass overlap with the products for the gradients of weights (Megatron-LM).
        share = 2 / (4 + 2 * self._repeated_share)
        alone, beside = (1 - share) * count * once, share * count * once
        visible = exposed(beside, self._matmuls_s)
        return alone + visible + SENDING_SHARE * (beside - visible)

    @cached_property
    def head_s(self) -> float:
        """Time of logits and loss of one micro batch on the last stage, forward and backward."""
        job, model = self.job, self.job.model
        logits = model.vocab_size / job.tensor_parallel
        product = self.product_s(job.rank_tokens, logits, model.hidden_size, self.wide_flops_s)
        tensor = job.tensor_parallel
        if not job.gathers_logits or tensor == 1:
            return 3 * product + 24 * job.rank_tokens * logits / self.bytes_s
        # Each rank computes the loss of the whole vocabulary, after an all-gather: half of an all-reduce.
        size = job.value_bytes * job.rank_tokens * model.vocab_size
        gather_s = self.links.all_reduce_s(size, tensor, tensor) / 2
        return 3 * product + gather_s + 24 * job.rank_tokens * model.vocab_size / self.bytes_s


def ceiling(cluster: Cluster, precision: str) -> float:
    """Return the FLOP/s that large matrix products reach on the device.

    The measured ratio to the bf16 peak applies to all precisions with matrix units. Raises ValueError if the device has
    no peak for the precision or a substitute.
    """
    device = cluster.device
    peaks = device.peak_flops
    name = device.units(precision)
    substitutes = {"bf16": ("fp16",), "fp16": ("bf16",), "fp8": ("bf16",), "fp4": ("bf16",)}.get(name, ("fp32",))
    for candidate in (name, *substitutes, "fp16", "fp32"):
        if candidate in peaks:
            return peaks[candidate] * (_FP32_SHARE if candidate == "fp32" else matrix_share(device))
    raise ValueError(f"precision {precision!r} is not supported by {device.name}; use {', '.join(peaks)}")


def matrix_share(device: Gpu) -> float:
    """Return the measured share of the matrix units' peak that large products reach, or the usual share."""
    peak = device.peak_flops.get("bf16") or device.peak_flops.get("fp16")
    if device.matmul_ceiling_flops is None or not peak:
        return _USUAL_SHARE
    return device.matmul_ceiling_flops / peak


def longer(first: float, second: float) -> float:
    """Return the duration of two concurrent activities: slightly more than the longer one."""
    longer_s: float = (first**SMOOTH + second**SMOOTH) ** (1 / SMOOTH)
    return longer_s


def exposed(hidden: float, covering: float) -> float:
    """Return the part of `hidden` that exceeds the concurrent activity of `covering` seconds."""
    return longer(hidden, covering) - covering
