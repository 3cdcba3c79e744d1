"""Lower bounds that hold for every schedule of a sweep over networks: no measured run is faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from parlab.lab.selectors.analysis.pipelines import Network, PipelineRun, Times
from parlab.planner.schedule import Bound, StageTimes, bound_of_any, fastest_of, share_within


class Passes(NamedTuple):
    """The fastest passes that the runs of one model and micro batch size showed."""

    stages: tuple[StageTimes, ...]
    step_s: float
    chunk_counts: tuple[int, ...]


def fastest_passes(times: Sequence[Times], runs: Sequence[PipelineRun]) -> Passes:
    """Return passes with which no run is faster than its bound, from the times of several schedules.

    A schedule is measured with its own passes, which vary from run to run, so the bound takes the fastest of all. If a
    run was faster than even that, its passes were faster, and the bound follows. Runs on links that were faster than
    stated show nothing about passes.
    """
    chunks = tuple(sorted({run.plan.virtual_stages for run in runs})) or (1,)
    passes = Passes(fastest_of([each.stages for each in times]), min(each.step_s for each in times), chunks)
    shares = [share for run in runs if (share := _share(passes, run)) is not None]
    return _scaled(passes, min(shares, default=1.0))


def _share(passes: Passes, run: PipelineRun) -> float | None:
    if run.step_time_s is None:
        return None
    return share_within(run.pipeline(passes.stages, step_s=passes.step_s), run.step_time_s, passes.chunk_counts)


def _scaled(passes: Passes, share: float) -> Passes:
    stages = tuple(StageTimes(*(share * seconds for seconds in times)) for times in passes.stages)
    return passes._replace(stages=stages, step_s=share * passes.step_s)


def network_bound(passes: Passes, run: PipelineRun, network: Network, measured_s: Sequence[float]) -> Bound | None:
    """Return the bound of all schedules on a network with the messages of a run.

    None if a run on this network was faster: its messages alone would take longer on the stated links.
    """
    bound = bound_of_any(run.pipeline(passes.stages, network, passes.step_s), passes.chunk_counts)
    # The share of the passes is found to 2^-50 of them.
    return bound if all(bound.seconds <= (1 + 1e-9) * seconds for seconds in measured_s) else None


def by_network(runs: Sequence[PipelineRun]) -> Mapping[Network, list[float]]:
    """Return the measured times of runs by their network."""
    times: dict[Network, list[float]] = {}
    for run in runs:
        if run.step_time_s is not None:
            times.setdefault(run.network, []).append(run.step_time_s)
    return times
