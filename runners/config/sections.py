"""The sections of a configuration: every field with its range, its default and its meaning."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from . import devices, engines, launchers
from .named import NameIn

EngineName = Annotated[str, NameIn(lambda: engines.ENGINES)]
DeviceName = Annotated[str, NameIn(lambda: devices.DEVICES)]
LauncherName = Annotated[str, NameIn(lambda: launchers.LAUNCHERS)]
TrialEngineName = Annotated[str, NameIn(lambda: engines.engine_names(lambda row: row.may_be_a_trial))]
Positive = Annotated[int, Field(ge=1, le=2**40)]
Argument = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")]
"""One argument of a command."""
Milliseconds = Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)]
GigabitsPerSecond = Annotated[float, Field(ge=0.001, le=1_000, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=50, allow_inf_nan=False)]
PerStage = Annotated[
    list[Annotated[float, Field(ge=0, le=600_000, allow_inf_nan=False)]],
    Field(min_length=1, max_length=4096),
    # One number is the same for every stage.
    BeforeValidator(lambda value: [value] if isinstance(value, int | float) else value),
]
PLACEHOLDER = re.compile(r"\{([a-z]+\.[a-z_]+|world_size|num_micro_batches)\}")
"""What engine command fills in; other braces stay as they are."""


class Section(BaseModel):
    """A group of fields; unknown names are errors, so that a typing slip never runs."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelSection(Section):
    """The network that is trained."""

    kind: Literal["gpt", "bert"] = "gpt"
    """Architecture: gpt (decoder) or bert (encoder)."""
    implementation: Literal["parlab", "huggingface"] = "parlab"
    """Whose code: parlab's own, or Hugging Face's class for it, made from these fields with random weights."""
    num_layers: Positive = 4
    """Transformer layers in the whole model."""
    hidden_size: Positive = 128
    """Width of the residual stream."""
    num_attention_heads: Positive = 4
    """Attention heads per layer; must divide hidden_size."""
    sequence_length: Positive = 64
    """Tokens per sequence."""
    vocab_size: Positive = 1024
    """Entries of the token embedding."""
    attention_mask: Literal["causal", "bidirectional", "prefix"] = "causal"
    """Which positions a token may look at."""
    prefix_length: Annotated[int, Field(ge=0, le=2**40)] = 0
    """Tokens at the begin of each sequence that look at each other both ways and have no loss; for the prefix mask."""
    attention_backend: Literal["sdpa", "flex"] = "sdpa"
    """Attention with a prefix: torch's scaled dot product, or FlexAttention (Triton on the GPU node)."""


class TrainSection(Section):
    """The work of one iteration and how many there are."""

    global_batch_size: Positive = 16
    """Sequences per iteration over all data parallel ranks."""
    micro_batch_size: Positive = 1
    """Sequences in one forward pass of one data parallel rank."""
    iterations: Positive = 10
    """Optimizer steps, warm-up included."""
    warmup_steps: Annotated[int, Field(ge=0)] = 1
    """First steps that are measured but left out of the statistics."""
    compute: Literal["real", "emulated"] = "real"
    """emulated: a stage waits for the times of section emulation instead of computing; its transfers stay real."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the forward and backward passes."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Which activations are computed again in the backward pass."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """Optimizer of the step."""
    learning_rate: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = 1e-4
    """Constant learning rate."""
    gradient_clipping: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0
    """Largest norm of all gradients together; 0 leaves them as they are."""
    loss_scale: Annotated[float, Field(ge=1, le=2**40, allow_inf_nan=False)] | None = None
    """fp16: what the loss is multiplied with; empty: as large as the gradients bear."""
    log_interval: Positive = 1
    """Steps between two iteration lines of engine megatron; its events tell every step."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1234
    """Seed of weights and data: the same seed gives the same losses in every layout."""


class ParallelSection(Section):
    """How the work is split over GPUs (or CPU processes)."""

    engine: EngineName = engines.PIPELINE.name
    """Which of parlab's engines trains."""
    data_parallel_size: Positive = 1
    """Replicas of the model (DP)."""
    tensor_parallel_size: Positive = 1
    """Ranks that share each layer (TP)."""
    sequence_parallel: bool = False
    """Tensor parallel ranks share norms and residuals too, each with its part of the sequence."""
    pipeline_parallel_size: Positive = 1
    """Stages that the layers are split into (PP)."""
    schedule: Literal["gpipe", "1f1b", "interleaved-1f1b", "zb-h1"] = "1f1b"
    """Order of forward and backward passes of the micro batches in a pipeline."""
    warmup_slope: Positive = 1
    """1f1b: forward passes that a stage warms up with for each stage after it; more hide slow links (2: eager 1F1B)."""
    virtual_stages: Positive = 1
    """interleaved-1f1b: chunks of layers on each rank."""
    wire_precision: Literal["same", "bf16", "fp16", "int8"] = "same"
    """What travels between stages: as computed, in 16 bits (gradients always as bf16), or in 8 with error feedback."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """ZeRO stage: what data parallel ranks share (0 nothing, 1 optimizer, 2 + gradients, 3 + weights)."""
    zero_offload: Literal["none", "optimizer", "all"] = "none"
    """What ZeRO keeps in the memory of the CPU: nothing, optimizer state (stages 1 to 3), or weights too (stage 3)."""


class ClusterSection(Section):
    """Where it runs."""

    pool: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")] = "default"
    """Pool of nodes that may take the run."""
    nodes: Positive = 1
    """Machines."""
    gpus_per_node: Positive | None = None
    """GPUs (or CPU processes) on each node; empty: as many as TP·PP·DP needs."""
    device: DeviceName = devices.AUTO.name
    """auto takes GPUs where the node has enough of them, CPU processes otherwise."""


class LinkSetting(Section):
    """One link that differs from the others, in one direction; what is left empty is as on the others."""

    source: Annotated[int, Field(ge=0, le=2**20)]
    """Rank that sends, or node where there are several."""
    target: Annotated[int, Field(ge=0, le=2**20)]
    """Rank or node that receives."""
    delay_ms: Milliseconds | None = None
    """Delay of this link, one way."""
    bandwidth_gbps: GigabitsPerSecond | None = None
    """Rate of this link, which it then shares with no other."""


class NetworkSection(Section):
    """The links between ranks (between nodes where there are several), each way; the outgoing one of a rank is shared
    by all that it sends."""

    apply: Literal["none", "emulate", "interface"] = "none"
    """none: links as they are; emulate: links of parlab's making on one machine; interface: shape a real interface."""
    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,14}$")] | None = None
    """apply interface: the network interface of the node that is shaped, and restored after the run."""
    delay_ms: Milliseconds = 0.0
    """Time that each packet takes, one way; a round trip takes twice as long."""
    bandwidth_gbps: GigabitsPerSecond | None = None
    """Gbit/s that leave a rank or node; empty: as much as the machine carries."""
    jitter_ms: Milliseconds = 0.0
    """The delay varies by so much up and down."""
    loss_pct: Percent = 0.0
    """Packets that get lost, per cent; TCP sends them again and slows down."""
    links: Annotated[list[LinkSetting], Field(max_length=1000)] = []
    """apply emulate: links that differ, like [{"source": 0, "target": 1, "delay_ms": 20, "bandwidth_gbps": 0.5}]."""


class EmulationSection(Section):
    """Times of train.compute emulated: what a pass of one micro batch through one stage takes."""

    forward_ms: PerStage | None = None
    """Forward pass of one micro batch: one number for all stages, or a list with one for each."""
    backward_ms: PerStage | None = None
    """Backward pass of one micro batch, recomputation included: one number, or a list with one for each stage."""
    optimizer_ms: Milliseconds = 0.0
    """Optimizer step."""
    source_run: Annotated[str, Field(pattern=r"^[-a-zA-Z0-9_]{1,200}/[1-9][0-9]{0,8}$")] | None = None
    """Times from a measured run of the same stages and micro batches instead: experiment/number, as in its address."""


class CollectivesSection(Section):
    """What engine allreduce times; train.iterations are the trials of each size, the warmup_steps apart."""

    operation: Literal["all", "all-reduce", "all-gather", "reduce-scatter", "point-to-point"] = "all-reduce"
    """Operation that is timed; all takes one after the other."""
    min_bytes: Annotated[int, Field(ge=4, le=2**30)] = 1024
    """Smallest message."""
    max_bytes: Annotated[int, Field(ge=4, le=2**30)] = 2**22
    """Largest message."""
    size_factor: Annotated[int, Field(ge=2, le=1024)] = 4
    """Each message is so many times as large as the one before."""


class ShardingSection(Section):
    """Stages, their shards and devices for engine sharding."""

    mode: Literal["sharding", "pipeline", "hybrid"] = "sharding"
    """sharding: one micro batch; pipeline: one shard for each stage; hybrid: both may be many."""
    sharding_size: Annotated[int, Field(ge=1, le=1024)] = 1
    """Shards of each stage."""
    sharding_dim: Literal[0, -1] = 0
    """Dimension of each weight (outputs, inputs) that is cut: 0 or -1."""
    stage_cnt: Annotated[int, Field(ge=1, le=1024)] = 1
    """Stages that the layers are spread over."""
    accum_degree: Positive = 1
    """Micro batches of an iteration."""
    device_mapping: dict[str, dict[str, str]] | None = None
    """Device of every shard of every stage: {"stage_0": {"shard_0": "GPU:0"}}; GPU:n or CPU:n, many may share one."""

    @property
    def grid(self) -> list[list[str]]:
        """Devices by stage and shard; for drawing the map, a row for each stage."""
        mapping = self.device_mapping or {}
        return [
            [mapping[f"stage_{stage}"][f"shard_{shard}"] for shard in range(self.sharding_size)]
            for stage in range(self.stage_cnt)
        ]

    @property
    def devices(self) -> list[str]:
        """Devices of the map, each once, by number; the process of each has its place here as its rank."""
        return sorted({device for stage in self.grid for device in stage}, key=lambda name: (int(name[4:]), name))

    @property
    def is_mixed(self) -> bool:
        """GPUs and CPUs are named: what travels between devices goes through the memory of the CPU."""
        return len({device[:3] for device in self.devices}) > 1


class CapacitySection(Section):
    """What engine capacity looks for by short real runs of another engine, some of which run out of memory."""

    find: Literal["num_layers", "micro_batch_size", "processes"] = "num_layers"
    """Largest number of layers, largest micro batch, or fewest processes (stages, or data parallel ranks of zero)."""
    engine: TrialEngineName = engines.PIPELINE.name
    """Engine of the trials; the other sections describe its run."""
    at_most: Annotated[int, Field(ge=1, le=2**16)] = 64
    """Largest value that is tried."""
    trial_timeout_s: Annotated[int, Field(ge=1, le=86400)] = 600
    """A trial that takes longer ends the search."""


class AutotuningSection(Section):
    """What engine autotuning lets DeepSpeed's own autotuner search, by short real runs of engine zero."""

    stages: Annotated[list[Annotated[int, Field(ge=0, le=3)]], Field(min_length=1, max_length=4)] = [0, 1, 2, 3]
    """ZeRO stages that it may try; it leaves out those that promise nothing by its own estimate."""
    max_micro_batch_size: Annotated[int, Field(ge=1, le=2**16)] = 64
    """Largest micro batch that it may try; train.micro_batch_size is where it begins."""


class CommandSection(Section):
    """What engine command starts: a command of the team's own, which the node's administrator has allowed."""

    argv: Annotated[list[Argument], Field(min_length=1, max_length=500)] | None = None
    """Program and arguments, one by one, no shell: ["/opt/train.py", "--layers", "{model.num_layers}"]."""


class LauncherSection(Section):
    """How the processes are started, watched and started again."""

    kind: LauncherName = launchers.TORCHRUN.name
    """What starts one process per GPU; plain starts one process in all."""
    threads_per_rank: Annotated[int, Field(ge=1, le=1024)] = 1
    """OMP_NUM_THREADS of each rank."""
    timeout_s: Annotated[int, Field(ge=1, le=30 * 86400)] = 3600
    """The run is stopped and called failed after this long."""
    memory_limit_mib: Annotated[int, Field(ge=64, le=2**30)] | None = None
    """Memory of the CPU that each process may allocate, Python included; more is out of memory. Empty: no limit."""
    collective_timeout_s: Annotated[int, Field(ge=5, le=86400)] = 300
    """A rank that waits longer than this for another one gives up."""
    hang_timeout_s: Annotated[int, Field(ge=1, le=86400)] | None = 120
    """No step for so long, or for ten times the slowest one: ended, with all stacks in the log. Empty: never."""
    max_attempts: Annotated[int, Field(ge=1, le=20)] = 2
    """How often a run that was lost with its node is started in all."""
