"""Warm-up slopes of a pipeline run, simulated for its network; the chosen one becomes a configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

from django.contrib.auth.models import User
from django.http import Http404

from parlab.charts.format import quantity, significant
from parlab.lab.models import Config, Run
from parlab.lab.selectors.analysis.pipelines import PipelineRun, Times, pipeline_of, times_of
from parlab.planner.schedule import Choice, Link, Outcome, StageTimes, Wire, best_schedule
from runners.config import with_values
from runners.config.engines import PIPELINE

from .configs import config_save

WIRES: tuple[Wire, ...] = ("same", "bf16")


class SimulatedRun(NamedTuple):
    pipeline: PipelineRun
    times: Times


def simulated_run(run: Run) -> SimulatedRun:
    pipelined = pipeline_of(run)
    times = times_of(pipelined) if pipelined else None
    if pipelined is None or times is None:
        raise Http404(f"run {run.number} cannot be simulated: it is not a pipeline, or its step time is unknown")
    return SimulatedRun(pipelined, times)


def slope_choices(run: Run) -> tuple[SimulatedRun, list[Choice]]:
    """Return the simulated schedules of a run, per width of messages."""
    pipelined, times = simulated_run(run)
    pipeline = pipelined._replace(wire="same").pipeline(times.stages, step_s=times.step_s)
    element_bytes = pipelined.shape.number_bytes
    choices = [best_schedule(pipeline, wires=(wire,), element_bytes=element_bytes) for wire in WIRES]
    return SimulatedRun(pipelined, times), choices


def slopes(run: Run) -> dict[str, Outcome]:
    """Return the simulated schedules of a run by their codes, such as `same:1`. Raises Http404."""
    return {slope_code(outcome): outcome for choice in slope_choices(run)[1] for outcome in choice.compared}


def slope_code(outcome: Outcome) -> str:
    return f"{outcome.wire}:{outcome.plan.warmup_slope}"


def slope_save(*, run: Run, code: str, user: User) -> Config:
    """Save a schedule of `slopes` as the next configuration. Raises ValueError with a remedy."""
    simulated = SimulatedRun(*simulated_run(run))
    chosen = slopes(run).get(code)
    if chosen is None:
        raise ValueError("no such slope; select a slope")
    wire = cast(Literal["same", "bf16"], chosen.wire)
    slope = chosen.plan.warmup_slope
    note = (
        f"Slope {slope}{'' if wire == 'same' else ' with 16-bit messages'} for {simulated.pipeline.network_title}:"
        f" simulated {quantity(chosen.simulation.iteration_s, 's')}, {chosen.held} micro batches in flight,"
        f" {significant(100 * chosen.gap_to_bound)} % above the bound"
    )
    return schedule_save(
        run=run,
        slope=slope,
        wire=wire,
        note=note,
        user=user,
        link=simulated.pipeline.network.link,
        times=simulated.times.stages,
        step_s=simulated.times.step_s,
    )


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
    # An unused version may be what another user is editing.
    return config_save(experiment=run.experiment, data=data, sweep={}, note=note[:300], user=user, as_next=True)


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
