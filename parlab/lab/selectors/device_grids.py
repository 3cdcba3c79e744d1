"""The devices of the stages and shards of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from parlab.lab.models import Run
from runners.config import ShardingSection, engine_of

_PLACE = re.compile(r"device_mapping\.stage_(\d{1,4})\.shard_(\d{1,4})")


def device_grid(run: Run) -> list[list[str]]:
    """Return the device of each stage and shard, of parlab's own runs and of imported ones; empty without a map."""
    sharding = run.resolved.get("sharding") or {}
    is_own_engine = engine_of(run.resolved).has_device_map
    if is_own_engine and sharding.get("device_mapping"):
        return ShardingSection.model_validate(sharding).grid
    return _printed_grid(run.launch.get("arguments") or {})


def _printed_grid(arguments: Mapping[str, Any]) -> list[list[str]]:
    """Read a map from arguments `device_mapping.stage_0.shard_0: GPU:0`; empty if a shard is missing."""
    places = {
        (int(match[1]), int(match[2])): str(value)
        for name, value in arguments.items()
        if (match := _PLACE.fullmatch(name))
    }
    stages, shards = (max((place[axis] for place in places), default=-1) + 1 for axis in (0, 1))
    if not places or len(places) != stages * shards:
        return []
    return [[places[stage, shard] for shard in range(shards)] for stage in range(stages)]
