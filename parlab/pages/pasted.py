"""What people paste into the form of a configuration: a command line, a RunConfig, or a map of stages and shards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.lab.forms import SEWN, form_values
from parlab.pages.flags import MAX_LENGTH, config_of_command
from runners.config import RunConfig, ShardingSection, check, complete, sections
from runners.config.engines import SHARDING

MAX_JSON_LENGTH = 1_000_000
_ENGINE = f"parallel{SEWN}engine"


class Pasted(NamedTuple):
    """What was read."""

    values: dict[str, Any]
    """Fields of the form; those that are not here stay as they are."""
    said: str


def read(text: str) -> Pasted:
    """Read what was pasted; raises ValueError, or ConfigError for fields that do not exist or cannot be so."""
    if not text.lstrip().startswith("{"):
        return _of_command(text[:MAX_LENGTH])
    if len(text) > MAX_JSON_LENGTH:
        raise ValueError(f"{len(text):,} characters of JSON are no configuration; paste at most {MAX_JSON_LENGTH:,}")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"this is no JSON: {error}; paste the whole object, from the first brace to the last"
        ) from None
    unknown = sorted(set(data) - set(sections()))
    if not unknown:
        complete(data)
        return Pasted(
            form_values(data, {}), f"Read into {_count(data)} fields; all others have their defaults.{_fit(data)}"
        )
    if set(data) <= set(ShardingSection.model_fields):
        return _of_map(data)
    known = ", ".join(sections())
    raise ValueError(
        f"{unknown[0]} is no section of a configuration; these are {known}, or paste a map of shards alone"
    )


def _of_map(section: Mapping[str, Any]) -> Pasted:
    """Read the section of engine sharding by itself, and leave model and batch as they are."""
    data = {"parallel": {"engine": SHARDING.name}, "sharding": section}
    shards = ShardingSection.model_validate(complete(data)["sharding"])
    values = form_values(data, {})
    mine = {name: value for name, value in values.items() if name == _ENGINE or name.startswith(f"sharding{SEWN}")}
    size = f"{shards.stage_cnt} x {shards.sharding_size} shards"
    return Pasted(mine, f"Read a map of {size} for engine sharding; model and batch stay as they are.")


def _of_command(text: str) -> Pasted:
    found = config_of_command(text)
    said = f"Read into {_count(found.data)} fields; the number of iterations is left to you.{_fit(found.data)}"
    if found.unread:
        said += f" Without effect here: {', '.join(found.unread)}."
    return Pasted(form_values(found.data, {}), said)


def _count(data: Mapping[str, Mapping[str, Any]]) -> int:
    return sum(len(fields) for fields in data.values())


def _fit(data: Mapping[str, Any]) -> str:
    """Say how many ranks a configuration has, or what does not fit yet."""
    config, problems = check(data)
    if config is None:
        return f" What does not fit yet: {problems[0].message}."
    return f" The layout has {_ranks(config)}."


def _ranks(config: RunConfig) -> str:
    return f"{config.world_size} {'rank' if config.world_size == 1 else 'ranks'}"
