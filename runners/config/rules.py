"""What no single field can see: sizes that do not divide, layouts that an engine does not train."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .network_rules import emulation_problems, network_problems
from .problems import Problem
from .sections import PLACEHOLDER, ModelSection, ParallelSection, ShardingSection

if TYPE_CHECKING:
    from .run import RunConfig


def _divisors(number: int, limit: int = 12) -> str:
    found = [str(n) for n in range(1, min(number, 4096) + 1) if number % n == 0]
    return ", ".join(found[:limit]) + (", ..." if len(found) > limit else "")


def contradictions(config: RunConfig) -> Iterator[Problem]:
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
    elif parallel.engine == "command":
        pass  # what its command does with few micro batches is the command's own affair
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
    yield from network_problems(config)
    yield from emulation_problems(config)
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
    if model.attention_backend == "flex" and mask != "prefix":
        message = f"attention_backend flex is for attention_mask prefix, not {mask}; use sdpa, or attention_mask prefix"
        yield Problem("model.attention_backend", "flex", message)
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
    if parallel.wire_precision == "int8" and chunks > 1:
        message = "wire_precision int8 corrects its errors within one chunk of layers; use bf16, or virtual_stages 1"
        yield Problem("parallel.wire_precision", "int8", message)
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
        "parallel.zero_stage": (0,),
    },
    "zero": {
        "train.recompute": ("none",),
        "train.gradient_clipping": (0.0,),
        "parallel.tensor_parallel_size": (1,),
        "parallel.pipeline_parallel_size": (1,),
        "parallel.schedule": ("1f1b",),
    },
    "hf": {
        "model.implementation": ("huggingface",),
        "model.attention_mask": ("causal", "bidirectional"),
        "train.recompute": ("none", "full"),
        "train.gradient_clipping": (0.0,),
        "parallel.tensor_parallel_size": (1,),
        "parallel.pipeline_parallel_size": (1,),
        "parallel.schedule": ("1f1b",),
        "parallel.zero_stage": (0,),
    },
    "sharding": {
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

Engine capacity trains what the engine of its trials does, and engine autotuning what engine zero does.
"""


def _engine_problems(config: RunConfig) -> Iterator[Problem]:
    """What the chosen engine does not train."""
    engine = config.parallel.engine
    if engine == "capacity":
        engine = config.capacity.engine
    if engine == "autotuning":
        engine = "zero"
        yield from _autotuning_problems(config)
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


def _autotuning_problems(config: RunConfig) -> Iterator[Problem]:
    first, most = config.train.micro_batch_size, config.autotuning.max_micro_batch_size
    if first > most:
        message = (
            f"max_micro_batch_size {most} is below train.micro_batch_size {first}, where it begins; use {first} or more"
        )
        yield Problem("autotuning.max_micro_batch_size", most, message)
    if config.parallel.zero_offload != "none":
        message = "DeepSpeed's autotuner drops offloading from what it tries; use none, or a sweep of engine zero"
        yield Problem("parallel.zero_offload", config.parallel.zero_offload, message)


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
    fields = {f"{section}.{name}" for section, values in config for name in type(values).model_fields}
    known = {"world_size", "num_micro_batches", *fields}
    for argument in config.command.argv or []:
        for name in PLACEHOLDER.findall(argument):
            if name not in known:
                message = f"{{{name}}} is no field; use {{section.field}}, {{world_size}} or {{num_micro_batches}}"
                yield Problem("command.argv", argument, message)


DEVICE = re.compile(r"(?:GPU|CPU):(?:0|[1-9][0-9]{0,3})")


def map_problems(sharding: ShardingSection) -> Iterator[Problem]:
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


def _sharding_problems(config: RunConfig) -> Iterator[Problem]:
    sharding, model, device = config.sharding, config.model, config.cluster.device
    yield from map_problems(sharding)
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
    if other := {"cpu": {"GPU"}, "cuda": {"CPU"}}.get(device, set()) & named:
        message = f"device {device} and a map with {other.pop()}s contradict each other; use auto, or another map"
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
