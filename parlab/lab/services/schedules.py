"""A schedule that was picked for a network becomes a configuration."""

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

    Figures from elsewhere cannot be run again here as they were: their times are emulated, on links of their network.
    Raises ConfigError where the result could not run.
    """
    values: dict[str, Any] = {
        "parallel.schedule": "1f1b",
        "parallel.warmup_slope": slope,
        "parallel.virtual_stages": 1,
        "parallel.wire_precision": wire,
    }
    if run.origin != Run.Origin.MEASURED:
        values |= _emulated(link, times, step_s)
    data = with_values(_without_gaps(run.resolved), values)
    # Beside what is there: an unused version that somebody is writing stays as it is.
    return config_save(experiment=run.experiment, data=data, sweep={}, note=note[:300], user=user, based_on=run.config)


def _emulated(link: Link, times: tuple[StageTimes, ...], step_s: float) -> dict[str, Any]:
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
    """Leave out what the source of an imported run does not say, so that defaults stand there."""
    return {
        section: {name: value for name, value in fields.items() if value is not None}
        for section, fields in resolved.items()
        if isinstance(fields, Mapping)
    }
