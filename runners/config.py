"""RunConfig: the one definition of a configuration, for the admin, the API and the runner.

A configuration is a tree of sections and a launcher. Whatever is wrong with one is reported as
`Problem`s that name the field, its value and the remedy; nothing is dropped or corrected in silence.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

MAX_SWEEP_POINTS = 2_000

Positive = Annotated[int, Field(ge=1, le=2**40)]
Argument = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")]
"""One argument of a command."""
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

    engine: Literal["pipeline", "megatron", "allreduce", "zero", "hf", "sharding", "capacity", "command"] = "pipeline"
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
    wire_precision: Literal["same", "bf16", "fp16"] = "same"
    """What travels between stages: as it was computed, or in 16 bits (gradients then always as bf16)."""
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
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes GPUs where the node has enough of them, CPU processes otherwise."""


class NetworkSection(Section):
    """The links between ranks; they are used as they are."""


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
        return sorted({device for stage in self.grid for device in stage}, key=lambda name: int(name[4:]))


class CapacitySection(Section):
    """What engine capacity looks for by short real runs of another engine, some of which run out of memory."""

    find: Literal["num_layers", "micro_batch_size", "processes"] = "num_layers"
    """Largest number of layers, largest micro batch, or fewest processes (stages, or data parallel ranks of zero)."""
    engine: Literal["pipeline", "megatron", "zero"] = "pipeline"
    """Engine of the trials; the other sections describe its run."""
    at_most: Annotated[int, Field(ge=1, le=2**16)] = 64
    """Largest value that is tried."""
    trial_timeout_s: Annotated[int, Field(ge=1, le=86400)] = 600
    """A trial that takes longer ends the search."""


class CommandSection(Section):
    """What engine command starts: a command of the team's own, which the node's administrator has allowed."""

    argv: Annotated[list[Argument], Field(min_length=1, max_length=500)] | None = None
    """Program and arguments, one by one, no shell: ["/opt/train.py", "--layers", "{model.num_layers}"]."""


class LauncherSection(Section):
    """How the processes are started, watched and started again."""

    kind: Literal["torchrun", "plain", "deepspeed", "mpirun", "srun"] = "torchrun"
    """torchrun starts one process per GPU; plain starts one process in all; the others are for engine command."""
    threads_per_rank: Annotated[int, Field(ge=1, le=1024)] = 1
    """OMP_NUM_THREADS of each rank."""
    timeout_s: Annotated[int, Field(ge=1, le=30 * 86400)] = 3600
    """The run is stopped and called failed after this long."""
    memory_limit_mib: Annotated[int, Field(ge=64, le=2**30)] | None = None
    """Memory of the CPU that each process may allocate, Python included; more is out of memory. Empty: no limit."""
    collective_timeout_s: Annotated[int, Field(ge=5, le=86400)] = 300
    """A rank that waits longer than this for another one gives up."""
    max_attempts: Annotated[int, Field(ge=1, le=20)] = 2
    """How often a run that was lost with its node is started in all."""


class Problem(NamedTuple):
    """One thing that is wrong with a configuration: dotted field, its value, and a remedy in words."""

    field: str
    value: Any
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class ConfigError(ValueError):
    """A configuration that cannot run, with all its problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(str(problem) for problem in problems))


class RunConfig(Section):
    """One fully described training run."""

    model: ModelSection = ModelSection()
    """The network that is trained."""
    train: TrainSection = TrainSection()
    """The work of one iteration."""
    parallel: ParallelSection = ParallelSection()
    """How the work is split."""
    cluster: ClusterSection = ClusterSection()
    """Where it runs."""
    network: NetworkSection = NetworkSection()
    """The links between ranks."""
    collectives: CollectivesSection = CollectivesSection()
    """What engine allreduce times."""
    sharding: ShardingSection = ShardingSection()
    """Stages, shards and devices for engine sharding."""
    capacity: CapacitySection = CapacitySection()
    """What engine capacity looks for."""
    command: CommandSection = CommandSection()
    """What engine command starts."""
    launcher: LauncherSection = LauncherSection()
    """How processes are started."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        problems = list(_contradictions(self))
        if problems:
            # pydantic swallows the type of errors raised here, so the problems travel in the context.
            message = "; ".join(str(problem) for problem in problems).replace("{", "(").replace("}", ")")
            raise PydanticCustomError("contradiction", cast(Any, message), {"problems": problems})
        return self

    @property
    def world_size(self) -> int:
        """Ranks of the run: TP·PP·DP, or the devices that a map of shards names."""
        parallel = self.parallel
        if parallel.engine == "sharding" and self.sharding.device_mapping and not list(_map_problems(self.sharding)):
            return len(self.sharding.devices)
        if parallel.engine == "capacity" and self.capacity.find == "processes":
            return self.capacity.at_most
        return parallel.tensor_parallel_size * parallel.pipeline_parallel_size * parallel.data_parallel_size

    @property
    def num_micro_batches(self) -> int:
        """Micro batches per iteration and data parallel rank (gradient accumulation steps)."""
        return self.train.global_batch_size // (self.train.micro_batch_size * self.parallel.data_parallel_size)

    @property
    def gpus_per_node(self) -> int:
        """GPUs on each node, also where the configuration leaves it to the layout."""
        return self.cluster.gpus_per_node or self.world_size // self.cluster.nodes

    def resolved(self) -> dict[str, Any]:
        """Every field with its value, none left to a default."""
        data = self.model_dump(mode="json")
        data["cluster"]["gpus_per_node"] = self.gpus_per_node
        return data


def _divisors(number: int, limit: int = 12) -> str:
    found = [str(n) for n in range(1, min(number, 4096) + 1) if number % n == 0]
    return ", ".join(found[:limit]) + (", ..." if len(found) > limit else "")


def _contradictions(config: RunConfig) -> Iterator[Problem]:
    """What no single field can see: sizes that do not divide, layouts that an engine does not train."""
    model, train, parallel = config.model, config.train, config.parallel
    heads, tensor, pipeline = model.num_attention_heads, parallel.tensor_parallel_size, parallel.pipeline_parallel_size

    if model.hidden_size % heads:
        yield Problem(
            "model.num_attention_heads",
            heads,
            f"num_attention_heads {heads} does not divide hidden_size {model.hidden_size};"
            f" use {_divisors(model.hidden_size)}",
        )
    if heads % tensor:
        yield Problem(
            "parallel.tensor_parallel_size",
            tensor,
            f"tensor_parallel_size {tensor} does not divide num_attention_heads {heads}; use {_divisors(heads)}",
        )
    if model.num_layers < pipeline:
        yield Problem(
            "parallel.pipeline_parallel_size",
            pipeline,
            f"pipeline_parallel_size {pipeline} is more than num_layers {model.num_layers};"
            f" use at most {model.num_layers} stages or more layers",
        )
    share = train.micro_batch_size * parallel.data_parallel_size
    if parallel.engine in WITHOUT_BATCHES:
        pass
    elif train.global_batch_size % share:
        yield Problem(
            "train.global_batch_size",
            train.global_batch_size,
            f"global_batch_size {train.global_batch_size} is not divisible by micro_batch_size"
            f" {train.micro_batch_size} x data_parallel_size {parallel.data_parallel_size} = {share};"
            f" use a multiple of {share}",
        )
    elif parallel.schedule != "gpipe" and config.num_micro_batches < pipeline:
        yield Problem(
            "train.micro_batch_size",
            train.micro_batch_size,
            f"{parallel.schedule} needs at least as many micro batches as stages: {config.num_micro_batches} micro"
            f" batches for {pipeline} stages; use a smaller micro_batch_size, a larger global_batch_size or gpipe",
        )
    if train.warmup_steps >= train.iterations:
        yield Problem(
            "train.warmup_steps",
            train.warmup_steps,
            f"warmup_steps {train.warmup_steps} leaves nothing of {train.iterations} iterations to measure;"
            f" use at most {train.iterations - 1}",
        )
    yield from _mask_problems(model)
    yield from _tensor_problems(config)
    yield from _schedule_problems(config)
    yield from _placement_problems(config)
    yield from _engine_problems(config)


def _mask_problems(model: ModelSection) -> Iterator[Problem]:
    mask = model.attention_mask
    if model.kind == "bert" and mask != "bidirectional":
        yield Problem("model.attention_mask", mask, f"a bert looks both ways, not {mask}; use bidirectional")
    if model.kind == "gpt" and mask == "bidirectional":
        remedy = "use causal or prefix, or kind bert"
        yield Problem("model.attention_mask", mask, f"a gpt that looks both ways sees what it has to guess; {remedy}")
    length, longest = model.prefix_length, model.sequence_length - 1
    if model.attention_mask == "prefix" and not 1 <= length <= longest:
        remedy = f"use 1 to {longest}" if longest else "use a longer sequence, or another attention_mask"
        yield Problem(
            "model.prefix_length",
            length,
            f"prefix_length {length} leaves no prefix or nothing after it in {model.sequence_length} tokens; {remedy}",
        )
    if model.attention_mask != "prefix" and length:
        yield Problem(
            "model.prefix_length",
            length,
            f"prefix_length {length} has no meaning with attention_mask {model.attention_mask};"
            " use 0, or attention_mask prefix",
        )


def _tensor_problems(config: RunConfig) -> Iterator[Problem]:
    model, tensor = config.model, config.parallel.tensor_parallel_size
    if model.vocab_size % tensor:
        yield Problem(
            "model.vocab_size",
            model.vocab_size,
            f"tensor_parallel_size {tensor} does not divide vocab_size {model.vocab_size};"
            f" use {-(-model.vocab_size // tensor) * tensor}, or another tensor_parallel_size",
        )
    if config.parallel.sequence_parallel and tensor == 1:
        yield Problem(
            "parallel.sequence_parallel",
            True,
            "sequence_parallel needs ranks that share layers, tensor_parallel_size is 1; use 2 or more, or false",
        )
    elif config.parallel.sequence_parallel and model.sequence_length % tensor:
        yield Problem(
            "model.sequence_length",
            model.sequence_length,
            f"tensor_parallel_size {tensor} does not divide sequence_length {model.sequence_length} for"
            " sequence_parallel; use a multiple, or sequence_parallel false",
        )
    if config.train.loss_scale is not None and config.train.precision != "fp16":
        yield Problem(
            "train.loss_scale",
            config.train.loss_scale,
            f"loss_scale is for precision fp16, not {config.train.precision}; leave it empty, or use fp16",
        )


def _schedule_problems(config: RunConfig) -> Iterator[Problem]:
    parallel, num_layers = config.parallel, config.model.num_layers
    stages, chunks, slope = parallel.pipeline_parallel_size, parallel.virtual_stages, parallel.warmup_slope
    if slope > 1 and parallel.schedule != "1f1b":
        yield Problem(
            "parallel.warmup_slope",
            slope,
            f"warmup_slope {slope} is for schedule 1f1b, not {parallel.schedule}; use 1, or schedule 1f1b",
        )
    if parallel.schedule != "interleaved-1f1b":
        if chunks > 1:
            yield Problem(
                "parallel.virtual_stages",
                chunks,
                f"virtual_stages {chunks} is for schedule interleaved-1f1b, not {parallel.schedule};"
                " use 1, or schedule interleaved-1f1b",
            )
        return
    if stages == 1:
        yield Problem(
            "parallel.schedule",
            parallel.schedule,
            "interleaved-1f1b needs a pipeline, pipeline_parallel_size is 1; use at least 2, or schedule 1f1b",
        )
    elif not 2 <= chunks <= num_layers // stages:
        most = num_layers // stages
        remedy = f"use 2 to {most}" if most >= 2 else f"use at least {2 * stages} layers, or schedule 1f1b"
        yield Problem(
            "parallel.virtual_stages",
            chunks,
            f"virtual_stages {chunks} does not interleave {num_layers} layers on {stages} ranks; {remedy}",
        )
    if config.num_micro_batches % stages:
        yield Problem(
            "train.global_batch_size",
            config.train.global_batch_size,
            f"interleaved-1f1b needs a multiple of pipeline_parallel_size {stages} micro batches, these are"
            f" {config.num_micro_batches}; use another global_batch_size or micro_batch_size, or schedule 1f1b",
        )


def _placement_problems(config: RunConfig) -> Iterator[Problem]:
    parallel, cluster, world_size = config.parallel, config.cluster, config.world_size
    layout = (
        f"TP {parallel.tensor_parallel_size} x PP {parallel.pipeline_parallel_size}"
        f" x DP {parallel.data_parallel_size} = {world_size}"
    )
    if cluster.gpus_per_node is None:
        if world_size % cluster.nodes:
            yield Problem(
                "cluster.nodes",
                cluster.nodes,
                f"nodes {cluster.nodes} does not divide {layout} GPUs; use {_divisors(world_size)}",
            )
    elif cluster.nodes * cluster.gpus_per_node != world_size:
        yield Problem(
            "cluster.gpus_per_node",
            cluster.gpus_per_node,
            f"{cluster.nodes} x {cluster.gpus_per_node} GPUs is not {layout};"
            " leave gpus_per_node empty or make them equal",
        )
    if config.launcher.kind not in ("torchrun", "plain") and parallel.engine != "command":
        message = f"launcher {config.launcher.kind} is for engine command; use torchrun"
        yield Problem("launcher.kind", config.launcher.kind, message)
    if config.launcher.kind == "plain" and world_size > 1 and parallel.engine != "command":
        yield Problem(
            "launcher.kind", "plain", f"launcher plain starts one process, the layout needs {world_size}; use torchrun"
        )


ENGINE_TRAINS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "pipeline": {
        "model.kind": ("gpt",),
        "model.attention_mask": ("causal", "prefix"),
        "train.precision": ("fp32", "bf16"),
        "train.recompute": ("none",),
        "train.gradient_clipping": (0.0,),
        "parallel.data_parallel_size": (1,),
        "parallel.tensor_parallel_size": (1,),
        "parallel.zero_stage": (0,),
    },
    "megatron": {
        "parallel.schedule": ("gpipe", "1f1b", "interleaved-1f1b"),
        "parallel.zero_stage": (0,),
    },
    "zero": {
        "model.kind": ("gpt",),
        "model.attention_mask": ("causal", "prefix"),
        "train.recompute": ("none",),
        "train.gradient_clipping": (0.0,),
        "parallel.tensor_parallel_size": (1,),
        "parallel.pipeline_parallel_size": (1,),
        "parallel.schedule": ("1f1b",),
    },
    "hf": {
        "model.kind": ("gpt",),
        "model.implementation": ("huggingface",),
        "model.attention_mask": ("causal",),
        "train.recompute": ("none", "full"),
        "train.gradient_clipping": (0.0,),
        "parallel.tensor_parallel_size": (1,),
        "parallel.pipeline_parallel_size": (1,),
        "parallel.schedule": ("1f1b",),
        "parallel.zero_stage": (0,),
    },
    "sharding": {
        "model.kind": ("gpt",),
        "model.attention_mask": ("causal", "prefix"),
        "train.precision": ("fp32",),
        "train.recompute": ("none",),
        "parallel.data_parallel_size": (1,),
        "parallel.tensor_parallel_size": (1,),
        "parallel.pipeline_parallel_size": (1,),
        "parallel.schedule": ("1f1b",),
        "parallel.zero_stage": (0,),
    },
    "allreduce": {
        "parallel.tensor_parallel_size": (1,),
        "parallel.pipeline_parallel_size": (1,),
        "parallel.schedule": ("1f1b",),
    },
    "command": {},
}
"""Engine -> fields of which it trains only these values; it trains every value of a field not named here.

Engine capacity trains what the engine of its trials does.
"""


def _engine_problems(config: RunConfig) -> Iterator[Problem]:
    """What the chosen engine does not train."""
    engine = config.parallel.engine
    if engine == "capacity":
        engine = config.capacity.engine
    for field, trained in ENGINE_TRAINS[engine].items():
        section, _, name = field.partition(".")
        value = getattr(getattr(config, section), name)
        if value not in trained:
            choice = " or ".join(str(one) for one in trained)
            yield Problem(field, value, f"{name} {value} is not trained by engine {engine}; use {choice}")
    yield from _huggingface_problems(config.model, engine)
    if config.parallel.zero_offload != "none":
        yield from _offload_problems(config.parallel, engine)
    if engine == "command":
        yield from _command_problems(config)
    if engine == "sharding":
        yield from _sharding_problems(config)
    if engine == "allreduce":
        yield from _collectives_problems(config)


def _huggingface_problems(model: ModelSection, engine: str) -> Iterator[Problem]:
    if model.implementation == "parlab":
        return
    if engine not in WITH_HUGGING_FACE:
        message = f"engine {engine} trains no model of Hugging Face; use implementation parlab, or engine "
        yield Problem("model.implementation", model.implementation, message + " or ".join(WITH_HUGGING_FACE))
    if model.attention_mask == "prefix":
        message = "Hugging Face's models have no prefix mask; use attention_mask causal, or implementation parlab"
        yield Problem("model.attention_mask", "prefix", message)


def _offload_problems(parallel: ParallelSection, engine: str) -> Iterator[Problem]:
    offload, stage = parallel.zero_offload, parallel.zero_stage
    if engine not in ("zero", "command"):
        message = f"zero_offload {offload} is for engine zero, not {engine}; use none, or engine zero"
        yield Problem("parallel.zero_offload", offload, message)
    elif stage < (least := 3 if offload == "all" else 1):
        message = f"zero_offload {offload} needs zero_stage {least} or more, this is {stage}; use none, or zero_stage 3"
        yield Problem("parallel.zero_offload", offload, message)


def _command_problems(config: RunConfig) -> Iterator[Problem]:
    if config.command.argv is None:
        message = 'engine command needs argv; use a list like ["/opt/train.py", "--layers", "{model.num_layers}"]'
        yield Problem("command.argv", None, message)
    known = {"world_size", "num_micro_batches", *field_names()}
    for argument in config.command.argv or []:
        for name in PLACEHOLDER.findall(argument):
            if name not in known:
                message = f"{{{name}}} is no field; use {{section.field}}, {{world_size}} or {{num_micro_batches}}"
                yield Problem("command.argv", argument, message)


DEVICE = re.compile(r"(?:GPU|CPU):(?:0|[1-9][0-9]{0,3})")


def _map_problems(sharding: ShardingSection) -> Iterator[Problem]:
    """What is wrong with the map of devices itself."""
    mapping, field = sharding.device_mapping, "sharding.device_mapping"
    if mapping is None:
        message = 'engine sharding needs device_mapping; use one like {"stage_0": {"shard_0": "CPU:0"}}'
        yield Problem(field, None, message)
        return
    levels: list[tuple[str, Mapping[str, Any], int, str]] = [("", mapping, sharding.stage_cnt, "stage_cnt")]
    levels += [(f".{name}", shards, sharding.sharding_size, "sharding_size") for name, shards in mapping.items()]
    for level, names, count, counted in levels:
        kind = "shard" if level else "stage"
        if set(names) != {f"{kind}_{number}" for number in range(count)}:
            message = (
                f"{counted} is {count}, these are {len(names)} names; use {kind}_0 to {kind}_{count - 1}, each once"
            )
            yield Problem(field + level, ", ".join(names)[:200], message)
    devices = {device for shards in mapping.values() for device in shards.values()}
    for device in sorted(devices):
        if not DEVICE.fullmatch(device):
            yield Problem(field, device, f"{device[:60]} is no device; use GPU:n or CPU:n, n from 0")
    if len({device[:3] for device in devices}) > 1:
        message = (
            "a map names GPUs or CPUs, not both: one transport joins all; use GPU:n everywhere or CPU:n everywhere"
        )
        yield Problem(field, ", ".join(sorted(devices))[:200], message)


def _sharding_problems(config: RunConfig) -> Iterator[Problem]:
    sharding, model, device = config.sharding, config.model, config.cluster.device
    yield from _map_problems(sharding)
    size, stages, degree = sharding.sharding_size, sharding.stage_cnt, sharding.accum_degree
    if stages > model.num_layers:
        message = f"stage_cnt {stages} is more than num_layers {model.num_layers}; use at most that, or more layers"
        yield Problem("sharding.stage_cnt", stages, message)
    for name in ("hidden_size", "vocab_size"):
        whole = getattr(model, name)
        if whole % size:
            message = f"sharding_size {size} does not divide {name} {whole}; use {_divisors(whole)}"
            yield Problem("sharding.sharding_size", size, message)
    if sharding.mode == "sharding" and degree > 1:
        message = f"accum_degree {degree} is a pipeline; use 1, or mode hybrid"
        yield Problem("sharding.accum_degree", degree, message)
    if sharding.mode == "pipeline" and size > 1:
        message = f"sharding_size {size} in mode pipeline; use 1, or mode hybrid"
        yield Problem("sharding.sharding_size", size, message)
    if config.train.micro_batch_size * degree != config.train.global_batch_size:
        message = (
            f"micro_batch_size {config.train.micro_batch_size} x accum_degree {degree} is not global_batch_size"
            f" {config.train.global_batch_size}; use micro_batch_size = global_batch_size / accum_degree"
        )
        yield Problem("train.micro_batch_size", config.train.micro_batch_size, message)
    named = {device[:3] for stage in (sharding.device_mapping or {}).values() for device in stage.values()}
    if (device, named) in (("cpu", {"GPU"}), ("cuda", {"CPU"})):
        message = f"device {device} and a map of {named.pop()}s contradict each other; use auto, or another map"
        yield Problem("cluster.device", device, message)


def _collectives_problems(config: RunConfig) -> Iterator[Problem]:
    sizes, ranks = config.collectives, config.world_size
    if ranks < 2:
        yield Problem(
            "parallel.data_parallel_size", ranks, "one rank has nobody to talk to; use data_parallel_size 2 or more"
        )
    if sizes.max_bytes < sizes.min_bytes:
        message = f"max_bytes {sizes.max_bytes} is less than min_bytes {sizes.min_bytes}; use at least that"
        yield Problem("collectives.max_bytes", sizes.max_bytes, message)
    if sizes.min_bytes < 4 * ranks:
        message = f"min_bytes {sizes.min_bytes} is less than one number for each of {ranks} ranks; use {4 * ranks}"
        yield Problem("collectives.min_bytes", sizes.min_bytes, message + " or more")


WITH_HUGGING_FACE = ("zero", "hf", "command")
"""Engines that train models of Hugging Face, or whatever they are told."""
WITHOUT_BATCHES = ("allreduce",)
"""Engines that train on no batch, so that its size need not suit the layout."""


def check(data: Mapping[str, Any]) -> tuple[RunConfig | None, list[Problem]]:
    """Read a configuration: (RunConfig, []) or (None, every problem that could be found)."""
    try:
        return RunConfig.model_validate(data), []
    except ValidationError as error:
        return None, [problem for detail in error.errors() for problem in _problems_of(detail)]


def _problems_of(detail: ErrorDetails) -> list[Problem]:
    if "problems" in detail.get("ctx", {}):
        return list(detail["ctx"]["problems"])
    field = ".".join(str(part) for part in detail["loc"])
    value = detail["input"]
    if detail["type"] == "extra_forbidden":
        known = ", ".join(sorted(_fields_beside(field)))
        return [Problem(field, value, f"unknown field {field}; known here: {known or 'none'}")]
    if detail["type"] == "missing":
        return [Problem(field, None, f"{field} is missing; give it a value")]
    shown = json.dumps(value, default=str)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    reason = detail["msg"]
    return [Problem(field, value, f"{shown} cannot be {field}: {reason[:1].lower()}{reason[1:]}")]


def complete(data: Mapping[str, Any]) -> dict[str, Any]:
    """Every field with its value or its default, whether or not they fit together.

    Raises ConfigError for unknown fields and for values that a field cannot have.
    """
    try:
        return RunConfig.model_validate(data).model_dump(mode="json")
    except ValidationError as error:
        problems = [
            problem
            for detail in error.errors()
            if detail["type"] != "contradiction"
            for problem in _problems_of(detail)
        ]
    if problems:
        raise ConfigError(problems)
    return {
        name: section.model_validate(data.get(name, {})).model_dump(mode="json") for name, section in sections().items()
    }


def sections() -> dict[str, type[Section]]:
    """Section name -> its class, in the order in which people think of them."""
    return {name: cast(type[Section], field.annotation) for name, field in RunConfig.model_fields.items()}


def _fields_beside(field: str) -> list[str]:
    section, _, _name = field.rpartition(".")
    known = sections()
    if not section:
        return list(known)
    return list(known[section].model_fields) if section in known else []


def field_names() -> list[str]:
    """All dotted field names, as sweep axes name them."""
    return [f"{name}.{field}" for name, section in sections().items() for field in section.model_fields]


def with_values(data: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a configuration with dotted fields set to new values."""
    copy: dict[str, Any] = json.loads(json.dumps(data))
    for dotted, value in values.items():
        section, _, name = dotted.partition(".")
        copy.setdefault(section, {})[name] = value
    return copy


class Point(NamedTuple):
    """One point of a sweep: the axis values, and either a RunConfig or the reasons why it cannot run."""

    values: dict[str, Any]
    config: RunConfig | None
    problems: list[Problem]


def sweep_problems(sweep: Any) -> list[Problem]:
    """What is wrong with the sweep itself: unknown fields, axes without values, too many points."""
    if not isinstance(sweep, Mapping):
        return [Problem("sweep", sweep, 'a sweep maps fields to lists, like {"train.micro_batch_size": [1, 2, 4]}')]
    problems = []
    known = set(field_names())
    points = 1
    for axis, values in sweep.items():
        if axis not in known:
            near = ", ".join(sorted(name for name in known if name.rpartition(".")[2] == str(axis).rpartition(".")[2]))
            problems.append(
                Problem("sweep", axis, f"axis {axis} is no field; {f'use {near}' if near else 'use section.field'}")
            )
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            problems.append(Problem("sweep", values, f"axis {axis} needs a list of at least one value, like [1, 2, 4]"))
            continue
        seen = [json.dumps(value, sort_keys=True, default=str) for value in values]
        repeated = sorted({value for value in seen if seen.count(value) > 1})
        if repeated:
            problems.append(
                Problem(
                    "sweep", values, f"axis {axis} names {', '.join(repeated)} more than once; name each value once"
                )
            )
        points *= len(values)
    if points > MAX_SWEEP_POINTS:
        problems.append(
            Problem(
                "sweep",
                points,
                f"{points} points are more than {MAX_SWEEP_POINTS}; split the sweep into several configs",
            )
        )
    return problems


def expand(data: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]]) -> list[Point]:
    """All points of a sweep in the order of its axes, invalid ones included with their reasons.

    An empty sweep is one point. Raises ConfigError when the sweep itself makes no sense.
    """
    problems = sweep_problems(sweep)
    if problems:
        raise ConfigError(problems)
    points = []
    for combination in itertools.product(*sweep.values()):
        values = dict(zip(sweep, combination, strict=True))
        config, found = check(with_values(data, values))
        points.append(Point(values, config, found))
    return points


def digest(data: Any) -> str:
    """SHA-256 over canonical JSON: equal configurations have equal digests whatever their key order."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted fields whose values differ: field -> (old, new); None where one side has no value."""
    changed: dict[str, tuple[Any, Any]] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changed |= difference(before, after, f"{prefix}{key}.")
        elif before != after:
            changed[f"{prefix}{key}"] = (before, after)
    return changed
