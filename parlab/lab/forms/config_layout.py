"""Presentation of configuration fields: titles, units, and the fields that have no effect for an engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from typing import Any

from parlab.charts.fields import value_label
from runners.config import ENGINES, engine_of, field_names, sections, training_engine

TITLES = {
    "parallel": "Parallelism",
    "model": "Model",
    "train": "Training",
    "collectives": "Collectives",
    "sharding": "Stages and shards",
    "capacity": "Capacity search",
    "autotuning": "DeepSpeed autotuner",
    "command": "Command",
    "cluster": "Cluster",
    "slurm": "Slurm",
    "kubernetes": "Kubernetes",
    "network": "Network",
    "emulation": "Emulated compute",
    "profile": "Traces",
    "checkpoint": "Checkpoints",
    "launcher": "Launcher",
}
"""Section -> heading, in the order of the form; the engine comes first because the other fields depend on it."""

_SYSTEMS = ("slurm", "kubernetes")
"""Sections of batch systems, named like them."""
QueuePools = Mapping[str, Collection[str]]
"""Batch system -> pools whose nodes come from it."""
_NO_POOLS: QueuePools = {}


@lru_cache(4096)
def shown_label(label: str) -> str:
    """Return the label of a run for people: `micro_batch_size 2, delay_ms 5` as `micro batch size 2, delay 5 ms`.

    The stored label identifies the point in watches and filters; a part that begins with no field stays as it is.
    """
    return ", ".join(_shown_part(part) for part in label.split(", "))


def _shown_part(part: str) -> str:
    name, space, value = part.partition(" ")
    field = _fields_by_name().get(name)
    shown = {"True": "yes", "False": "no"}.get(value, value)
    return value_label(field, shown) if field and space and " " not in value else part


@cache
def _fields_by_name() -> dict[str, str]:
    return {name.rpartition(".")[2]: name for name in field_names()}


def section_names() -> list[str]:
    """List the sections in the order of the form; sections without a heading come last."""
    names = sections()
    return [name for name in TITLES if name in names] + [name for name in names if name not in TITLES]


def unused_fields(data: Mapping[str, Mapping[str, Any]], *, queue_pools: QueuePools = _NO_POOLS) -> set[str]:
    """Return the dotted fields that have no effect on a run of this configuration.

    These are fields of which the engine supports only one value, and fields that another field disables. They are
    still validated: an unsupported value is an error even if the field has no effect. `queue_pools` are the pools
    whose nodes come from the batch system that a section is about.
    """

    def get(field: str) -> Any:
        section, _, name = field.partition(".")
        return data.get(section, {}).get(name)

    engine = engine_of(data)
    unused = _of_sections({name for row in ENGINES.values() for name in row.sections} - set(engine.sections))
    if engine.is_external:
        return unused | _of_other_pools(data, queue_pools)  # its command may read any other field
    trainer = training_engine(engine, get("capacity.engine"))
    unused |= {name for row in ENGINES.values() for name in row.fields} - set(trainer.fields)
    unused |= {field for field, values in trainer.supported_values.items() if len(values) == 1}
    unused |= _switched_off(get) | set(engine.ignores) | _of_other_pools(data, queue_pools)
    if engine.reads_only is not None:
        unused |= _of_sections({"model", "train", "parallel"}) - set(engine.reads_only)
    if engine.searches_capacity:
        unused.add(f"model.{get('capacity.find')}")
        unused.add(f"train.{get('capacity.find')}")
    return (unused & set(field_names())) - {"parallel.engine"}


def _of_sections(names: set[str]) -> set[str]:
    return {field for field in field_names() if field.partition(".")[0] in names}


def _of_other_pools(data: Mapping[str, Mapping[str, Any]], queue_pools: QueuePools) -> set[str]:
    """Return the fields of sections of batch systems that the pool has not, unless one of a section is set."""
    pool = data.get("cluster", {}).get("pool")
    return _of_sections(
        {name for name in _SYSTEMS if pool not in queue_pools.get(name, ()) and not _is_set(data, name)}
    )


def _is_set(data: Mapping[str, Mapping[str, Any]], section: str) -> bool:
    defaults = _defaults(section)
    # A form that was sent back has texts.
    return any(str(value) not in ("", "None", defaults.get(name)) for name, value in data.get(section, {}).items())


@cache
def _defaults(section: str) -> Mapping[str, str]:
    return {name: str(value) for name, value in sections()[section]().model_dump(mode="json").items()}


def _switched_off(get: Any) -> set[str]:
    """Return the fields that have no meaning with the values of others."""
    off = {
        "train.loss_scale": get("train.precision") != "fp16",
        "model.prefix_length": get("model.attention_mask") != "prefix",
        "parallel.warmup_slope": get("parallel.schedule") != "1f1b",
        "parallel.virtual_stages": get("parallel.schedule") != "interleaved-1f1b",
    }
    if get("network.apply") in (None, "none"):
        off |= {field: field != "network.apply" for field in field_names() if field.startswith("network.")}
    else:
        off["network.interface"] = get("network.apply") != "interface"
    if get("train.compute") != "emulated":
        off |= dict.fromkeys(_of_sections({"emulation"}), True)
    return {field for field, is_off in off.items() if is_off}
