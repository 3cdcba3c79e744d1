"""Times for emulated compute, taken from a measured run."""

from __future__ import annotations

from typing import Any

from parlab.lab.models import Run
from runners.config import ConfigError, Point, Problem, RunConfig, check, with_values
from runners.wire.protocol import RunState

_FIELD = "emulation.source_run"


def with_times(point: Point) -> Point:
    """Fill in the times of a point with a source run; if they are not available, return the point with problems."""
    if point.config is None or point.config.train.compute != "emulated" or point.config.emulation.source_run is None:
        return point
    try:
        times = times_of_run(point.config)
    except ConfigError as error:
        return Point(point.values, None, error.problems)
    config, problems = check(with_values(point.config.model_dump(mode="json"), times))
    return Point(point.values, config, problems)


def times_of_run(config: RunConfig) -> dict[str, list[float]]:
    """Return the emulation fields measured by `emulation.source_run`: ms per micro batch, by stage.

    Raises ConfigError if that run does not exist, has no timers, or used other stages or micro batches.
    """
    name = str(config.emulation.source_run)
    slug, _, number = name.rpartition("/")
    run = Run.objects.filter(experiment__slug=slug, number=int(number)).first()
    if run is None:
        raise _refusal(name, f"run {name} does not exist; use experiment/number, as in the URL of a run")
    if run.state != RunState.FINISHED:
        raise _refusal(name, f"run {name} is {run.state}; use a finished run")
    source, problems = check(run.resolved)
    if source is None:
        raise _refusal(name, f"run {name} has no valid configuration: {problems[0].message}; enter the times instead")
    if config.parallel.virtual_stages > 1 or source.parallel.virtual_stages > 1:
        raise _refusal(name, "times of single chunks are not measured; use virtual_stages 1, or enter the times")
    for field, value, source_value in (
        ("pipeline_parallel_size", config.parallel.pipeline_parallel_size, source.parallel.pipeline_parallel_size),
        ("micro_batch_size", config.train.micro_batch_size, source.train.micro_batch_size),
    ):
        if value != source_value:
            raise _refusal(name, f"run {name} used {field} {source_value}, not {value}; use the same, or another run")
    count = source.num_micro_batches
    forward, backward = (_by_stage(run, timer, source, name) for timer in ("forward-compute", "backward-compute"))
    weights = _by_stage(run, "backward-weight", source, name, is_required=False)
    return {
        "emulation.forward_ms": [1e3 * seconds / count for seconds in forward],
        "emulation.backward_ms": [1e3 * (b + w) / count for b, w in zip(backward, weights, strict=True)],
    }


def _by_stage(run: Run, timer: str, source: RunConfig, name: str, *, is_required: bool = True) -> list[float]:
    """Return the seconds of a timer per step and stage; 0 if a timer that is not required is missing."""
    stages = range(source.parallel.pipeline_parallel_size)
    by_rank: dict[str, Any] = run.summary.get("timers_s", {}).get(timer, {}).get("by_rank") or {}
    missing = [stage for stage in stages if str(stage) not in by_rank]
    if missing and is_required:
        raise _refusal(name, f"run {name} has no timer {timer} of rank {missing[0]}; use another run, or enter times")
    return [float(by_rank.get(str(stage), 0.0)) for stage in stages]


def _refusal(value: str, message: str) -> ConfigError:
    return ConfigError([Problem(_FIELD, value, message)])
