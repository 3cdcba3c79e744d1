"""The sections of a configuration: every field with its range, its default and its meaning."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from . import devices, engines, launchers
from .named import NameIn

_MOUNT = re.compile(r"/[^:,\x00]*:/[^:,\x00]+(:ro)?")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,14}")


def interface_or_subnet(value: str) -> str:
    """Check the name of a network interface, or a subnet."""
    if _INTERFACE.fullmatch(value):
        return value
    with contextlib.suppress(ValueError):
        if "/" in value:
            return str(ipaddress.ip_network(value, strict=False))
    message = "must be an interface that `ip link` lists, like eth0, or a subnet, like 10.0.0.0/24"
    raise PydanticCustomError("interface", message)


def mount(value: str) -> str:
    """Check a directory of the node and its place in a container."""
    if not _MOUNT.fullmatch(value):
        message = "must be SOURCE:TARGET or SOURCE:TARGET:ro with absolute paths, like /data:/data:ro"
        raise PydanticCustomError("mount", message)
    return value


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
    # A single number applies to every stage.
    BeforeValidator(lambda value: [value] if isinstance(value, int | float) else value),
]
Interface = Annotated[str, AfterValidator(interface_or_subnet)]
PLACEHOLDER = re.compile(r"\{([a-z]+\.[a-z_]+|world_size|num_micro_batches)\}")
"""Placeholders that engine command replaces with values; other braces stay unchanged."""


class Section(BaseModel):
    """A group of fields. Unknown names are errors, so that a misspelled field never runs."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelSection(Section):
    """The network that is trained."""

    kind: Literal["gpt", "bert"] = "gpt"
    """Architecture: gpt (decoder) or bert (encoder)."""
    implementation: Literal["parlab", "huggingface"] = "parlab"
    """Implementation: parlab's own, or Hugging Face's model class with these sizes and random weights."""
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
    """Positions that a token attends to."""
    prefix_length: Annotated[int, Field(ge=0, le=2**40)] = 0
    """For the prefix mask: tokens at the start of each sequence that attend in both directions and have no loss."""
    attention_backend: Literal["sdpa", "flex"] = "sdpa"
    """Attention with a prefix mask: torch's scaled dot product, or FlexAttention (needs Triton and a GPU)."""
    num_kv_heads: Positive | None = None
    """Heads of keys and values. Empty: as many as heads."""
    head_dim: Positive | None = None
    """Width of one head. Empty: hidden_size / num_attention_heads."""
    multi_latent_attention: bool = False
    """Keys and values are compressed (MLA)."""
    q_lora_rank: Annotated[int, Field(ge=0, le=2**20)] = 1536
    """MLA: width of the compressed queries; 0: not compressed."""
    kv_lora_rank: Annotated[int, Field(ge=1, le=2**20)] = 512
    """MLA: width of the compressed keys and values."""
    rope_head_dim: Annotated[int, Field(ge=1, le=2**16)] = 64
    """MLA: width of the rotary part of a head, in addition to head_dim."""
    mlp: Literal["plain", "gated"] = "plain"
    """plain: two matrices; gated: three (SwiGLU)."""
    ffn_hidden_size: Positive | None = None
    """Width of the MLP, or of one expert. Empty: 4 times hidden_size."""
    num_experts: Annotated[int, Field(ge=1, le=4096)] = 1
    """MLPs of a layer; each token uses some of them."""
    experts_per_token: Annotated[int, Field(ge=1, le=4096)] = 1
    """MLPs that each token is routed to."""
    expert_groups: Annotated[int, Field(ge=1, le=4096)] = 1
    """Groups of experts, for routing that is limited to some of them."""
    groups_per_token: Positive | None = None
    """Groups that the experts of a token come from (node-limited routing). Empty: all."""
    shared_experts: Annotated[int, Field(ge=0, le=256)] = 0
    """MLPs that every token uses."""
    dense_layers: Annotated[int, Field(ge=0, le=10_000)] = 0
    """First layers with an MLP instead of experts."""
    dense_ffn_size: Positive | None = None
    """Width of the MLP of these layers. Empty: that of an expert."""
    sliding_window: Positive | None = None
    """Tokens that a token sees in layers with a sliding window. Empty: all layers see all tokens."""
    windowed_share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.5
    """Share of the layers with a sliding window."""
    tied_embeddings: bool | None = None
    """The output layer is the token embedding. Empty: unless the MLP is gated."""
    positions: Literal["learned", "rotary"] | None = None
    """Position embeddings. Empty: learned, with a gated MLP rotary."""
    dropout: bool | None = None
    """Whether the model has dropout. Empty: unless the MLP is gated."""


class TrainSection(Section):
    """The work of one iteration, and the number of iterations."""

    global_batch_size: Positive = 16
    """Sequences per iteration, over all data parallel ranks."""
    micro_batch_size: Positive = 1
    """Sequences in one forward pass of a data parallel rank."""
    iterations: Positive = 10
    """Optimizer steps, warm-up included."""
    warmup_steps: Annotated[int, Field(ge=0)] = 1
    """Steps at the start that are measured but excluded from the statistics."""
    compute: Literal["real", "emulated"] = "real"
    """emulated: instead of computing, a stage waits for the times of section emulation; its transfers stay real."""
    precision: Literal["fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4"] = "fp32"
    """Arithmetic of the forward and backward passes; 8 and 4 bits: of their matrix products."""
    recompute: Literal["none", "selective", "operations", "full"] = "none"
    """Recomputed activations; operations: all but attention and every second matrix product."""
    recomputed_layers: Positive | None = None
    """Layers of each stage that recompute. Empty: all."""
    offload_activations: bool = False
    """Stored activations wait in CPU memory for the backward pass."""
    cuda_graphs: bool | None = None
    """Kernels are recorded in CUDA graphs. Empty: as usual on the device."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """Optimizer."""
    learning_rate: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = 1e-4
    """Learning rate, constant over the run."""
    gradient_clipping: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0
    """Maximum global norm of the gradients; 0 disables clipping."""
    loss_scale: Annotated[float, Field(ge=1, le=2**40, allow_inf_nan=False)] | None = None
    """Loss scale of fp16. Empty: dynamic loss scaling."""
    log_interval: Positive = 1
    """Steps between two log lines of engine megatron; its events report every step."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1234
    """Seed of weights and data. The same seed gives the same losses in every layout."""


class ParallelSection(Section):
    """How the work is split over GPUs (or CPU processes)."""

    engine: EngineName = engines.PIPELINE.name
    """Engine that trains or measures."""
    data_parallel_size: Positive = 1
    """Replicas of the model (DP)."""
    tensor_parallel_size: Positive = 1
    """Ranks that share each layer (TP)."""
    sequence_parallel: bool = False
    """Tensor parallel ranks also split norms and residuals, along the sequence."""
    pipeline_parallel_size: Positive = 1
    """Stages that the layers are split into (PP)."""
    first_stage_layers: Positive | None = None
    """Layers of the first stage. Empty: an even split."""
    last_stage_layers: Positive | None = None
    """Layers of the last stage. Empty: an even split."""
    schedule: Literal["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v"] = "1f1b"
    """Order of the forward and backward passes of the micro batches in a pipeline."""
    warmup_slope: Positive = 1
    """1f1b: warm-up forward passes of a stage for each later stage; more hide slow links (2: eager 1F1B)."""
    virtual_stages: Positive = 1
    """interleaved-1f1b: chunks of layers on each rank."""
    wire_precision: Literal["same", "bf16", "fp16", "int8"] = "same"
    """Precision of transfers between stages: as computed, 16 bits (gradients always bf16), or 8 with error feedback."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """ZeRO stage: states partitioned over data parallel ranks (0 none, 1 optimizer, 2 + gradients, 3 + weights)."""
    zero_offload: Literal["none", "optimizer", "all"] = "none"
    """States that ZeRO keeps in CPU memory: none, optimizer state (stages 1 to 3), or weights as well (stage 3)."""
    shard_ranks: Positive | None = None
    """Ranks over which ZeRO and FSDP partition (HSDP: fewer than the replicas). Empty: all replicas."""
    reshard_after_forward: bool = True
    """ZeRO-3 and FSDP gather the weights again for the backward pass."""
    context_parallel_size: Positive = 1
    """Ranks that share each sequence (CP)."""
    context_exchange: Literal["ring", "all-gather"] = "ring"
    """How context parallel ranks exchange keys and values."""
    expert_parallel_size: Positive = 1
    """Ranks that share the experts of a layer (EP); they are data, context and tensor parallel ranks."""
    expert_tensor_parallel_size: Positive = 1
    """Ranks that share each expert."""
    expert_dispatcher: Literal["allgather", "alltoall", "deepep", "hybridep"] | None = None
    """What sends tokens to the ranks of their experts: NCCL's collectives, DeepEP or Hybrid-EP. Empty: as usual."""
    expert_imbalance: Annotated[float, Field(ge=1, le=4096, allow_inf_nan=False)] = 1.0
    """Routed tokens of the expert parallel rank that has most, relative to the mean."""
    grouped_products: Literal["separate", "grouped", "fused"] = "grouped"
    """Products of experts: each expert alone, one kernel for all, or fused with activation and quantisation."""
    overlap_gradients: bool | None = None
    """Reduction of gradients overlaps with the backward pass. Empty: as usual on the device."""
    overlap_tensor: bool | None = None
    """Messages of tensor parallelism overlap with matrix products. Empty: as usual."""
    overlap_experts: bool | None = None
    """The all-to-all of experts overlaps with matrix products. Empty: as usual."""
    overlap_pipeline: bool | None = None
    """Messages between stages overlap with computation if interleaved. Empty: as usual."""


class ClusterSection(Section):
    """Where the run is placed."""

    pool: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")] = "default"
    """Pool of nodes on which the run may start."""
    nodes: Positive = 1
    """Number of machines."""
    node_names: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,-]{0,299}$")] | None = None
    """Names of the nodes that may be used, separated by commas. Empty: all nodes of the pool."""
    gpus_per_node: Positive | None = None
    """GPUs (or CPU processes) on each node. Empty: as many as TP·PP·DP needs."""
    interface: Interface | None = None
    """Network between several nodes: interface name, or subnet like 10.0.0.0/24. Empty: that of the way to Redis."""
    device: DeviceName = devices.AUTO.name
    """auto: GPUs if the node has enough of them, CPU processes otherwise."""


SlurmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class SlurmSection(Section):
    """What a run asks of Slurm, in a pool whose nodes come from there."""

    partition: SlurmName | None = None
    """Partition. Empty: the first one that the daemon of the pool may use."""
    account: SlurmName | None = None
    """Account that the job is charged to. Empty: the default of the user of the daemon."""
    qos: SlurmName | None = None
    """Quality of service. Empty: the default of the account."""
    time_limit_s: Annotated[int, Field(ge=60, le=365 * 86400)] | None = None
    """Time limit of the job, rounded up to minutes. Empty: launcher.timeout_s, and launcher.grace_s or two minutes."""
    constraint: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.&|*()\[\]-]{1,200}$")] | None = None
    """Features that the nodes must have, as in sbatch --constraint, like a100&nvlink."""
    gres: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:,-]{1,200}$")] | None = None
    """Generic resources of each node, like gpu:a100:4. Empty: gpu:N with cluster.device cuda, N ranks on a node."""
    memory_mib: Annotated[int, Field(ge=1, le=2**30)] | None = None
    """CPU memory on each node. Empty: the default of the partition."""
    exclude: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,\[\]-]{1,4000}$")] | None = None
    """Nodes that the job must not use, as in sbatch --exclude, like n[1-3],n7; parlab adds those that are bad."""
    exclusive: bool = False
    """Use whole nodes, which no other job shares."""


class LinkSetting(Section):
    """One link that differs from the others, in one direction; empty fields have the values of the others."""

    source: Annotated[int, Field(ge=0, le=2**20)]
    """Sending rank, or sending node if there are several nodes."""
    target: Annotated[int, Field(ge=0, le=2**20)]
    """Receiving rank or node."""
    delay_ms: Milliseconds | None = None
    """One-way delay of this link."""
    bandwidth_gbps: GigabitsPerSecond | None = None
    """Rate of this link, not shared with other links."""


class NetworkSection(Section):
    """The links between ranks, or between nodes if there are several, for each direction. All that a rank sends shares
    its outgoing link."""

    apply: Literal["none", "emulate", "interface"] = "none"
    """none: links as they are; emulate: virtual links on one machine; interface: shape a real network interface."""
    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,14}$")] | None = None
    """apply interface: network interface to shape on each node. Empty, with several nodes: that of the run."""
    delay_ms: Milliseconds = 0.0
    """One-way delay of each packet; a round trip takes twice as long."""
    bandwidth_gbps: GigabitsPerSecond | None = None
    """Outgoing rate of each rank or node. Empty: no limit."""
    jitter_ms: Milliseconds = 0.0
    """Variation of the delay, up and down."""
    loss_pct: Percent = 0.0
    """Share of packets that are lost; TCP sends them again and slows down."""
    links: Annotated[list[LinkSetting], Field(max_length=1000)] = []
    """apply emulate: links that differ, like [{"source": 0, "target": 1, "delay_ms": 20, "bandwidth_gbps": 0.5}]."""


class EmulationSection(Section):
    """Times for train.compute emulated: duration of a pass of one micro batch through one stage."""

    forward_ms: PerStage | None = None
    """Forward pass of one micro batch: one number for all stages, or a list with one number per stage."""
    backward_ms: PerStage | None = None
    """Backward pass of one micro batch, including recomputation: one number, or a list with one per stage."""
    optimizer_ms: Milliseconds = 0.0
    """Optimizer step."""
    source_run: Annotated[str, Field(pattern=r"^[-a-zA-Z0-9_]{1,200}/[1-9][0-9]{0,8}$")] | None = None
    """Use the times of a measured run with the same stages and micro batches: experiment/number, as in its URL."""


class CollectivesSection(Section):
    """What engine allreduce measures. Each size has train.iterations trials, train.warmup_steps of them timed apart."""

    operation: Literal["all", "all-reduce", "all-gather", "reduce-scatter", "point-to-point"] = "all-reduce"
    """Operation to measure; all measures one after the other."""
    min_bytes: Annotated[int, Field(ge=4, le=2**30)] = 1024
    """Smallest message."""
    max_bytes: Annotated[int, Field(ge=4, le=2**30)] = 2**22
    """Largest message."""
    size_factor: Annotated[int, Field(ge=2, le=1024)] = 4
    """Factor from each message size to the next."""


class ShardingSection(Section):
    """Stages, shards and devices of engine sharding."""

    mode: Literal["sharding", "pipeline", "hybrid"] = "sharding"
    """sharding: one micro batch; pipeline: one shard per stage; hybrid: several of both."""
    sharding_size: Annotated[int, Field(ge=1, le=1024)] = 1
    """Shards of each stage."""
    sharding_dim: Literal[0, -1] = 0
    """Dimension along which each weight (outputs, inputs) is split: 0 or -1."""
    stage_cnt: Annotated[int, Field(ge=1, le=1024)] = 1
    """Stages that the layers are split into."""
    accum_degree: Positive = 1
    """Micro batches of an iteration."""
    device_mapping: dict[str, dict[str, str]] | None = None
    """Device of each shard of each stage: {"stage_0": {"shard_0": "GPU:0"}}; GPU:n or CPU:n, several may share one."""

    @property
    def grid(self) -> list[list[str]]:
        """Devices by stage and shard: one row per stage."""
        mapping = self.device_mapping or {}
        return [
            [mapping[f"stage_{stage}"][f"shard_{shard}"] for shard in range(self.sharding_size)]
            for stage in range(self.stage_cnt)
        ]

    @property
    def devices(self) -> list[str]:
        """Distinct devices of the map, by number; the index of a device is the rank of its process."""
        return sorted({device for stage in self.grid for device in stage}, key=lambda name: (int(name[4:]), name))

    @property
    def is_mixed(self) -> bool:
        """Whether the map names GPUs and CPUs, so that transfers between devices go through CPU memory."""
        return len({device[:3] for device in self.devices}) > 1


class CapacitySection(Section):
    """What engine capacity searches for, by short real runs of another engine; some of them run out of memory."""

    find: Literal["num_layers", "micro_batch_size", "processes"] = "num_layers"
    """Largest number of layers, largest micro batch, or fewest processes (stages, or data parallel ranks of zero)."""
    engine: TrialEngineName = engines.PIPELINE.name
    """Engine of the trials; the other sections configure them."""
    at_most: Annotated[int, Field(ge=1, le=2**16)] = 64
    """Largest value to try."""
    trial_timeout_s: Annotated[int, Field(ge=1, le=86400)] = 600
    """Time limit of a trial; a trial that takes longer ends the search."""


class AutotuningSection(Section):
    """Search space of DeepSpeed's own autotuner in engine autotuning, by short real runs of engine zero."""

    stages: Annotated[list[Annotated[int, Field(ge=0, le=3)]], Field(min_length=1, max_length=4)] = [0, 1, 2, 3]
    """ZeRO stages to try; the autotuner skips those that its own estimate rules out."""
    max_micro_batch_size: Annotated[int, Field(ge=1, le=2**16)] = 64
    """Largest micro batch to try; the search starts at train.micro_batch_size."""


class CommandSection(Section):
    """Program that engine command starts; the administrator of the node must have allowed it."""

    argv: Annotated[list[Argument], Field(min_length=1, max_length=500)] | None = None
    """Program and its arguments, without a shell: ["/opt/train.py", "--layers", "{model.num_layers}"]."""
    describes_training: bool = False
    """Sections model, train and parallel describe the training of the program: it is predicted and its FLOPs are
    counted. Otherwise only the fields that fill its arguments are facts."""


class ProfileSection(Section):
    """Steps that torch.profiler records; their traces are on the page of the run, and their times in no statistic."""

    steps: Annotated[list[Positive], Field(max_length=20)] = []
    """Consecutive steps to record, like [10, 11]. Empty: none."""
    ranks: Annotated[list[Annotated[int, Field(ge=0, le=2**20)]], Field(max_length=64)] = []
    """Ranks that record. Empty: all ranks below 8."""
    memory: bool = False
    """Also record allocations, for the memory over time; traces become larger."""


class CheckpointSection(Section):
    """When the ranks save their state, from which the next attempt of the run continues."""

    every_steps: Positive | None = None
    """Steps between two checkpoints. Empty: no checkpoints, unless every_s is set."""
    every_s: Annotated[int, Field(ge=1, le=30 * 86400)] | None = None
    """Seconds between two checkpoints, in addition to those of every_steps. Empty: only by steps."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 2
    """Checkpoints that stay; an older one is deleted once a newer one is complete."""
    directory: Annotated[str, Field(pattern=r"^/[^\x00-\x1f]{0,1023}$")] | None = None
    """Directory that all nodes of the run see; each run has a folder of its own there. Empty: on the node itself."""

    @property
    def is_on(self) -> bool:
        return self.every_steps is not None or self.every_s is not None


Runtime = Literal["pyxis", "enroot", "apptainer", "docker", "podman"]
"""Container runtimes; `runners.node.launch.containers` has their command lines."""
Mount = Annotated[str, Field(max_length=1000), AfterValidator(mount)]


class ContainerSetting(Section):
    """The container of the launcher and its ranks, which see the network and the devices of the node."""

    runtime: Runtime
    """Program that starts the container; pyxis: srun in a job of Slurm."""
    image: Annotated[str, Field(pattern=r"^[A-Za-z0-9/][A-Za-z0-9_./:@#+~-]{0,499}$")]
    """Image as the runtime names it, or the path of one on the node; for podman also of a root directory."""
    mounts: Annotated[list[Mount], Field(max_length=50)] = []
    """Directories of the node in the container, like ["/data:/data:ro"]. Those of the run and of parlab are there."""
    workdir: Annotated[str, Field(pattern=r"^/[^:,\x00]*$", max_length=1000)] | None = None
    """Working directory of the launcher. Empty: the directory of the run."""
    environment: Annotated[
        dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,199}$")], Argument], Field(max_length=200)
    ] = {}
    """Variables in the container, beside those of the launcher."""
    python: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./][A-Za-z0-9_./+-]{0,499}$")] = "python3"
    """Python of the image, with the packages of the engine."""


class LauncherSection(Section):
    """How the processes are started, watched and restarted."""

    kind: LauncherName = launchers.TORCHRUN.name
    """Launcher of one process per GPU; plain starts a single process."""
    threads_per_rank: Annotated[int, Field(ge=1, le=1024)] = 1
    """OMP_NUM_THREADS of each rank."""
    timeout_s: Annotated[int, Field(ge=1, le=30 * 86400)] = 3600
    """Time limit of the run; of a chain: of each attempt. A run that takes longer is stopped."""
    grace_s: Annotated[int, Field(ge=0, le=1800)] = 30
    """Time of a stopped run to write a checkpoint: from SIGTERM to SIGKILL. Where Slurm stops it: Slurm's KillWait."""
    container: ContainerSetting | None = None
    """Container of the launcher and its ranks: {"runtime": "podman", "image": "..."}. Empty: none."""
    memory_limit_mib: Annotated[int, Field(ge=64, le=2**30)] | None = None
    """CPU memory that each process may allocate, including Python; beyond it, out of memory. Empty: no limit."""
    collective_timeout_s: Annotated[int, Field(ge=5, le=86400)] = 300
    """Timeout of a rank that waits for another rank."""
    hang_timeout_s: Annotated[int, Field(ge=1, le=86400)] | None = 120
    """End a run without a step for this long and for 10 times the slowest step; stacks go to the log. Empty: never."""
    warn_before_s: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Time before timeout_s or the limit of the job at which ranks get warn_signal; Slurm: a minute early at most."""
    warn_signal: Literal["SIGUSR2", "SIGUSR1", "SIGHUP", "SIGINT"] = "SIGUSR2"
    """Signal to the ranks that handle it: write a checkpoint and end with exit code 85."""
    chain: bool = False
    """The run goes on in further attempts, each from the last checkpoint, until its command ends with exit code 0."""
    chain_until_step: Positive | None = None
    """Step at which a chain ends. Empty: that of the command."""
    chain_until_s: Annotated[int, Field(ge=1, le=365 * 86400)] | None = None
    """Time since the start of the first attempt at which a chain ends. Empty: no limit."""
    chain_until_exit_code: Annotated[int, Field(ge=1, le=255)] | None = None
    """Exit code of the command that ends a chain, besides 0."""
    chain_max_stalled: Annotated[int, Field(ge=1, le=100)] = 3
    """Attempts of a chain in a row without a new step after which it ends."""
    max_attempts: Annotated[int, Field(ge=1, le=20)] = 2
    """Attempts of a run that is lost with its node, including the first; of a chain: in a row without a new step."""
    repeats: Annotated[int, Field(ge=1, le=100)] = 1
    """Runs of each point, each with the next seed; figures and tables show their mean and spread."""
