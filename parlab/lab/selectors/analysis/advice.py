"""Advice for a run, the advice that was tried, and its record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from parlab.advice.advice import Advice
from parlab.advice.growth import Growth, Rate, growth_at
from parlab.advice.nodes import node_advice
from parlab.advice.observations import Checkpoints, Reached, Signs
from parlab.advice.rules import Case, advise
from parlab.advice.score import Outcome, Record, records
from parlab.advice.simulated import Passes
from parlab.advice.waterfalls.exchange import LARGE_BYTES, rate_of, reached_of
from parlab.advice.waterfalls.waterfall import Waterfall
from parlab.lab.models import AdviceTrial, Attempt, Node, RankTrace, Run
from parlab.lab.selectors.runs import step_time
from parlab.planner import Cluster
from parlab.planner.job.configs import job_of
from parlab.traces.breakdown import Window
from parlab.traces.stored import Analysis, meeting_of
from runners.config import check, digest, engine_of, with_values
from runners.wire.protocol import RunState

from .failures import node_failures
from .pipelines import pipeline_of, times_of
from .stragglers import slowest_rank, slowest_stage
from .unit_advice import unit_advice
from .waterfalls import MAX_TRACED, RunWaterfalls, devices_of, run_waterfalls, sibling_calibration


class RunAdvice(NamedTuple):
    advice: list[Advice]
    reason: str
    """Why settings were not varied; empty if they were."""


def run_advice(run: Run) -> RunAdvice:
    """Return the advice for a run; changes that its engine cannot run are left out.

    While a run is active, its settings are not varied.
    """
    if not engine_of(run.resolved).has_steps:
        advice, reason = unit_advice(run)
        return RunAdvice([row for row in advice if is_runnable(run, row)], reason)
    falls = run_waterfalls(run, with_prediction=False)
    if falls.measured is None:
        return RunAdvice([], falls.reason)
    case, reason = _case(run, falls.measured, falls)
    if reason and case.passes is not None:
        reason += "; only schedules and the wire were simulated"
    settings = [row for row in advise(case) if is_runnable(run, row)]
    sizes = [_within_pool(run, row) for row in node_advice(case) if is_runnable(run, row)]
    return RunAdvice([*settings, *sizes], reason)


def _case(run: Run, measured: Waterfall, falls: RunWaterfalls) -> tuple[Case, str]:
    """Return what the advice for a run is computed from, and the reason why settings cannot be varied, if any."""
    candidate = falls.candidate
    if candidate is None or candidate.observation is None or not candidate.is_device_stated:
        return Case(measured, signs=_signs(run, None), passes=_passes(run)), falls.prediction_reason
    job, where = candidate.observation.job, candidate.observation.cluster
    calibration = sibling_calibration(run, candidate)
    signs = _signs(run, where)
    if signs.reached is None:
        signs = signs._replace(reached=reached_of(measured, job, rate_of(job, where, _measured_rate(run))))
    return Case(measured, job, where, calibration, signs, _passes(run)), ""


def _measured_rate(run: Run) -> float | None:
    """Return the rate of the slowest link between nodes that the run measured before its ranks began (bytes/s)."""
    rates = [row["bits_per_s"] / 8 for row in run.summary.get("links") or () if row.get("bits_per_s")]
    return min(rates, default=None)


def _within_pool(run: Run, advice: Advice) -> Advice:
    """Return an advice for the number of nodes; without its settings if the pool of the run has not so many."""
    pool, needed = (run.resolved.get("cluster") or {}).get("pool"), advice.settings["cluster.nodes"]
    nodes = Node.objects.filter(pool=pool, is_enabled=True)
    has_room = nodes.count() >= needed or any(pool in pools for pools in nodes.queue_pools().values())
    return advice if has_room else advice._replace(settings={})


def _passes(run: Run) -> Passes | None:
    """Return the pipeline of a run as the simulation takes it; None without stages or times of its passes."""
    pipeline_run = pipeline_of(run)
    times = times_of(pipeline_run) if pipeline_run is not None else None
    if pipeline_run is None or times is None or times.is_fitted:
        return None
    plain = pipeline_run._replace(wire="same").pipeline(times.stages, step_s=times.step_s)
    return Passes(plain, pipeline_run.plan, pipeline_run.wire, pipeline_run.shape.number_bytes)


def is_runnable(run: Run, advice: Advice) -> bool:
    """Return whether the engine of a run accepts the change and reads it; any change of an imported run counts."""
    if run.origin != Run.Origin.MEASURED or not advice.settings:
        return True
    before, _ = check(run.resolved)
    after, _ = check(with_values(run.resolved, dict(advice.settings)))
    if before is None or after is None:
        return False
    fields = before.engine.fields
    if any(name.startswith("parallel.") and fields and name not in fields for name in _new(run, advice)):
        return False
    try:
        return job_of(after) != job_of(before)
    except ValueError:  # no job of the planner, such as emulated compute
        return after != before


def _new(run: Run, advice: Advice) -> list[str]:
    """Return the fields that the change gives another value, without sizes that every engine reads."""
    return [name for name in _changed(run, advice) if not name.endswith("_parallel_size")]


def _signs(run: Run, where: Cluster | None) -> Signs:
    host, reached = _traced(run, where)
    busy = (run.summary.get("gpu_utilization") or {}).get("mean")
    return Signs(
        slowest_rank(run),
        slowest_stage(run),
        host,
        busy / 100 if isinstance(busy, int | float) and 0 <= busy <= 100 else None,
        reached,
        growths_of(run),
        _checkpoints(run),
        where is None and run.origin == Run.Origin.REPORTED,
    )


def growths_of(run: Run) -> list[Growth]:
    """Return the memory of GPUs and nodes that grows, the one that is full first first."""
    rows = run.summary.get("memory_growth") or {}
    attempt = run.attempts.filter(number=run.attempt_number).first() if rows else None
    if attempt is None:
        return []
    growths = []
    for rank, row in rows.items():
        number, rate = int(rank), Rate(row["bytes_per_s"], row["bytes"])
        place = f"memory of node {-1 - number}" if number < 0 else f"memory of the GPU of rank {number}"
        growths.append(growth_at(place, rate, _capacity(attempt, is_node=number < 0)))
    return sorted(growths, key=lambda each: (each.full_in_s is None, each.full_in_s or -each.rate.bytes_per_s))


def _capacity(attempt: Attempt, *, is_node: bool) -> float | None:
    """Return the memory of a machine, or of one of its GPUs, in bytes."""
    hardware = {**((attempt.node.hardware if attempt.node else None) or {}), **(attempt.environment or {})}
    gpus = hardware.get("gpus_used") or hardware.get("gpus") or [{}]
    value = hardware.get("memory_bytes") if is_node else gpus[0].get("memory_bytes")
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _checkpoints(run: Run) -> Checkpoints | None:
    """Return the checkpoints between the usual steps; None if no timer measures them."""
    middle = step_time(run.summary)
    for name, timer in (run.summary.get("timers_s") or {}).items():
        every = timer.get("every_steps")
        if "checkpoint" in name and every and middle is not None:
            per_step_s = float(timer["per_step_s"])
            share = per_step_s / (middle.median + per_step_s)
            cost_s, gpus = per_step_s * every, devices_of(run) or 1
            return Checkpoints(every, cost_s, share, gpus, every * middle.median, node_failures(run))
    return None


def _traced(run: Run, where: Cluster | None) -> tuple[float | None, Reached | None]:
    """Return the share of the traced steps in which devices wait for the host, and the reached bandwidth."""
    analyses = {
        row.rank: Analysis.model_validate(row.analysis) for row in RankTrace.objects.filter(run=run)[:MAX_TRACED]
    }
    steps = [analysis.per_step() for analysis in analyses.values() if analysis.is_gpu]
    shares = [step.idle_host_s / step.total_s for step in steps if step.total_s > 0]
    host = sum(shares) / len(shares) if shares else None
    return host, _reached(analyses, steps, where) if where is not None and steps else None


def _reached(analyses: Mapping[int, Analysis], steps: Sequence[Window], where: Cluster) -> Reached | None:
    """Return the median bus bandwidth of large collectives beside the rate of the slowest link that they use."""
    large = [
        row.bus_bytes_s
        for row in meeting_of(analyses).collectives
        if row.bus_bytes_s and row.bytes >= LARGE_BYTES and row.ranks == where.gpus
    ]
    total_s = sum(step.total_s for step in steps)
    if not large or total_s <= 0:
        return None
    rate = min(where.inside.bandwidth, where.between.bandwidth) if where.domains > 1 else where.inside.bandwidth
    return Reached(median(large), rate, sum(step.exposed_s for step in steps) / total_s)


def tried_advice(run: Run) -> list[AdviceTrial]:
    # Most runs have none: then nothing else is read.
    return list(run.advice_trials.prefetch_related("run", "changed_run__experiment", "changed_run__config"))


def swept_advice(run: Run, advice: Sequence[Advice]) -> list[AdviceTrial]:
    """Return the advice whose change another point of the same sweep has measured, as trials that are not stored."""
    wanted = {digest(point): row for row in advice if (point := _point_of(run, row)) is not None}
    if not wanted:
        return []
    others = Run.objects.filter(config=run.config_id, state=RunState.FINISHED, point_digest__in=wanted)
    return [
        AdviceTrial(
            run=run, changed_run=other, kind=row.kind, title=row.title, changes=_changed(run, row), part=row.part,
            gain=row.gain, low=row.low, high=row.high, evidence=row.evidence,
        )
        for other in others.select_related("experiment", "config").order_by("number")
        if (row := wanted.get(other.point_digest)) is not None
    ]  # fmt: skip


def _point_of(run: Run, advice: Advice) -> dict[str, Any] | None:
    """Return the point of the sweep that an advice leads to; None if it changes what the sweep does not."""
    changed = _changed(run, advice)
    return {**run.point, **changed} if changed and changed.keys() <= run.point.keys() else None


def _changed(run: Run, advice: Advice) -> dict[str, Any]:
    """Return the fields that the change gives another value."""
    return {name: value for name, value in advice.settings.items() if _value(run, name) != value}


def _value(run: Run, name: str) -> Any:
    section, _, field = name.partition(".")
    return (run.resolved.get(section) or {}).get(field)


def best_trial(trials: Iterable[AdviceTrial]) -> AdviceTrial | None:
    """Return the trial that finished and saved the most; their `changed_run` is fetched with them."""
    ended = [trial for trial in trials if trial.changed_run.state == RunState.FINISHED and trial.realised is not None]
    return max(ended, key=lambda trial: trial.realised or 0.0, default=None)


def all_trials() -> list[AdviceTrial]:
    """Return all advice that was tried, newest first."""
    return list(AdviceTrial.objects.prefetch_related("run__experiment", "changed_run__experiment").order_by("-pk"))


def advice_records(trials: Iterable[AdviceTrial]) -> list[Record]:
    """Return how good the tried advice was, by kind and in total; only of runs that both finished."""
    outcomes = []
    for trial in trials:
        realised = trial.realised
        if realised is not None and trial.changed_run.state == RunState.FINISHED:
            outcomes.append(Outcome(trial.kind, trial.gain, realised, noise=trial_noise_share(trial)))
    return records(outcomes)


def trial_noise_share(trial: AdviceTrial) -> float:
    """Return half the range of the steps from p10 to p90, of the run that varies more; 0 if it is unknown."""
    spreads = [step_time(run.summary) for run in (trial.run, trial.changed_run)]
    shares = [
        (spread.p90 - spread.p10) / spread.median / 2
        for spread in spreads
        if spread and spread.median and spread.p10 is not None and spread.p90 is not None
    ]
    return max(shares, default=0.0)


def advice_change(run: Run, advice: Advice) -> dict[str, Any]:
    return with_values(run.resolved, dict(advice.settings))
