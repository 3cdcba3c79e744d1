"""The settings of a launch -> fields of a RunConfig; settings that fit no field stay in the arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import ValidationError

from parlab.formats.schema import Figure, Launch
from parlab.ingest.readings.architecture import described_fields, replicas_of
from runners.config import field_names, sections

Sections = dict[str, dict[str, Any]]

# Field -> normal name of a launch, or names of arguments as trainers print them, preferred first.
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
# Other tools use these argument names with other meanings; only the normal form is used.
_NORMAL = frozenset(Launch.model_fields) - {"derived", "arguments"}


def resolved_of(launch: Launch) -> Sections:
    """Return the fields of a RunConfig that a launch states, by section; every section is present."""
    arguments = launch.arguments
    normal = {name: value for name in _NORMAL if (value := getattr(launch, name)) is not None}
    fields: dict[str, Any] = {}
    for field, names in _FIELDS.items():
        for name in names:
            value = normal.get(name) if name in _NORMAL else arguments.get(name)
            if value is not None:
                fields[field] = value.lower() if isinstance(value, str) else value
                break
    recompute = _recompute(arguments)
    if recompute:
        fields["train.recompute"] = recompute
    described = described_fields(arguments, launch.hidden_size, launch.num_attention_heads)
    fields |= {field: value for field, value in described.items() if value is not None}
    world, tensor, pipeline = launch.world_size, launch.tensor_parallel_size, launch.pipeline_parallel_size
    if world and (replicas := replicas_of(arguments, world, tensor, pipeline)):
        fields["parallel.data_parallel_size"] = replicas
    return fitting(_placed(fields, launch))


def fitting(fields: Mapping[str, Any]) -> Sections:
    """Return the dotted fields whose values are valid in a RunConfig, by section."""
    valid_names = set(field_names())
    by_section: Sections = {name: {} for name in sections()}
    for field, value in fields.items():
        section, _, name = field.partition(".")
        if field in valid_names and _fits(section, name, value):
            by_section[section][name] = value
    return by_section


def _fits(section: str, name: str, value: Any) -> bool:
    annotation = sections()[section].model_fields[name].annotation
    is_flag = annotation is bool or bool in get_args(annotation)
    if value is None or isinstance(value, bool) is not is_flag:
        return False
    try:
        sections()[section].model_validate({name: value})
    except ValidationError:
        return False
    return True


def _placed(fields: dict[str, Any], launch: Launch) -> dict[str, Any]:
    """Complete nodes or GPUs per node, if one of them is stated, so that their product is the world size."""
    world, nodes, each = launch.world_size, fields.get("cluster.nodes"), fields.get("cluster.gpus_per_node")
    if not world:
        return fields
    if isinstance(nodes, int) and nodes > 0 and world % nodes == 0:
        return fields | {"cluster.gpus_per_node": world // nodes}
    if isinstance(each, int) and each > 0 and world % each == 0:
        return fields | {"cluster.nodes": world // each}
    return fields


def runner_launch(launch: Launch) -> Launch:
    """Interpret the flags of the pipeline runner (`--dist-url --mode --num-layers`), which have special meanings.

    Its --num-layers is the number of layers per stage, its --batch-size the size of all micro batches together, and
    each rank is a stage. Other launches are returned unchanged. Source: docs/understand/engines.md, "By hand".
    """
    arguments = launch.arguments
    stages = launch.world_size
    if not {"dist_url", "num_layers", "embedding_dim"} <= arguments.keys() or not stages:
        return launch
    settings: dict[str, Any] = {"pipeline_parallel_size": stages}
    derived = {"pipeline_parallel_size": "each rank of the pipeline runner is a stage"}
    if launch.num_layers == arguments["num_layers"] and isinstance(launch.num_layers, int):
        settings["num_layers"] = launch.num_layers * stages
        derived["num_layers"] = "--num-layers of the pipeline runner counts the layers of a stage"
    batch = arguments.get("batch_size")
    if launch.global_batch_size is None and isinstance(batch, int) and batch > 0:
        settings["global_batch_size"] = batch
        derived["global_batch_size"] = "--batch-size of the pipeline runner"
    mode = {"schedule": arguments["mode"]} if "schedule" not in arguments and "mode" in arguments else {}
    return launch.model_copy(
        update=settings | {"derived": launch.derived | derived, "arguments": {**arguments, **mode}}
    )


def staged_launch(launch: Launch) -> Launch:
    """Set the world size to the number of devices in a map of stages and shards, which may share devices."""
    devices = {
        value
        for name, value in launch.arguments.items()
        if name.startswith("device_mapping.") and isinstance(value, str | int)
    }
    if not devices or launch.world_size is not None:
        return launch
    derived = launch.derived | {"world_size": "devices in device_mapping"}
    return launch.model_copy(update={"world_size": len(devices), "derived": derived})


def with_prose_gpus(launch: Launch, stated: Figure, nodes: int | None = None) -> Launch:
    """Set the world size to the number of GPUs that a sentence states; the sentence and its line explain it."""
    derived = launch.derived | {"world_size": f"line {stated.line}: {stated.text[:200]}"}
    arguments = {**({"num_nodes": nodes} if nodes else {}), **launch.arguments}
    return launch.model_copy(update={"world_size": int(stated.value or 0), "derived": derived, "arguments": arguments})


def _recompute(arguments: Mapping[str, Any]) -> str | None:
    """Return which activations are recomputed, by the argument names of all versions of Megatron-LM."""
    granularity = arguments.get("recompute_granularity")
    if granularity in ("selective", "full"):
        return str(granularity)
    # recompute_activations (since 2022) means selective recomputation, the older checkpoint_activations full.
    for name, kind in (("recompute_activations", "selective"), ("checkpoint_activations", "full")):
        if isinstance(arguments.get(name), bool):
            return kind if arguments[name] else "none"
    return None
