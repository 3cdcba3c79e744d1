"""What a launch was told -> the fields of a RunConfig that it fills; whatever does not fit stays in the arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from parlab.formats.schema import Launch
from runners.config import field_names, sections

Sections = dict[str, dict[str, Any]]

# Field -> normal name of a launch, or names of arguments as trainers print them, best first.
_FIELDS: dict[str, tuple[str, ...]] = {
    "model.num_layers": ("num_layers",),
    "model.hidden_size": ("hidden_size",),
    "model.num_attention_heads": ("num_attention_heads",),
    "model.sequence_length": ("sequence_length",),
    "model.vocab_size": ("padded_vocab_size", "vocab_size"),
    "train.global_batch_size": ("global_batch_size",),
    "train.micro_batch_size": ("micro_batch_size",),
    "train.iterations": ("train_iters", "num_iters", "max_steps", "total_steps", "training.steps", "train_steps"),
    "train.precision": ("precision",),
    "train.optimizer": ("optimizer", "optimizer.type"),
    "train.learning_rate": ("lr", "learning_rate"),
    "train.seed": ("seed",),
    "parallel.data_parallel_size": ("data_parallel_size",),
    "parallel.tensor_parallel_size": ("tensor_parallel_size",),
    "parallel.pipeline_parallel_size": ("pipeline_parallel_size",),
    "parallel.schedule": ("schedule", "pipeline_schedule", "pipeline_parallel_schedule"),
    "parallel.zero_stage": ("zero_stage",),
    "cluster.nodes": ("nodes", "nnodes", "num_nodes"),
    "cluster.gpus_per_node": ("gpus_per_node", "nproc_per_node", "num_gpus_per_node"),
}
# Names that mean something else where another tool prints them; only the normal form counts.
_NORMAL = frozenset(Launch.model_fields) - {"derived", "arguments"}


def resolved_of(launch: Launch) -> Sections:
    """Fill the fields of a RunConfig that a launch tells, section by section; all sections are there."""
    arguments = launch.arguments
    normal = {name: value for name in _NORMAL if (value := getattr(launch, name)) is not None}
    told: dict[str, Any] = {}
    for field, names in _FIELDS.items():
        for name in names:
            value = normal.get(name) if name in _NORMAL else arguments.get(name)
            if value is not None:
                told[field] = value.lower() if isinstance(value, str) else value
                break
    recompute = _recompute(arguments)
    if recompute:
        told["train.recompute"] = recompute
    return fitting(_placed(told, launch))


def fitting(told: Mapping[str, Any]) -> Sections:
    """Keep the dotted fields whose values a RunConfig can hold, by section."""
    known = set(field_names())
    found: Sections = {name: {} for name in sections()}
    for field, value in told.items():
        section, _, name = field.partition(".")
        if field in known and _fits(section, name, value):
            found[section][name] = value
    return found


def _fits(section: str, name: str, value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return False
    try:
        sections()[section].model_validate({name: value})
    except ValidationError:
        return False
    return True


def _placed(told: dict[str, Any], launch: Launch) -> dict[str, Any]:
    """Say on how many GPUs it ran, so that nodes x GPUs per node is the world size, where one of them is told."""
    world, nodes, each = launch.world_size, told.get("cluster.nodes"), told.get("cluster.gpus_per_node")
    if not world:
        return told
    if isinstance(nodes, int) and nodes > 0 and world % nodes == 0:
        return told | {"cluster.gpus_per_node": world // nodes}
    if isinstance(each, int) and each > 0 and world % each == 0:
        return told | {"cluster.nodes": world // each}
    return told


def runner_launch(launch: Launch) -> Launch:
    """Read the flags of the pipeline runner (`--dist-url --mode --num-layers`), which have meanings of their own.

    Its --num-layers counts the layers of one stage, its --batch-size is that of all micro batches, and each rank is
    a stage. Other launches come back as they are. Source: docs/engines.md, "By hand".
    """
    arguments = launch.arguments
    stages = launch.world_size
    if not {"dist_url", "num_layers", "embedding_dim"} <= arguments.keys() or not stages:
        return launch
    told: dict[str, Any] = {"pipeline_parallel_size": stages}
    derived = {"pipeline_parallel_size": "each rank of the pipeline runner is a stage"}
    if launch.num_layers == arguments["num_layers"] and isinstance(launch.num_layers, int):
        told["num_layers"] = launch.num_layers * stages
        derived["num_layers"] = "--num-layers of the pipeline runner counts the layers of a stage"
    batch = arguments.get("batch_size")
    if launch.global_batch_size is None and isinstance(batch, int) and batch > 0:
        told["global_batch_size"] = batch
        derived["global_batch_size"] = "--batch-size of the pipeline runner"
    mode = {"schedule": arguments["mode"]} if "schedule" not in arguments and "mode" in arguments else {}
    return launch.model_copy(update=told | {"derived": launch.derived | derived, "arguments": {**arguments, **mode}})


def staged_launch(launch: Launch) -> Launch:
    """Count the devices of a map of stages and shards: several shards may share one."""
    devices = {
        value
        for name, value in launch.arguments.items()
        if name.startswith("device_mapping.") and isinstance(value, str | int)
    }
    if not devices or launch.world_size is not None:
        return launch
    derived = launch.derived | {"world_size": "devices that device_mapping names"}
    return launch.model_copy(update={"world_size": len(devices), "derived": derived})


def _recompute(arguments: Mapping[str, Any]) -> str | None:
    """Read which activations are computed again, under Megatron-LM's names of all ages."""
    granularity = arguments.get("recompute_granularity")
    if granularity in ("selective", "full"):
        return str(granularity)
    # A switch of Megatron-LM since 2022 means selective recomputation, the one before it full.
    for name, kind in (("recompute_activations", "selective"), ("checkpoint_activations", "full")):
        if isinstance(arguments.get(name), bool):
            return kind if arguments[name] else "none"
    return None
