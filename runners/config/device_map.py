"""Rules of the device map of engine sharding."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .problems import Problem
from .sections import ShardingSection

DEVICE = re.compile(r"(?:GPU|CPU):(?:0|[1-9][0-9]{0,3})")


def map_problems(sharding: ShardingSection) -> Iterator[Problem]:
    """Check the device map by itself."""
    mapping, field = sharding.device_mapping, "sharding.device_mapping"
    if mapping is None:
        message = 'engine sharding requires device_mapping; use one like {"stage_0": {"shard_0": "CPU:0"}}'
        yield Problem(field, None, message)
        return
    levels: list[tuple[str, Mapping[str, Any], int, str]] = [("", mapping, sharding.stage_cnt, "stage_cnt")]
    levels += [(f".{name}", shards, sharding.sharding_size, "sharding_size") for name, shards in mapping.items()]
    for level, names, count, size in levels:
        kind = "shard" if level else "stage"
        if set(names) != {f"{kind}_{number}" for number in range(count)}:
            message = (
                f"{size} is {count}, but the map has {len(names)} names here;"
                f" use {kind}_0 to {kind}_{count - 1}, each once"
            )
            yield Problem(field + level, ", ".join(names)[:200], message)
    devices = {device for shards in mapping.values() for device in shards.values()}
    for device in sorted(devices):
        if not DEVICE.fullmatch(device):
            yield Problem(field, device, f"unknown device {device[:60]}; use GPU:n or CPU:n, n from 0")
