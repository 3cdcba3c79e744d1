"""Reasons why queued runs wait, as text."""

from collections.abc import Iterable, Mapping

from django.utils import timezone
from django.utils.timesince import timesince

from parlab.lab.models import LaunchApproval, Member, MemberState, Node, Run
from parlab.lab.models.access.viewer import is_shown
from parlab.lab.services.access.rights import project_of
from parlab.lab.services.approvals import may_start
from runners.wire.protocol import RunState

from .capacity import START_S, Need, Room, best, gpu_count, gpu_limit, missing_ability, rooms
from .placement import candidates, placements

HELD = "beyond the budget of the project: a maintainer approves it in the inbox"
_NAMES_SHOWN = 3


def waiting_reason(run: Run) -> str:
    """Return why a queued run waits; empty for a run that is not queued."""
    return waiting_reasons([run]).get(run.pk, "")


def waiting_reasons(runs: Iterable[Run]) -> dict[int, str]:
    """Return why each queued run waits, with two queries for any number of runs.

    A run that waits on its node, like one in the queue of Slurm, has the reason that the node gives.
    """
    runs = list(runs)
    dispatched = {run.pk: run.attempt_number for run in runs if run.state == RunState.DISPATCHED}
    queued = [run for run in runs if run.state == RunState.QUEUED]
    held = _held(queued)
    queued = [run for run in queued if run.pk not in held]
    reasons = _reasons_of_nodes(dispatched) if dispatched else {}
    return reasons | held | (_reasons_of_queue(queued) if queued else {})


def _held(queued: list[Run]) -> dict[int, str]:
    asked = {run.approval_id for run in queued if run.approval_id is not None}
    undecided = set(LaunchApproval.objects.filter(pk__in=asked).exclude(is_approved=True).values_list("pk", flat=True))
    return {run.pk: HELD for run in queued if run.approval_id in undecided} if asked else {}


def _reasons_of_nodes(attempts: Mapping[int, int]) -> dict[int, str]:
    """Return the reasons that nodes give for the attempts (run -> number) that wait there."""
    members = Member.objects.filter(attempt__run__in=attempts, state=MemberState.DISPATCHED).exclude(reason="")
    rows = members.order_by("-node_rank").values_list("attempt__run", "attempt__number", "reason")
    return {run: reason for run, number, reason in rows if attempts[run] == number}


def _reasons_of_queue(queued: list[Run]) -> dict[int, str]:
    pools = {run.resolved["cluster"]["pool"] for run in queued}
    nodes = rooms(Node.objects.filter(pool__in=pools))
    if any(_has_free_nodes(run, nodes) for run in queued):
        _reserve(nodes)  # otherwise no reservation matters
    return {run.pk: _reason(run, nodes) for run in queued}


def _usable(room: Room) -> bool:
    return room.node.is_online and room.node.is_enabled and not room.node.is_draining


def _has_free_nodes(run: Run, nodes: list[Room]) -> bool:
    """Whether enough nodes are free for a queued run, which then only a reservation can hold back."""
    return bool(best([room for room in nodes if _usable(room)], Need.of(run.resolved)))


def _reason(run: Run, nodes: list[Room]) -> str:
    need = Need.of(run.resolved)
    pool = [room for room in nodes if room.node.pool == need.pool]
    if not pool:
        return (
            f"no node of pool {need.pool} has registered yet;"
            f" start a daemon with: python -m runners.node.daemon --pool {need.pool}"
        )
    if need.node_names:
        pool = [room for room in pool if room.node.name in need.node_names]
        if len(pool) < need.nodes:
            names = _name_list(need.node_names)
            return f"fewer than {need.nodes} nodes of pool {need.pool} are in cluster.node_names {names}; correct it"
    return _unusable(need, pool) or _reason_of_usable(run, need, [room for room in pool if room.node.is_online])


def _unusable(need: Need, pool: list[Room]) -> str:
    """Return why no node of the pool takes runs now; empty if one does."""
    online = [room for room in pool if room.node.is_online]
    if not online:
        return f"no node of pool {need.pool} is online: {_name_list(map(_last_seen, pool))}; restart its daemon"
    enabled = [room for room in online if room.node.is_enabled]
    if not enabled:
        names = _name_list(room.node.name for room in online)
        return f"every online node of pool {need.pool} is disabled: {names}; enable one in the admin"
    if all(room.node.is_draining for room in enabled):
        names = _name_list(room.node.name for room in enabled)
        return f"every online node of pool {need.pool} is draining: {names}; start its daemon without drain"
    return ""


def _reason_of_usable(run: Run, need: Need, online: list[Room]) -> str:
    enabled = [room for room in online if room.node.is_enabled]
    usable = [room for room in enabled if not room.node.is_draining]
    if not (unfit := _unfit(need, usable)):
        return _held_up(run, need, usable)
    draining = [f"node {room.node.name} is draining" for room in enabled if room.node.is_draining]
    return "; ".join([unfit, *draining[:_NAMES_SHOWN]])


def _unfit(need: Need, usable: list[Room]) -> str:
    """Return why the nodes could not take the run even if all were free; empty if they could."""
    if all(gpu_limit(room.node) < need.gpus for room in usable):
        most = max(usable, key=lambda room: gpu_count(room.node)).node
        return (
            f"needs {need.gpus} GPUs on one node; in pool {need.pool}, {most.name} has the most: {gpu_count(most)};"
            " use fewer ranks, or cluster.device auto or cpu"
        )
    missing = [reason for room in usable if (reason := missing_ability(room.node, need))]
    able = [room for room in usable if room.could_take(need)]
    if not able and missing:
        return "; ".join(missing[:_NAMES_SHOWN])
    alike = max((sum(other.device_of(need) == room.device_of(need) for other in able) for room in able), default=0)
    if alike >= need.nodes or any(room.is_queue for room in able):
        return ""
    if len(able) >= need.nodes:
        kinds = _name_list(sorted({room.device_of(need) or "no GPU" for room in able}))
        return (
            f"needs {need.nodes} nodes with the same device; pool {need.pool} has different ones: {kinds};"
            f" set cluster.nodes to at most {alike}, or cluster.device to cpu"
        )
    others = f" ({'; '.join(missing[:_NAMES_SHOWN])})" if missing else ""
    return (
        f"needs {need.nodes} nodes at once; pool {need.pool} has {len(able)} that can take it:"
        f" {_name_list(room.node.name for room in able)}{others}; start more daemons, or set cluster.nodes to"
        f" at most {len(able)}"
    )


def _held_up(run: Run, need: Need, usable: list[Room]) -> str:
    if best(usable, need):
        return "will be sent to a node within seconds"
    able = [room for room in usable if room.could_take(need)]
    others = {room.node.pk: [other for other in room.reserved_for if other.pk != run.pk] for room in able}
    with_room = [room for room in able if room.has_room(need)]
    free = [room for room in with_room if not others[room.node.pk]]
    reasons = [_busy(room, run) for room in able if not room.has_room(need)][:_NAMES_SHOWN]
    reasons += [
        f"node {room.node.name} is reserved for {_name_list(_run_name(other, run) for other in others[room.node.pk])},"
        f" which waits for longer{_gap(room)}"
        for room in with_room
        if others[room.node.pk]
    ]
    if need.nodes == 1:
        return "; ".join(reasons[:_NAMES_SHOWN])
    names = f": {_name_list(room.node.name for room in free)}" if free else ""
    return f"needs {need.nodes} nodes at once; {len(free)} of {len(able)} are free{names}; {'; '.join(reasons)}"


def _gap(room: Room) -> str:
    seconds = int(room.gap_s - START_S)
    return f" (a run with launcher.timeout_s of at most {seconds} would fit before)" if seconds > 0 else ""


def _reserve(nodes: list[Room]) -> None:
    """Reserve what the queue reserves, as the next dispatch will."""
    now = timezone.now()
    usable = [room for room in nodes if _usable(room)]
    queued = Run.objects.filter(may_start(), state=RunState.QUEUED).order_by("queued_at", "pk")
    before = [(room.slots, room.gpus) for room in usable]
    for _ in placements(candidates(queued, usable, now), usable, now):
        pass
    for room, (slots, gpus) in zip(usable, before, strict=True):
        room.slots, room.gpus = slots, gpus


def _last_seen(room: Room) -> str:
    seen = room.node.last_heartbeat_at
    return f"{room.node.name} was last seen {timesince(seen, timezone.now(), depth=1)} ago" if seen else room.node.name


def _busy(room: Room, run: Run) -> str:
    return f"node {room.node.name} is busy with {_name_list(_run_name(attempt.run, run) for attempt in room.busy)}"


def _run_name(other: Run, run: Run) -> str:
    if not is_shown(project_of(other)):
        return "a run of another project"
    return f"#{other.number}" if other.experiment_id == run.experiment_id else f"{other.experiment} #{other.number}"


def _name_list(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
