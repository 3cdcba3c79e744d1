"""What a run says of its pipeline and its links: what a simulation needs, and how long each pass took."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from parlab.charts.format import significant
from parlab.lab.models import Run
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
from runners.protocol import RunState
from runners.schedules import SCHEDULES

from .runs import step_time

_DELAY = re.compile(r"(\d+(?:\.\d+)?)\s*ms\b", re.I)
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(G|M)(?:bps|bit/?s|b/s)\b", re.I)
_PIPELINES = ("pipeline", "megatron", None)
"""Engines with stages; None is of a file that names no engine."""
UNSHAPED = "links as they are"
UNKNOWN_RECOMPUTE = 3.0
"""Backward per forward of published figures that do not say: pipelines of that kind compute activations again."""


class Network(NamedTuple):
    """The links of a run: equal ones, or what stands for them."""

    delay_s: float
    bits_per_s: float

    @property
    def link(self) -> Link:
        return Link(self.delay_s, self.bits_per_s)

    @property
    def title(self) -> str:
        if not self.delay_s and math.isinf(self.bits_per_s):
            return UNSHAPED
        rate = "" if math.isinf(self.bits_per_s) else f", {significant(self.bits_per_s / 1e9)} Gbit/s"
        return f"{significant(1e3 * self.delay_s)} ms{rate}"


class Shape(NamedTuple):
    """What two runs must share to be compared: the model and the work, but not schedule, links and micro batch."""

    stages: int
    global_batch_size: int
    sequence_length: int
    hidden_size: int
    number_bytes: int


class PipelineRun(NamedTuple):
    """One run of a pipeline as a network sweep sees it."""

    run: Run
    plan: Plan
    wire: Wire
    shape: Shape
    micro_batch_size: int
    micro_batches: int
    network: Network
    network_title: str
    """As its source calls the network, else in numbers."""
    step_time_s: float | None
    is_emulated: bool

    @property
    def source(self) -> Literal["measured", "emulated"]:
        return "emulated" if self.is_emulated else "measured"

    @property
    def message_bytes(self) -> float:
        """Activations of one micro batch as they were computed."""
        shape = self.shape
        return float(self.micro_batch_size * shape.sequence_length * shape.hidden_size * shape.number_bytes)

    def pipeline(self, stages: tuple[StageTimes, ...], network: Network | None = None, step_s: float = 0.0) -> Pipeline:
        """Put times and links together; the links are the run's own unless others are given."""
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
    """Times of a pipeline's passes and where they come from."""

    stages: tuple[StageTimes, ...]
    step_s: float
    manner: str
    """What they were taken from."""
    run_number: int | None = None
    is_fitted: bool = False
    """Found so that the iteration of that very run comes out: of it, the simulation predicts nothing."""

    @property
    def basis(self) -> str:
        """Say where they come from: `the timers of run 3`."""
        return f"{self.manner} of run {self.run_number}" if self.run_number is not None else self.manner


def pipeline_run(run: Run) -> PipelineRun | None:
    """Read a run as a pipeline; None where it is none, its source leaves out a size, or its links are not alike."""
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
    if stages < 2 or parallel.get("engine") not in _PIPELINES or not 0 < micro_batch * replicas <= global_batch:
        return None
    if _has_uneven_links(resolved):
        return None
    if not _has_schedule(plan, stages, global_batch // (micro_batch * replicas)):
        return None
    wire: Wire = parallel["wire_precision"] if parallel.get("wire_precision") in WIRE_BYTES else "same"
    network, title = _network(run)
    found = step_time(run.summary)
    one = PipelineRun(
        run=run,
        plan=plan,
        wire=wire,
        shape=Shape(stages, global_batch, *sizes, 4 if precision == "fp32" else 2),
        micro_batch_size=micro_batch,
        micro_batches=global_batch // (micro_batch * replicas),
        network=network,
        network_title=title,
        step_time_s=found.median if found and run.state == RunState.FINISHED else None,
        is_emulated=train.get("compute") == "emulated",
    )
    return one if _is_sane(one, Times((StageTimes(0.0, 0.0),) * stages, 0.0, "")) else None


def _has_schedule(plan: Plan, stages: int, micro_batches: int) -> bool:
    """Tell whether the simulation knows a schedule of these sizes; files may name any."""
    passes = 3 * stages * micro_batches * plan.virtual_stages
    if plan.name not in SCHEDULES or min(plan.warmup_slope, plan.virtual_stages) < 1 or passes > MAX_PASSES:
        return False
    return plan.name != "interleaved-1f1b" or micro_batches % stages == 0


def _is_sane(one: PipelineRun, times: Times) -> bool:
    """Tell whether times and links can be simulated: what files and logs say may be anything."""
    try:
        one.pipeline(times.stages, step_s=times.step_s)
    except ValueError:
        return False
    return True


def _has_uneven_links(resolved: Mapping[str, Any]) -> bool:
    """Tell of links that differ, or that join nodes of several ranks: one delay and rate do not say what they do."""
    network, cluster = resolved.get("network") or {}, resolved.get("cluster") or {}
    if network.get("apply") not in ("emulate", "interface"):
        return False
    return bool(network.get("links")) or (
        int(cluster.get("nodes") or 1) > 1 and int(cluster.get("gpus_per_node") or 1) > 1
    )


def _network(run: Run) -> tuple[Network, str]:
    """Read the links of a run from its configuration, or from the words of a published table."""
    given = run.resolved.get("network") or {}
    if given.get("apply") in ("emulate", "interface"):
        rate = given.get("bandwidth_gbps")
        network = Network(float(given.get("delay_ms") or 0) / 1e3, float(rate) * 1e9 if rate else math.inf)
        return network, network.title
    for text in run.point.values():
        if isinstance(text, str) and (found := network_in_words(text)):
            return found, text
    network = Network(0.0, math.inf)
    return network, network.title


def network_in_words(text: str) -> Network | None:
    """Read a delay and a rate from words such as `delay 10ms bandwidth 1Gbps`; None where there is neither."""
    delay, rate = _DELAY.search(text[:200]), _RATE.search(text[:200])
    if delay is None and rate is None:
        return None
    bits = float(rate[1]) * (1e9 if rate[2] in "Gg" else 1e6) if rate else math.inf
    return Network(float(delay[1]) / 1e3 if delay else 0.0, bits or math.inf)


def backward_per_forward(run: Run) -> float:
    """Guess backward over forward of a run without timers from its recomputation."""
    said = (run.resolved.get("train") or {}).get("recompute")
    if run.origin != Run.Origin.MEASURED and said != "full":
        return UNKNOWN_RECOMPUTE  # published figures are completed with defaults: `none` says nothing
    return BACKWARD_PER_FORWARD.get(str(said), UNKNOWN_RECOMPUTE)


def times_of(one: PipelineRun, ratio: float | None = None) -> Times | None:
    """Find the times of a run's passes: as typed in, from its timers, or so that its own iteration comes out.

    `ratio` is backward over forward where only the iteration is known. None where nothing is known that makes sense.
    """
    found = _typed(one) or _timed(one) or _fitted(one, ratio)
    return found if found is not None and _is_sane(one, found) else None


def _fitted(one: PipelineRun, ratio: float | None) -> Times | None:
    """Find equal stages with which the simulation takes as long as the run did."""
    if one.step_time_s is None:
        return None
    wanted = backward_per_forward(one.run) if ratio is None else ratio
    blank = one.pipeline((split_times(0.0, wanted),) * one.shape.stages)
    try:
        times = calibrate(one.step_time_s, one.plan, blank, backward_per_forward=wanted)
    except ValueError:
        return None
    manner = f"backward {wanted:g} times forward and the iteration"
    return Times((times,) * one.shape.stages, 0.0, manner, one.run.number, is_fitted=True)


def _typed(one: PipelineRun) -> Times | None:
    """Read the times of an emulated run from its configuration."""
    given: Mapping[str, Any] = one.run.resolved.get("emulation") or {}
    forward, backward = given.get("forward_ms"), given.get("backward_ms")
    if not one.is_emulated or not forward or not backward:
        return None
    per_rank = zip(_each(forward, one), _each(backward, one), strict=True)
    stages = tuple(StageTimes(f / 1e3, b / 1e3, b / 2e3) for f, b in per_rank)
    return Times(stages, float(given.get("optimizer_ms") or 0) / 1e3, "the times of the emulation")


def _each(values: list[float], one: PipelineRun) -> list[float]:
    """Add up the times of each rank's chunks: chunk c of rank r is stage c*p + r."""
    ranks, chunks = one.shape.stages, one.plan.virtual_stages
    every = list(values) if len(values) > 1 else list(values) * (ranks * chunks)
    return [sum(every[rank::ranks]) for rank in range(ranks)]


def _timed(one: PipelineRun) -> Times | None:
    """Read the times of a measured run from its timers by rank."""
    timers = one.run.summary.get("timers_s") or {}
    parallel = one.run.resolved.get("parallel") or {}
    # Ranks of one stage are neighbours; the first of each stands for it.
    width = int(parallel.get("data_parallel_size") or 1) * int(parallel.get("tensor_parallel_size") or 1)

    def by_rank(name: str) -> list[float]:
        found = (timers.get(name) or {}).get("by_rank") or {}
        ranks = (str(stage * width) for stage in range(one.shape.stages))
        return [float(found[rank]) for rank in ranks if rank in found]

    passes = {name: by_rank(name) for name in ("forward-compute", "backward-compute", "backward-weight")}
    if any(len(passes[name]) != one.shape.stages for name in ("forward-compute", "backward-compute")):
        return None
    if len(passes["backward-weight"]) != one.shape.stages:
        del passes["backward-weight"]
    stages = stage_times(passes, one.micro_batches)
    if "backward-weight" not in passes:  # what zb-h1 would put off is not known: half of the backward products
        stages = tuple(times._replace(weight_s=times.backward_s / 2) for times in stages)
    return Times(stages, max(by_rank("optimizer"), default=0.0), "the timers", one.run.number)


def has_pipelines(runs: Iterable[Run]) -> bool:
    """Tell whether any run of an experiment is a pipeline with a time, which a page of networks can show."""
    return any(found is not None and found.step_time_s is not None for found in map(pipeline_run, runs))
