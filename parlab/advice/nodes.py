"""Advice for the number of nodes: more while GPU hours hardly grow, fewer where the nodes mostly communicate.

Model, global batch and layout of a replica stay; the replicas are doubled or halved, and the measured terms change by
the planner's ratio (`rules.gain_of`). A step on fewer nodes is longer: what it saves are GPU hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from parlab.advice.waterfalls.waterfall import Waterfall
from parlab.planner import Cluster, Job, Prediction, predict_job
from parlab.planner.job.cluster import with_gpus

from .advice import Advice
from .rules import Case, gain_of

MORE, FEWER = "more_nodes", "fewer_nodes"
MOST_HOURS = 1.4
"""GPU hours of a step on twice the nodes, relative to now, up to which they are advised: 71 % scaling efficiency."""
LEAST_SAVED = 0.25
"""Share of the GPU hours of a step that half of the nodes have to save."""
SPREADS = {MORE: 0.07, FEWER: 0.19}
"""Error that 80 % of the advised changes stay within, in shares of the step time (`make bench-advice`)."""
_COMMUNICATION = ("data", "tensor", "context", "expert", "pipeline")


class Size(NamedTuple):
    """A job on another number of nodes."""

    kind: str
    job: Job
    cluster: Cluster


def sizes(job: Job, cluster: Cluster) -> Iterator[Size]:
    """Yield the job on twice and on half of its nodes, as far as the global batch divides over the replicas."""
    if cluster.gpus % cluster.gpus_per_node:
        return
    per_micro_batch = job.micro_batch_size * job.data_parallel
    if job.global_batch_size % (2 * per_micro_batch) == 0:
        yield Size(MORE, replace(job, data_parallel=2 * job.data_parallel), with_gpus(cluster, 2 * cluster.gpus))
    if cluster.nodes % 2 == 0 and job.data_parallel % 2 == 0:
        yield Size(FEWER, replace(job, data_parallel=job.data_parallel // 2), with_gpus(cluster, cluster.gpus // 2))


def is_worth(kind: str, gain: float) -> bool:
    """Return whether a change of the step time by `gain` justifies the nodes."""
    return _hours(kind, gain) <= (MOST_HOURS if kind == MORE else 1 - LEAST_SAVED)


def _hours(kind: str, gain: float) -> float:
    """Return the GPU hours of a step after the change, relative to before."""
    return (1 - gain) * (2 if kind == MORE else 0.5)


def node_advice(case: Case) -> list[Advice]:
    """Return the advice for the number of nodes: at most one change in each direction."""
    if case.job is None or case.cluster is None:
        return []
    before = predict_job(case.job, case.cluster, case.calibration)
    rows = []
    for size in sizes(case.job, case.cluster):
        try:
            after = predict_job(size.job, size.cluster, case.calibration)
        except ValueError:
            continue
        gain = gain_of(case.waterfall, before.parts, after.parts)
        if after.fits and is_worth(size.kind, gain):
            rows.append(_advice(case.waterfall, size, case.cluster, gain, before, after))
    return rows


def _advice(
    waterfall: Waterfall, size: Size, now: Cluster, gain: float, before: Prediction, after: Prediction
) -> Advice:
    unit = "rank hours" if now.device.is_cpu else "GPU hours"
    before_h, after_h = (
        seconds * gpus / 3.6
        for seconds, gpus in ((waterfall.total_s, now.gpus), (waterfall.total_s * (1 - gain), size.cluster.gpus))
    )
    change = 100 * (after_h / before_h - 1)
    share = sum(waterfall.share(key) for key in _COMMUNICATION)
    communication = [sum(getattr(each.parts, f"{key}_s") for key in _COMMUNICATION) for each in (before, after)]
    assumed = "; the network between the nodes is assumed" if size.cluster.is_between_assumed else ""
    spread = SPREADS[size.kind]
    return Advice(
        size.kind,
        f"{_nodes(size.cluster)} instead of {now.nodes}",
        gain,
        gain - spread,
        min(1.0, gain + spread),
        max(_COMMUNICATION, key=waterfall.ns) if share > 0 else "unexplained",
        "measured terms x the planner's ratio on the other number of nodes, with the same global batch",
        f"communication takes {100 * share:.3g} % of the measured step; the planner predicts"
        f" {1e3 * communication[0]:.3g} ms of it now and {1e3 * communication[1]:.3g} ms then{assumed}",
        {"cluster.nodes": size.cluster.nodes, "parallel.data_parallel_size": size.job.data_parallel},
        f"{after_h:.3g} instead of {before_h:.3g} {unit} per 1,000 steps ({change:+.0f} %)",
    )


def _nodes(cluster: Cluster) -> str:
    return f"{cluster.nodes} node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
