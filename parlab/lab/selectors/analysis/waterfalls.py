"""The waterfall of a run: measured, and as the planner predicts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from parlab.advice.waterfalls.measured import Rate, Step, timers_of, waterfall_of
from parlab.advice.waterfalls.predicted import predicted_waterfall
from parlab.advice.waterfalls.traced import TracedStep
from parlab.advice.waterfalls.waterfall import Waterfall
from parlab.lab.models import RankTrace, Run
from parlab.lab.selectors.runs import step_time
from parlab.planner import Calibration, Prediction, predict_job
from parlab.planner.job.hardware import find
from parlab.planner.prediction.layer import matrix_share
from parlab.planner.prediction.work import work_of
from parlab.traces.stored import Analysis
from runners.config import engine_of

from .plannable import Candidate, calibration_candidates
from .plans import calibrated, group_key

MAX_SIBLINGS = 60
"""Runs of an experiment that calibrate the prediction of another one."""
MAX_TRACED = 64
"""Ranks whose traces are read for a waterfall."""
_FEWEST = 2
_TRACED_TIME = "The step time is that of the traced steps, which a profiler makes longer."


class RunWaterfalls(NamedTuple):
    """The waterfalls of a run; None with the reason."""

    measured: Waterfall | None
    reason: str
    """Why there is no measured waterfall."""
    predicted: Waterfall | None = None
    prediction_reason: str = ""
    """Why there is no prediction."""
    candidate: Candidate | None = None
    """The run as the planner sees it."""


def has_waterfall(run: Run) -> bool:
    """Return whether a run has a step time with timers or a peak to split it, or a trace."""
    if not devices_of(run):
        return False
    has_parts = run.summary.get("timers_s") or run.summary.get("peak")
    if step_time(run.summary) and has_parts:
        return True
    return run.is_final and RankTrace.objects.filter(run=run).exists()


def devices_of(run: Run) -> int | None:
    """Return the number of devices of a run, which its settings state, else of the ranks that report."""
    return int(run.gpus) if run.gpus else run.summary.get("ranks")


def run_waterfalls(run: Run, *, with_prediction: bool = True) -> RunWaterfalls:
    """Return the measured and the predicted waterfall of a run; the prediction is calibrated on its siblings."""
    middle, devices, traced = step_time(run.summary), devices_of(run), traced_step(run)
    seconds = middle.median if middle is not None else traced.step_s if traced is not None else 0.0
    if not seconds or not devices:
        return RunWaterfalls(None, "its number of GPUs is unknown" if seconds else "the run has no step time")
    candidate = next(iter(calibration_candidates([run])), None)
    prediction, calibration, reason = _prediction(run, candidate, with_siblings=with_prediction)
    try:
        measured = waterfall_of(step_of(run, seconds, devices, prediction, traced))
    except ValueError as error:
        return RunWaterfalls(None, str(error))
    if middle is None:
        measured = replace(measured, notes=(*measured.notes, _TRACED_TIME))
    if prediction is None or not with_prediction:
        return RunWaterfalls(measured, "", None, reason, candidate)
    return RunWaterfalls(measured, "", predicted_waterfall(prediction, calibration), "", candidate)


def _prediction(
    run: Run, candidate: Candidate | None, *, with_siblings: bool
) -> tuple[Prediction | None, Calibration | None, str]:
    if candidate is None:
        return None, None, "the run has not finished"
    if candidate.observation is None or not candidate.is_device_stated:
        return None, None, candidate.reason
    calibration = sibling_calibration(run, candidate) if with_siblings else None
    try:
        observation = candidate.observation
        return predict_job(observation.job, observation.cluster, calibration), calibration, ""
    except ValueError as error:
        return None, None, str(error)


def sibling_calibration(run: Run, candidate: Candidate) -> Calibration | None:
    """Fit the planner to other runs of the experiment on the same cluster; None if there are too few."""
    if candidate.observation is None:
        return None
    siblings = run.experiment.runs.exclude(pk=run.pk).select_related("experiment").order_by("-pk")[:MAX_SIBLINGS]
    key = group_key(candidate, candidate.observation)
    others = tuple(
        other.observation
        for other in calibration_candidates(siblings)
        if other.observation is not None and other.is_device_stated and group_key(other, other.observation) == key
    )
    return calibrated(others, f"{len(others)} other runs") if len(others) >= _FEWEST else None


def step_of(run: Run, seconds: float, devices: int, prediction: Prediction | None, traced: TracedStep | None) -> Step:
    """Collect what is known of the steps of a run."""
    summary, parallel, train = run.summary, _section(run, "parallel"), _section(run, "train")
    work = work_of(run.resolved)
    needed = summary.get("model_flops_per_iteration") or (work.model_flops if work else None)
    executed = summary.get("executed_flops_per_iteration") or (work.executed_flops if work else None)
    peak, ceiling = _rates(summary.get("peak"))
    schedule = str(parallel.get("schedule") or "")
    micro_batch, replicas = _size(train, "micro_batch_size"), _size(parallel, "data_parallel_size")
    return Step(
        title=f"Run {run.number}",
        step_time_s=seconds,
        devices=devices,
        timers=timers_of(summary.get("timers_s") or {}),
        # Ranks that report are not all devices where only the first one does.
        model_flops=needed if run.gpus else None,
        executed_flops=executed,
        peak=peak,
        ceiling=ceiling,
        stages=stages_of(run),
        micro_batches=max(1, _size(train, "global_batch_size") // (micro_batch * replicas)),
        chunks=_size(parallel, "virtual_stages") if schedule == "interleaved-1f1b" else 1,
        schedule=schedule,
        predicted=prediction.parts if prediction else None,
        is_emulated=train.get("compute") == "emulated",
        traced=traced,
        reduces_in_backward=run.origin == Run.Origin.REPORTED and stages_of(run) == 1,
        occasional={
            name: float(timer["every_steps"])
            for name, timer in (summary.get("timers_s") or {}).items()
            if timer.get("every_steps")
        },
    )


def traced_step(run: Run) -> TracedStep | None:
    """Return the mean of the traced steps over the ranks; None without a trace that has steps."""
    shares: list[tuple[float, ...]] = []
    for trace in RankTrace.objects.filter(run=run)[:MAX_TRACED]:
        analysis = Analysis.model_validate(trace.analysis)
        step = analysis.per_step()
        if analysis.steps and step.total_s > 0:
            products, others = analysis.compute_shares()
            compute, idle = step.compute_s / step.total_s, step.idle_host_s / step.total_s
            exposed = step.exposed_s / step.total_s
            shares.append((products * compute, others * compute, exposed, idle, step.total_s))
    if not shares:
        return None
    return TracedStep(len(shares), *(sum(values) / len(shares) for values in zip(*shares, strict=True)))


def stages_of(run: Run) -> int:
    """Return the number of pipeline stages of a run; stages on one device count as one."""
    if engine_of(run.resolved).has_device_map:
        stages = _size(_section(run, "sharding"), "stage_cnt")
        return min(stages, run.gpus) if run.gpus else stages
    return _size(_section(run, "parallel"), "pipeline_parallel_size")


def _section(run: Run, name: str) -> Mapping[str, Any]:
    section = run.resolved.get(name)
    return section if isinstance(section, Mapping) else {}


def _size(section: Mapping[str, Any], name: str) -> int:
    value = section.get(name)
    return value if isinstance(value, int) and value > 0 else 1


def _rates(peak: Any) -> tuple[Rate | None, Rate | None]:
    """Return the peak and the reachable rate of the devices; a measured peak already is a reachable rate."""
    flops = peak.get("flops") if isinstance(peak, Mapping) else None
    if not isinstance(flops, int | float) or not flops > 0:
        return None, None
    is_measured = peak.get("kind") == "measured"
    rate = Rate(float(flops), str(peak.get("source") or ""), is_measured)
    gpu = None if is_measured else find(str(peak.get("device") or ""))
    if gpu is None:
        return rate, None
    is_known = gpu.matmul_ceiling_flops is not None
    source = "measured ceiling of large matrix products" if is_known else "usual share of the peak, not measured"
    return rate, Rate(float(flops) * matrix_share(gpu), source, is_known)
