"""The slowest rank, node or stage of a run."""

from __future__ import annotations

from collections.abc import Mapping

from parlab.advice.observations import SLOWER, Slowest
from parlab.advice.waterfalls.backward_pass import is_late, middle, work_of
from parlab.advice.waterfalls.measured import timers_of
from parlab.advice.waterfalls.timers import grouped, total
from parlab.lab.models import Run, Stream
from parlab.lab.selectors.layouts import rank_layout

from .waterfalls import stages_of


def slowest_rank(run: Run) -> Slowest | None:
    """Return the rank with the longest work and its excess over the median rank; None with pipeline stages."""
    if stages_of(run) != 1:
        return None
    groups = grouped(timers_of(run.summary.get("timers_s") or {}))
    work = "computes"
    if run.origin == Run.Origin.REPORTED and not groups.data:
        # The ranks of a plain script wait for each other inside the backward pass: what comes before tells them apart.
        backward = total(groups.backward).by_rank
        before = work_of(groups)
        first = min(backward, key=lambda rank: backward[rank], default="")
        if not is_late(before, backward, first):
            return None
        totals = _numbered(before)
        loading = _numbered(total(groups.loading).by_rank)
        work = "loads and computes" if _is_input(totals, loading, int(first)) else work
    else:
        totals = _compute_by_rank(run)
    if len(totals) < 2:
        return None
    slowest = max(totals, key=lambda rank: totals[rank])
    usual = middle(seconds for rank, seconds in totals.items() if rank != slowest)
    if usual <= 0:
        return None
    return Slowest(slowest, totals[slowest] / usual - 1, _place(slowest, totals, node_names(run)), work)


def slowest_stage(run: Run) -> Slowest | None:
    """Return the rank with the longest compute and its excess over the mean; None without pipeline stages."""
    totals = _compute_by_rank(run)
    if stages_of(run) == 1 or len(totals) < 2:
        return None
    slowest = max(totals, key=lambda rank: totals[rank])
    usual = sum(totals.values()) / len(totals)
    return Slowest(slowest, totals[slowest] / usual - 1) if usual > 0 else None


def node_names(run: Run) -> dict[int, str]:
    """Return the node of each rank, where a run has several."""
    if run.origin == Run.Origin.REPORTED:
        streams = Stream.objects.filter(tracked__run=run, kind=Stream.Kind.RANK)
        hosts = dict(streams.values_list("rank", "host"))
    else:
        attempt = run.attempts.filter(number=run.attempt_number).prefetch_related("members__node").first()
        layout = rank_layout(run, attempt) if attempt is not None else None
        hosts = {rank: layout.node_of(rank) for rank in range(layout.ranks)} if layout is not None else {}
    return hosts if len(set(hosts.values())) > 1 else {}


def _place(rank: int, seconds: Mapping[int, float], nodes: Mapping[int, str]) -> str:
    """Name a rank with its node, or the node alone if all its ranks are slower than those of the others."""
    node = nodes.get(rank)
    if not node:
        return ""
    inside = [seconds[each] for each in seconds if nodes.get(each) == node]
    outside = [seconds[each] for each in seconds if nodes.get(each) != node]
    if len(inside) > 1 and outside and min(inside) > (1 + SLOWER) * middle(outside):
        return f"node {node}"
    return f"rank {rank} on node {node}"


def _is_input(totals: Mapping[int, float], loading: Mapping[int, float], rank: int) -> bool:
    """Return whether a rank is late because of its data loading."""
    others = [each for each in totals if each != rank]
    late_s = totals[rank] - middle(totals[each] for each in others)
    return loading.get(rank, 0.0) - middle(loading.get(each, 0.0) for each in others) > 0.5 * late_s


def _compute_by_rank(run: Run) -> dict[int, float]:
    """Return the compute of each rank in a step (s)."""
    timers = timers_of(run.summary.get("timers_s") or {})
    totals: dict[int, float] = {}
    for name in ("forward-compute", "backward-compute", "backward-weight"):
        for rank, seconds in _numbered(timers[name].by_rank if name in timers else {}).items():
            totals[rank] = totals.get(rank, 0.0) + seconds
    return totals


def _numbered(by_rank: Mapping[str, float]) -> dict[int, float]:
    return {int(rank): seconds for rank, seconds in by_rank.items() if rank.isdecimal()}
