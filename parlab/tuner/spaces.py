"""From the sweep of a configuration to the space of a study: candidates, predictions and observations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from parlab.charts.sweeps.studies import Setting
from parlab.lab.models import Config, Member, Run
from parlab.lab.services.runs import launchable
from parlab.planner.job.configs import job_of
from parlab.planner.job.workload import SCHEDULES, Job
from parlab.tuner.space import Candidate, Objective, Observation, Past, Space
from runners.config import Point, RunConfig
from runners.wire.protocol import RunState

from .models import Study
from .planning import Plan, Planner, planner_for

RECOMPUTE = ("none", "selective", "full")
PRECISIONS = ("fp32", "bf16", "fp16")
_MEDIAN_OVER_MEAN = 1.2533
"""Standard error of a median over that of a mean, for normal noise: the root of pi/2."""
_DECILES = 2.563
"""Standard deviations between the 10th and the 90th percentile of normal noise."""
_PAST_RUNS = 600


class StudySpace(NamedTuple):
    """A space, the point of each candidate, and the points that cannot run."""

    space: Space
    points: dict[str, Point]
    invalid: list[Point]


def space_of(config: Config, objective: Objective, planner: Planner) -> StudySpace:
    """Return the space of a configuration's sweep; raises ValueError if none of its points can run."""
    points = [launchable(point) for point in config.points()]
    runnable = [(point, point.config) for point in points if point.config is not None]
    names = _names([run_config for _, run_config in runnable])
    candidates = [
        candidate(name, point, run_config, planner.plan(run_config))
        for name, (point, run_config) in zip(names, runnable, strict=True)
    ]
    past = list(_past([run_config for _, run_config in runnable], config, planner))
    space = Space(candidates, objective, past)
    return StudySpace(
        space,
        {name: point for name, (point, _) in zip(names, runnable, strict=True)},
        [point for point in points if point.config is None],
    )


def candidate(key: str, point: Point, config: RunConfig, plan: Plan) -> Candidate:
    return Candidate(
        key=key,
        samples=config.train.global_batch_size,
        devices=config.world_size,
        tuning_space=tuning_space(config),
        micro_batch_size=config.train.micro_batch_size,
        accumulation=max(1, config.num_micro_batches),
        features=features(config),
        values=point.values,
        predicted_s=plan.iteration_s,
        predicted_bytes=plan.memory_bytes,
        memory_limit_bytes=plan.memory_limit_bytes,
        memory_deviation=plan.memory_deviation,
    )


def tuning_space(config: RunConfig) -> str:
    """Return the group of a setting on the result page: its ZeRO stage, or its layout."""
    parallel = config.parallel
    if config.engine.has_zero_stages:
        return f"z{parallel.zero_stage}" + ("" if parallel.zero_offload == "none" else f"_{parallel.zero_offload}")
    if config.engine.is_data_parallel_only:
        return config.engine.name
    sizes = {
        "dp": parallel.data_parallel_size,
        "tp": parallel.tensor_parallel_size,
        "pp": parallel.pipeline_parallel_size,
    }
    return "".join(f"{name}{size}" for name, size in sizes.items() if size > 1) or "single"


def setting_name(config: RunConfig) -> str:
    """Name a setting as DeepSpeed's autotuner does: `z1_gas2_tmbspg8`."""
    return f"{tuning_space(config)}_gas{max(1, config.num_micro_batches)}_tmbspg{config.train.micro_batch_size}"


def features(config: RunConfig) -> tuple[float, ...]:
    """Return the features of a configuration for the surrogate; raises ValueError if its engine is not planned."""
    return features_of_job(job_of(config))


def features_of_job(job: Job) -> tuple[float, ...]:
    """Return the features of a job for the surrogate; a difference of 1 is a doubling or another choice."""
    doublings = (
        job.micro_batch_size,
        job.num_micro_batches,
        job.data_parallel,
        job.tensor_parallel,
        job.pipeline_parallel,
        job.virtual_stages,
        job.model.sequence_length,
    )
    return (
        *(math.log2(size) for size in doublings),
        2 * math.log2(job.model.hidden_size),
        2 * math.log2(job.model.num_layers),
        *(float(job.zero_stage == stage) for stage in range(4)),
        *(float(job.schedule == name and job.pipeline_parallel > 1) for name in SCHEDULES),
        *(float(job.recompute == name) for name in RECOMPUTE),
        *(float(job.precision == name) for name in PRECISIONS),
        float(job.zero_offload != "none"),
    )


def observation(key: str, run: Run) -> Observation:
    if run.run_state == RunState.OOM:
        return Observation(key, "oom")
    if run.run_state != RunState.FINISHED or not run.step_time_s:
        return Observation(key, "failed")
    return Observation(key, "finished", run.step_time_s, noise(run.summary))


def noise(summary: Mapping[str, Any]) -> float:
    """Return the relative standard error of a run's median step time, from its deciles; 1 % if it has none."""
    steps, times = summary.get("steps") or {}, summary.get("step_time_s") or {}
    count, median = steps.get("count"), times.get("median")
    low, high = times.get("p10"), times.get("p90")
    if not count or not median or low is None or high is None or count < 3:
        return 0.01
    return float(_MEDIAN_OVER_MEAN * (high - low) / _DECILES / median / math.sqrt(count))


def _names(configs: Sequence[RunConfig]) -> list[str]:
    """Return a name for each configuration, with a number if settings differ only in what the name leaves out."""
    names: list[str] = []
    for config in configs:
        name, count = setting_name(config), 1
        while name in names:
            count += 1
            name = f"{setting_name(config)}_{count}"
        names.append(name)
    return names


def _past(configs: Sequence[RunConfig], config: Config, planner: Planner) -> Iterable[Past]:
    """Yield finished runs of other configurations with the same engine on such nodes, with the planner's error."""
    if not configs or not planner.plans:
        return
    engine, device = configs[0].parallel.engine, configs[0].cluster.device
    rows = Run.objects.filter(
        origin=Run.Origin.MEASURED,
        state=RunState.FINISHED,
        step_time_s__gt=0,
        resolved__parallel__engine=engine,
        resolved__cluster__device=device,
        pk__in=Member.objects.filter(node__in=planner.nodes).values("attempt__run"),
    ).exclude(config=config)
    for resolved, seconds in rows.order_by("-pk").values_list("resolved", "step_time_s")[:_PAST_RUNS]:
        past_config = RunConfig.model_validate(resolved)
        planned = planner.plan(past_config).iteration_s
        if planned and seconds:
            yield Past(features(past_config), planned / seconds)


def described_settings(study: Study) -> list[Setting]:
    """Return every point of a study's space, for its figure."""
    space = space_of(study.config, cast(Objective, study.objective), planner_for(study.config)).space
    return [
        Setting(
            candidate.key,
            candidate.tuning_space,
            candidate.micro_batch_size,
            candidate.accumulation,
            candidate.value(space.objective, candidate.predicted_s) if candidate.predicted_s else None,
            candidate.fit.value,
        )
        for candidate in space.candidates
    ]
