"""Predict the time of one iteration, part by part.

`layer` predicts one layer; this module adds pipeline, data parallel communication and optimizer. Sources: Narayanan et
al. 2021 (SC21), Korthikanti et al. 2022, Rajbhandari et al. 2020; see docs/understand/planner.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log2

from parlab.planner.calibration.recorded_formulas import larger
from parlab.planner.job.cluster import Cluster
from parlab.planner.job.workload import Job

from .layer import LayerClock, exposed
from .links import SENDING_SHARE, Links
from .memory import stage_layers
from .parameters import TimeParameters

_BUBBLES = {"zb-h1": 0.5, "zb-h2": 0.05, "zb-v": 0.05}
"""Bubble of zero-bubble schedules relative to 1F1B (Qi et al. 2023, tables 3 to 5: bubble rates)."""


@dataclass(frozen=True)
class Timing:
    """Time of one iteration on the slowest rank (s), in parts that add up to `total_s`."""

    compute_s: float
    bubble_s: float
    tensor_s: float
    context_s: float
    expert_s: float
    pipeline_s: float
    data_s: float
    hidden_s: float
    """Communication that overlaps with computation; not included in the total."""
    optimizer_s: float
    other_s: float
    waiting_s: float = 0.0
    """The part of `other_s` in which ranks wait for the slowest one."""

    @property
    def total_s(self) -> float:
        """Time of one iteration."""
        return (
            self.compute_s
            + self.bubble_s
            + self.tensor_s
            + self.context_s
            + self.expert_s
            + self.pipeline_s
            + self.data_s
            + self.optimizer_s
            + self.other_s
        )


def scaled(timing: Timing, factor: float) -> Timing:
    """Return all parts of a timing times `factor`."""
    return Timing(**{name: seconds * factor for name, seconds in vars(timing).items()})


@dataclass(frozen=True)
class Clock:
    """The time model for one job, cluster and set of parameters; all times in seconds."""

    job: Job
    cluster: Cluster
    parameters: TimeParameters

    @cached_property
    def layer(self) -> LayerClock:
        """The time model of one layer."""
        return LayerClock(self.job, self.cluster, self.parameters)

    @cached_property
    def links(self) -> Links:
        """The links of the cluster."""
        return self.layer.links

    def timing(self) -> Timing:
        """Return all parts of the iteration."""
        job, layer = self.job, self.layer
        micro_batches, stages = job.num_micro_batches, job.pipeline_parallel
        messages = layer.tensor_s + layer.context_s + layer.expert_s
        each = sum(layer.passes_s) + messages
        most, last = largest_and_last(job)
        inner = most * each
        final = last * each + layer.head_s
        slowest = larger(inner, final) if stages > 1 else final
        through = job.model.num_layers * each + layer.head_s
        passes = micro_batches * most
        compute_s = micro_batches * slowest - passes * messages
        data_s, hidden_s = self._data_s(compute_s)
        nodes = max(1.0, job.world_size / self.cluster.gpus_per_node)
        waiting_s = micro_batches * slowest * self.parameters.straggler_share * log2(nodes)
        return Timing(
            compute_s,
            self._bubble_s(through - slowest),
            passes * layer.tensor_s,
            passes * layer.context_s,
            passes * layer.expert_s,
            self._pipeline_s(slowest, self.hop_s()),
            data_s,
            hidden_s,
            self._optimizer_s(),
            self.parameters.step_s + waiting_s,
            waiting_s,
        )

    def _bubble_s(self, others_s: float) -> float:
        """Return the time a stage waits while the pipeline fills and drains.

        `others_s` is the time of one micro batch on all other stages.
        """
        job = self.job
        if job.schedule.startswith("dualpipe"):
            # (p/2 - 1) (2 F) instead of (p - 1) 3 F with a backward pass of 2 F (DeepSeek-V3 report 2024, table 2).
            share = max(0, job.pipeline_parallel - 2) / (3 * max(1, job.pipeline_parallel - 1))
        else:
            share = _BUBBLES.get(job.schedule, 1.0)
        return others_s * share / job.chunks

    def hop_s(self) -> tuple[float, float]:
        """Return transfer time and latency of the activations of one micro batch between two stages."""
        job, cluster = self.job, self.cluster
        # Tensor parallel ranks hold the same activations, so each sends a part (Narayanan et al. 2021, section 4.1).
        size = (job.wire_bytes or job.value_bytes) * job.rank_tokens * job.model.hidden_size / job.tensor_parallel
        if job.world_size <= cluster.domain:
            return size / self.links.inside, cluster.inside.latency_s
        share = self.links.between_bandwidth(job.world_size) / min(
            cluster.gpus_per_node, job.tensor_parallel * job.replicas
        )
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
            forward, backward = self.layer.passes_s
            share = forward / (forward + backward)
            period = larger(slowest_s * share, transfer_s) + larger(slowest_s * (1 - share), transfer_s)
            return fill + (micro_batches - 1) * (period - slowest_s)
        steady = 2 * job.chunks * message_s * (stages - 1) / stages
        if job.overlaps_pipeline and job.chunks > 1:
            steady = exposed(steady, slowest_s)
        return fill + (micro_batches - 1) * steady

    def _data_s(self, compute_s: float) -> tuple[float, float]:
        """Return exposed and hidden time of data parallel communication: gradients, and weights under ZeRO-3."""
        job = self.job
        dense, routed = rank_parameters(job)
        parts = [
            self._group_s(dense, job.replicas, job.tensor_parallel * job.replicas),
            self._group_s(routed, job.expert_replicas, job.tensor_parallel * job.replicas),
        ]
        seconds = sum(parts)
        if job.replicas == 1 and job.expert_replicas == 1:
            return 0.0, 0.0
        covering = compute_s if job.effective_zero == 3 else compute_s * 2 / 3
        if not job.overlaps_gradients or self.cluster.device.is_cpu:
            return seconds, 0.0
        visible = exposed(seconds, covering)
        hidden = seconds - visible
        # The passes lack the multiprocessors that copy messages meanwhile.
        return visible + SENDING_SHARE * hidden, hidden

    def _group_s(self, parameters: float, ranks: int, span: int) -> float:
        """Return the time in which `ranks` replicas of `parameters` weights reduce gradients and gather weights."""
        job = self.job
        if ranks == 1 or not parameters:
            return 0.0
        if job.effective_zero == 3:
            return self._sharded_s(parameters, ranks, span)
        # ZeRO-2 reduces the gradients after every micro batch, since no rank stores the full gradients.
        rounds = (1 + job.num_micro_batches) / 2 if job.effective_zero == 2 else 1.0
        size = parameters * (job.gradient_bytes or job.value_bytes) * rounds
        return self.links.all_reduce_s(size, ranks, span, job.gradient_messages)

    def _sharded_s(self, parameters: float, ranks: int, span: int) -> float:
        """Return the time in which FSDP gathers weights and reduces gradients among `ranks` replicas.

        With HSDP the shards are partitioned among fewer ranks, and the groups reduce their gradients afterwards.
        """
        job, links, cluster = self.job, self.links, self.cluster
        groups = max(1, job.replicas // job.shards)
        shards = max(1, ranks // groups)
        span = max(shards, span // groups)
        bandwidth, latency = links.ring(shards, span)
        link = cluster.between if links.is_between(span) else cluster.inside
        if not job.overlaps_gradients and not link.is_measured:
            # DeepSpeed of 2021 gathers each parameter on its own; FSDP gathers those of a layer as one message.
            efficiency = self.parameters.between_efficiency
            bandwidth /= efficiency if links.is_between(span) else self.parameters.inside_efficiency
            bandwidth *= self.parameters.sharded_efficiency
        size = parameters * job.value_bytes
        # Layers are gathered ahead of use, so that only a few latencies are exposed.
        once = size * (shards - 1) / shards / bandwidth + 3 * (shards - 1) * latency
        rounds = 3 * job.num_micro_batches if job.reshards_after_forward else 2
        replicate = links.all_reduce_s(2 * size / shards, groups, span * groups) if groups > 1 else 0.0
        return once * rounds + replicate

    def _optimizer_s(self) -> float:
        job = self.job
        dense, routed = rank_parameters(job)
        if job.effective_zero:
            dense, routed = dense / job.shards, routed / max(1.0, job.shards * job.expert_replicas / job.replicas)
        return (dense + routed) * 32 / self.layer.bytes_s


def rank_parameters(job: Job) -> tuple[float, float]:
    """Return the parameters of a rank: those that all data parallel ranks have, and those of its experts."""
    model, stages = job.model, job.pipeline_parallel
    split = job.tensor_parallel * stages
    if model.num_experts == 1:
        return model.parameters / split, 0.0
    routed = (model.num_layers - model.dense_layers) * model.routed_layer_parameters
    experts = job.expert_parallel * job.expert_tensor_parallel * stages
    return (model.parameters - routed) / split, routed / experts


def largest_and_last(job: Job) -> tuple[int, int]:
    """Return the number of layers of the largest stage but the last one, and of the last one."""
    last = job.pipeline_parallel - 1
    most = max(stage_layers(job, stage) for stage in {0, min(1, max(0, last - 1))})
    return most, stage_layers(job, last)
