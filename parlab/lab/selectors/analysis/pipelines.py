"""Pipelines of runs as the simulation takes them: sizes, links and the duration of each pass."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from parlab.charts.format import exact
from parlab.lab.models import Run
from parlab.lab.selectors.runs import step_time
from parlab.planner.schedule import (
    BACKWARD_PER_FORWARD,
    MAX_PASSES,
    WIRE_BYTES,
    Link,
    Pipeline,
    Plan,
    StageTimes,
    Wire,
    calibrate,
    on_wire,
    split_times,
    stage_times,
)
from runners.config.engines import UNKNOWN, engine_of
from runners.schedules import SCHEDULES
from runners.wire.protocol import RunState

_DELAY = re.compile(r"(\d+(?:\.\d+)?)\s*ms\b", re.I)
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(G|M)(?:bps|bit/?s|b/s)\b", re.I)
UNSHAPED = "links as they are"
UNKNOWN_RECOMPUTE = 3.0
"""Backward over forward time of published runs that do not state it: such pipelines usually recompute activations."""


class Network(NamedTuple):
    """The links of a run, all with the same delay and rate."""

    delay_s: float
    bits_per_s: float

    @property
    def link(self) -> Link:
        return Link(self.delay_s, self.bits_per_s)

    @property
    def title(self) -> str:
        if not self.delay_s and math.isinf(self.bits_per_s):
            return UNSHAPED
        rate = "" if math.isinf(self.bits_per_s) else f", {_setting(self.bits_per_s / 1e9)} Gbit/s"
        return f"{_setting(1e3 * self.delay_s)} ms{rate}"


def _setting(value: float) -> str:
    """Write a configured value as a person would: 0.1 and 10, not 0.100 and 10.0."""
    return exact(float(f"{value:.3g}"))


class Shape(NamedTuple):
    """The sizes that comparable runs share: model and work, but not schedule, links and micro batch."""

    stages: int
    global_batch_size: int
    sequence_length: int
    hidden_size: int
    number_bytes: int


class PipelineRun(NamedTuple):
    """One run with a pipeline, its schedule and its links."""

    run: Run
    plan: Plan
    wire: Wire
    shape: Shape
    micro_batch_size: int
    micro_batches: int
    network: Network
    network_title: str
    """The name of the network in its source, else its delay and rate."""
    step_time_s: float | None
    is_emulated: bool

    @property
    def source(self) -> Literal["measured", "emulated"]:
        return "emulated" if self.is_emulated else "measured"

    @property
    def message_bytes(self) -> float:
        """Size of the activations of one micro batch, in the precision in which they are computed."""
        shape = self.shape
        return float(self.micro_batch_size * shape.sequence_length * shape.hidden_size * shape.number_bytes)

    def pipeline(self, stages: tuple[StageTimes, ...], network: Network | None = None, step_s: float = 0.0) -> Pipeline:
        """Return the pipeline for a simulation, on the network of the run unless another is given."""
        plain = Pipeline(
            stages,
            self.micro_batches,
            ((network or self.network).link,) * self.shape.stages,
            self.message_bytes,
            self.message_bytes,
            step_s,
        )
        return on_wire(plain, self.wire, self.shape.number_bytes)


class Times(NamedTuple):
    """Times of the passes of a pipeline, and their origin."""

    stages: tuple[StageTimes, ...]
    step_s: float
    manner: str
    """The origin of the times, such as `the timers`."""
    run_number: int | None = None
    is_fitted: bool = False
    """Whether the times were fitted to the step time of that run, so that simulating it predicts nothing."""

    @property
    def basis(self) -> str:
        """Describe the origin of the times: `the timers of run 3`."""
        return f"{self.manner} of run {self.run_number}" if self.run_number is not None else self.manner


def pipeline_of(run: Run) -> PipelineRun | None:
    """Read the pipeline of a run; None without stages, if a size is missing, or if its links differ."""
    resolved = run.resolved
    model, train, parallel = (resolved.get(name) or {} for name in ("model", "train", "parallel"))
    try:
        stages = int(parallel["pipeline_parallel_size"])
        micro_batch, global_batch = int(train["micro_batch_size"]), int(train["global_batch_size"])
        replicas = int(parallel.get("data_parallel_size") or 1)
        precision = train.get("precision") or "fp32"
        sizes = int(model["sequence_length"]), int(model["hidden_size"])
        plan = Plan(
            str(parallel["schedule"]), int(parallel.get("warmup_slope") or 1), int(parallel.get("virtual_stages") or 1)
        )
    except (KeyError, TypeError, ValueError):
        return None
    engine = engine_of(resolved)
    has_stages = stages > 1 and (engine.is_pipeline or engine is UNKNOWN)
    if not has_stages or not 0 < micro_batch * replicas <= global_batch:
        return None
    if _has_uneven_links(resolved):
        return None
    if not _has_schedule(plan, stages, global_batch // (micro_batch * replicas)):
        return None
    wire: Wire = parallel["wire_precision"] if parallel.get("wire_precision") in WIRE_BYTES else "same"
    network, title = _network(run)
    measured = step_time(run.summary)
    pipeline_run = PipelineRun(
        run=run,
        plan=plan,
        wire=wire,
        shape=Shape(stages, global_batch, *sizes, 4 if precision == "fp32" else 2),
        micro_batch_size=micro_batch,
        micro_batches=global_batch // (micro_batch * replicas),
        network=network,
        network_title=title,
        step_time_s=measured.median if measured and run.state == RunState.FINISHED else None,
        is_emulated=train.get("compute") == "emulated",
    )
    no_times = Times((StageTimes(0.0, 0.0),) * stages, 0.0, "")
    return pipeline_run if _can_simulate(pipeline_run, no_times) else None


def _has_schedule(plan: Plan, stages: int, micro_batches: int) -> bool:
    """Return whether the simulation supports a schedule with these sizes; imported files may name any."""
    passes = 3 * stages * micro_batches * plan.virtual_stages
    if plan.name not in SCHEDULES or min(plan.warmup_slope, plan.virtual_stages) < 1 or passes > MAX_PASSES:
        return False
    return plan.name != "interleaved-1f1b" or micro_batches % stages == 0


def _can_simulate(pipeline_run: PipelineRun, times: Times) -> bool:
    """Return whether times and links are in the range of the simulation; files and logs may contain any number."""
    try:
        pipeline_run.pipeline(times.stages, step_s=times.step_s)
    except ValueError:
        return False
    return True


def _has_uneven_links(resolved: Mapping[str, Any]) -> bool:
    """Return whether links differ, or join nodes of several ranks: one delay and rate cannot describe them."""
    network, cluster = resolved.get("network") or {}, resolved.get("cluster") or {}
    if network.get("apply") not in ("emulate", "interface"):
        return False
    return bool(network.get("links")) or (
        int(cluster.get("nodes") or 1) > 1 and int(cluster.get("gpus_per_node") or 1) > 1
    )


def _network(run: Run) -> tuple[Network, str]:
    """Read the network of a run and its title from the configuration, or from the text of a published table."""
    section = run.resolved.get("network") or {}
    if section.get("apply") in ("emulate", "interface"):
        rate = section.get("bandwidth_gbps")
        network = Network(float(section.get("delay_ms") or 0) / 1e3, float(rate) * 1e9 if rate else math.inf)
        return network, network.title
    for text in run.point.values():
        if isinstance(text, str) and (published := network_in_text(text)):
            return published, text
    network = Network(0.0, math.inf)
    return network, network.title


def network_in_text(text: str) -> Network | None:
    """Read a delay and a rate from a text such as `delay 10ms bandwidth 1Gbps`; None if it contains neither."""
    delay, rate = _DELAY.search(text[:200]), _RATE.search(text[:200])
    if delay is None and rate is None:
        return None
    bits = float(rate[1]) * (1e9 if rate[2] in "Gg" else 1e6) if rate else math.inf
    return Network(float(delay[1]) / 1e3 if delay else 0.0, bits or math.inf)


def backward_per_forward(run: Run) -> float:
    """Estimate backward over forward time of a run without timers from its recomputation."""
    recompute = (run.resolved.get("train") or {}).get("recompute")
    if run.origin != Run.Origin.MEASURED and recompute != "full":
        return UNKNOWN_RECOMPUTE  # published runs are completed with defaults, so `none` may mean "not stated"
    return BACKWARD_PER_FORWARD.get(str(recompute), UNKNOWN_RECOMPUTE)


def times_of(pipeline_run: PipelineRun, ratio: float | None = None) -> Times | None:
    """Return the pass times of a run: configured for emulation, from its timers, or fitted to its step time.

    `ratio` is backward over forward time if only the step time is available. None if there are no usable times.
    """
    times = _emulated_times(pipeline_run) or _timer_times(pipeline_run) or _fitted_times(pipeline_run, ratio)
    return times if times is not None and _can_simulate(pipeline_run, times) else None


def _fitted_times(pipeline_run: PipelineRun, ratio: float | None) -> Times | None:
    """Fit equal stages so that the simulation takes as long as the run did."""
    if pipeline_run.step_time_s is None:
        return None
    ratio = backward_per_forward(pipeline_run.run) if ratio is None else ratio
    blank = pipeline_run.pipeline((split_times(0.0, ratio),) * pipeline_run.shape.stages)
    try:
        times = calibrate(pipeline_run.step_time_s, pipeline_run.plan, blank, backward_per_forward=ratio)
    except ValueError:
        return None
    manner = f"backward {ratio:g} times forward and the iteration"
    return Times((times,) * pipeline_run.shape.stages, 0.0, manner, pipeline_run.run.number, is_fitted=True)


def _emulated_times(pipeline_run: PipelineRun) -> Times | None:
    """Read the times of an emulated run from its configuration."""
    section: Mapping[str, Any] = pipeline_run.run.resolved.get("emulation") or {}
    forward, backward = section.get("forward_ms"), section.get("backward_ms")
    if not pipeline_run.is_emulated or not forward or not backward:
        return None
    per_rank = zip(_per_rank(forward, pipeline_run), _per_rank(backward, pipeline_run), strict=True)
    stages = tuple(StageTimes(f / 1e3, b / 1e3, b / 2e3) for f, b in per_rank)
    return Times(stages, float(section.get("optimizer_ms") or 0) / 1e3, "the times of the emulation")


def _per_rank(values: list[float], pipeline_run: PipelineRun) -> list[float]:
    """Add up the times of each rank's chunks: chunk c of rank r is stage c*p + r."""
    ranks, chunks = pipeline_run.shape.stages, pipeline_run.plan.virtual_stages
    per_stage = list(values) if len(values) > 1 else list(values) * (ranks * chunks)
    return [sum(per_stage[rank::ranks]) for rank in range(ranks)]


def _timer_times(pipeline_run: PipelineRun) -> Times | None:
    """Read the times of a measured run from its timers by rank."""
    timers = pipeline_run.run.summary.get("timers_s") or {}
    parallel = pipeline_run.run.resolved.get("parallel") or {}
    # Ranks of one stage are neighbours; the first rank represents its stage.
    width = int(parallel.get("data_parallel_size") or 1) * int(parallel.get("tensor_parallel_size") or 1)

    def by_stage(name: str) -> list[float]:
        seconds = (timers.get(name) or {}).get("by_rank") or {}
        ranks = (str(stage * width) for stage in range(pipeline_run.shape.stages))
        return [float(seconds[rank]) for rank in ranks if rank in seconds]

    passes = {name: by_stage(name) for name in ("forward-compute", "backward-compute", "backward-weight")}
    if any(len(passes[name]) != pipeline_run.shape.stages for name in ("forward-compute", "backward-compute")):
        return None
    if len(passes["backward-weight"]) != pipeline_run.shape.stages:
        del passes["backward-weight"]
    stages = stage_times(passes, pipeline_run.micro_batches)
    if "backward-weight" not in passes:  # the part that zb-h1 would defer is not measured: assume half of backward
        stages = tuple(times._replace(weight_s=times.backward_s / 2) for times in stages)
    return Times(stages, max(by_stage("optimizer"), default=0.0), "the timers", pipeline_run.run.number)


def has_pipelines(runs: Iterable[Run]) -> bool:
    """Return whether any run is a pipeline with a step time, so that a network sweep has rows."""
    return any(
        pipeline_run is not None and pipeline_run.step_time_s is not None for pipeline_run in map(pipeline_of, runs)
    )
