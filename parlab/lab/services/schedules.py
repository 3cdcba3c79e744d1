"""Configurations with a schedule that was picked for a network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from django.contrib.auth.models import User

from parlab.lab.models import Config, Run
from parlab.planner.schedule import Link, StageTimes
from runners.config import with_values
from runners.config.engines import PIPELINE

from .configs import config_save


def schedule_save(
    *,
    run: Run,
    slope: int,
    wire: Literal["same", "bf16"],
    link: Link,
    times: tuple[StageTimes, ...],
    step_s: float,
    note: str,
    user: User,
) -> Config:
    """Save the configuration of a run with another warm-up slope as a version of its experiment.

    Published and imported runs cannot be repeated here, so their times are emulated on links of their network.
    Raises ConfigError if the resulting configuration is invalid.
    """
    values: dict[str, Any] = {
        "parallel.schedule": "1f1b",
        "parallel.warmup_slope": slope,
        "parallel.virtual_stages": 1,
        "parallel.wire_precision": wire,
    }
    if run.origin != Run.Origin.MEASURED:
        values |= _emulation_values(link, times, step_s)
    data = with_values(_without_gaps(run.resolved), values)
    # `based_on` keeps an unused version that another user is editing.
    return config_save(experiment=run.experiment, data=data, sweep={}, note=note[:300], user=user, based_on=run.config)


def _emulation_values(link: Link, times: tuple[StageTimes, ...], step_s: float) -> dict[str, Any]:
    return {
        "parallel.engine": PIPELINE.name,
        "cluster.nodes": 1,
        "cluster.gpus_per_node": None,
        "cluster.device": "cpu",
        "train.compute": "emulated",
        "train.recompute": "none",
        "network.apply": "emulate",
        "network.delay_ms": round(1e3 * link.delay_s, 6),
        "network.bandwidth_gbps": None if math.isinf(link.bits_per_s) else round(link.bits_per_s / 1e9, 6),
        "emulation.forward_ms": [round(1e3 * stage.forward_s, 6) for stage in times],
        "emulation.backward_ms": [round(1e3 * stage.backward_s, 6) for stage in times],
        "emulation.optimizer_ms": round(1e3 * step_s, 6),
    }


def _without_gaps(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out fields that the source of an imported run does not state, so that they get their defaults."""
    return {
        section: {name: value for name, value in fields.items() if value is not None}
        for section, fields in resolved.items()
        if isinstance(fields, Mapping)
    }
