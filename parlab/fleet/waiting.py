"""Reasons why queued runs wait, as text."""

from collections.abc import Iterable

from django.utils import timezone
from django.utils.timesince import timesince

from parlab.lab.models import Attempt, Node, Run
from runners.protocol import RunState

from .capacity import Need, Room, best, gpu_count, rooms

_NAMES_SHOWN = 3


def waiting_reason(run: Run) -> str:
    """Return why a queued run waits; empty for a run that is not queued."""
    return waiting_reasons([run]).get(run.pk, "")


def waiting_reasons(runs: Iterable[Run]) -> dict[int, str]:
    """Return why each queued run waits, with two queries for any number of runs."""
    queued = [run for run in runs if run.state == RunState.QUEUED]
    if not queued:
        return {}
    pools = {run.resolved["cluster"]["pool"] for run in queued}
    nodes = rooms(Node.objects.filter(pool__in=pools))
    return {run.pk: _reason(run, nodes) for run in queued}


def _reason(run: Run, nodes: list[Room]) -> str:
    need = Need.of(run.resolved["cluster"])
    pool = [room for room in nodes if room.node.pool == need.pool]
    if not pool:
        return (
            f"no node of pool {need.pool} has registered yet;"
            f" start a daemon with: python -m runners.daemon --pool {need.pool}"
        )
    online = [room for room in pool if room.node.is_online]
    if not online:
        return f"no node of pool {need.pool} is online: {_name_list(map(_last_seen, pool))}; restart its daemon"
    enabled = [room for room in online if room.node.is_enabled]
    if not enabled:
        names = _name_list(room.node.name for room in online)
        return f"every online node of pool {need.pool} is disabled: {names}; enable one in the admin"
    if all(gpu_count(room.node) < need.gpus for room in enabled):
        most = max(enabled, key=lambda room: gpu_count(room.node)).node
        return (
            f"needs {need.gpus} GPUs on one node; in pool {need.pool}, {most.name} has the most: {gpu_count(most)};"
            " use fewer ranks, or cluster.device auto or cpu"
        )
    if best(enabled, need):
        return "will be sent to a node within seconds"
    fitting = [room for room in enabled if gpu_count(room.node) >= need.gpus]
    return "; ".join(_busy(room, run) for room in fitting[:_NAMES_SHOWN])


def _last_seen(room: Room) -> str:
    seen = room.node.last_heartbeat_at
    return f"{room.node.name} was last seen {timesince(seen, timezone.now(), depth=1)} ago" if seen else room.node.name


def _busy(room: Room, run: Run) -> str:
    return f"node {room.node.name} is busy with {_name_list(_run_name(attempt, run) for attempt in room.busy)}"


def _run_name(attempt: Attempt, run: Run) -> str:
    other = attempt.run
    return f"#{other.number}" if other.experiment_id == run.experiment_id else f"{other.experiment} #{other.number}"


def _name_list(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
