"""A text as values of a configuration: a command line, a RunConfig, or a map of stages and shards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from parlab.ingest.command_flags import MAX_LENGTH, config_of_command
from runners.config import RunConfig, ShardingSection, check, complete, sections
from runners.config.engines import SHARDING

MAX_JSON_LENGTH = 1_000_000
SEP = "__"
"""Between section and field in the name of a value."""
_ENGINE = f"parallel{SEP}engine"


class Pasted(NamedTuple):
    """Values read from pasted text."""

    values: dict[str, Any]
    """By `section__field`; lists and mappings are JSON. Other fields keep their values."""
    summary: str


def read(text: str) -> Pasted:
    """Read pasted text. Raises ValueError, or ConfigError for unknown fields and invalid values."""
    if not text.lstrip().startswith("{"):
        return _of_command(text[:MAX_LENGTH])
    if len(text) > MAX_JSON_LENGTH:
        raise ValueError(f"the JSON has {len(text):,} characters; paste at most {MAX_JSON_LENGTH:,}")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"the text is not valid JSON: {error}; paste the whole object, from the first brace to the last"
        ) from None
    unknown = sorted(set(data) - set(sections()))
    if not unknown:
        complete(data)
        return Pasted(_values(data), f"Filled {_count(data)} fields; all others have their defaults.{_fit(data)}")
    if set(data) <= set(ShardingSection.model_fields):
        return _of_map(data)
    names = ", ".join(sections())
    raise ValueError(f"unknown section {unknown[0]}; use {names}, or paste a shard map by itself")


def _of_map(section: Mapping[str, Any]) -> Pasted:
    """Read a section of engine sharding; model and batch keep their values."""
    data = {"parallel": {"engine": SHARDING.name}, "sharding": section}
    shards = ShardingSection.model_validate(complete(data)["sharding"])
    values = _values(data)
    filled = {name: value for name, value in values.items() if name == _ENGINE or name.startswith(f"sharding{SEP}")}
    size = f"{shards.stage_cnt} x {shards.sharding_size} shards"
    return Pasted(filled, f"Read a map of {size} for engine sharding; model and batch keep their values.")


def _of_command(text: str) -> Pasted:
    flags = config_of_command(text)
    summary = f"Filled {_count(flags.data)} fields.{_fit(flags.data)}"
    if flags.unread:
        summary += f" Ignored flags: {', '.join(flags.unread)}."
    return Pasted(_values(flags.data), summary)


def _values(data: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the value of every field; those that the data leave out have their defaults."""
    return {
        f"{section}{SEP}{name}": _shown(data.get(section, {}).get(name, default))
        for section, defaults in _defaults().items()
        for name, default in defaults.items()
    }


def _shown(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, Mapping | list) else value


@cache
def _defaults() -> dict[str, dict[str, Any]]:
    schemas = {name: section.model_json_schema().get("properties", {}) for name, section in sections().items()}
    return {
        section: {name: schema.get("default") for name, schema in fields.items()} for section, fields in schemas.items()
    }


def _count(data: Mapping[str, Mapping[str, Any]]) -> int:
    return sum(len(fields) for fields in data.values())


def _fit(data: Mapping[str, Any]) -> str:
    """Return a sentence with the number of ranks, or with the first problem of the configuration."""
    config, problems = check(data)
    if config is None:
        return f" Problem: {problems[0].message}."
    return f" The layout has {_ranks(config)}."


def _ranks(config: RunConfig) -> str:
    return f"{config.world_size} {'rank' if config.world_size == 1 else 'ranks'}"
