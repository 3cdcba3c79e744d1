"""Reports of the members of an attempt, and the state of the attempt that follows from them.

Lock order: the row of the attempt, that of its run, those of its members by node rank.
"""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from parlab.lab.models import ACTIVE_MEMBER_STATES, Attempt, Member, MemberState, Run, Snapshot
from runners.wire.protocol import Report, RunState

from . import events, storable
from .attempts import environment_snapshot, lock_attempt, queue_next_attempt
from .chains import LOST, after_attempt
from .node_faults import is_node_fault

logger = logging.getLogger(__name__)

_MAX_EXIT_CODE = 2**31 - 1
_EARLIER = {
    MemberState.PREPARED: (MemberState.DISPATCHED,),
    MemberState.RUNNING: (MemberState.DISPATCHED, MemberState.PREPARED),
}
"""States that may come before one that is not final; a final state may follow every active one."""


@transaction.atomic
def attempt_report(*, attempt: Attempt, report: Report, node_rank: int = 0) -> bool:
    """Apply a report on a member; states only move forward. Returns whether anything changed.

    Another attempt follows where `chains.after_attempt` says so.
    """
    current, run = lock_attempt(attempt)
    if RunState(current.state).is_final:
        return False
    members = lock_members(current)
    member = next((member for member in members if member.node_rank == node_rank), None)
    if member is None or not _member_report(run, member, members, report):
        return False
    if report.environment:
        snapshot = environment_snapshot(run, current, member, report)
        Snapshot.objects.bulk_create([snapshot], ignore_conflicts=True)
    _attempt_follow(current, run, members, report if node_rank == 0 else None)
    return True


def attempt_lose(*, attempt: Attempt, reason: str, node_rank: int = 0) -> bool:
    """Mark a member as lost because its node no longer responds; returns whether it was still active."""
    report = Report(state="lost", at=timezone.now().timestamp(), reason=reason)
    return attempt_report(attempt=attempt, report=report, node_rank=node_rank)


def lock_members(attempt: Attempt) -> list[Member]:
    """Lock the members of a locked attempt and return them by node rank.

    An attempt that no daemon runs gets its only member here, without a node.
    """
    rows = Member.objects.filter(attempt=attempt).select_related("node").order_by("node_rank")
    members = list(rows.select_for_update(of=("self",), no_key=True))
    if members:
        return members
    state = attempt.state if attempt.state in MemberState.values else MemberState.DISPATCHED
    return [Member.objects.create(attempt=attempt, state=state)]


def _member_report(run: Run, member: Member, members: Sequence[Member], report: Report) -> bool:
    """Apply a report to a locked member; returns whether its state moved forward."""
    state = MemberState(report.state)
    if member.member_state not in _EARLIER.get(state, ACTIVE_MEMBER_STATES):
        return False
    if member.node is not None:
        member.clock_offset_s = member.node.clock_offset_s
    before, member.state, member.reason = member.state, state, storable.text(report.reason)
    moment = _moment(report.at, member.clock_offset_s)
    if state is MemberState.PREPARED:
        member.prepared_at = moment
        member.rendezvous = report.rendezvous.model_dump() if report.rendezvous else {}
    elif state is MemberState.RUNNING:
        member.started_at = moment
    else:
        member.ended_at = moment
        if report.noticed_at is not None:
            member.noticed_at = min(moment, _moment(report.noticed_at, member.clock_offset_s))
        member.first_failed_rank = _rank(report.first_failed_rank)
        # A cancel that follows the end of another member is the server's own.
        follows = state is MemberState.CANCELLED and run.cancel_requested_at is None
        others_ended = any(other.member_state.is_bad_end for other in members if other is not member)
        member.is_consequence = report.is_consequence or (follows and others_ended)
    member.traceback = storable.text(report.traceback) or member.traceback
    if state.is_final:
        member.is_node_fault = is_node_fault(
            state, member.reason, member.traceback, is_consequence=member.is_consequence
        )
    member.environment = storable.json(report.environment) or member.environment
    if report.exit_code is not None and abs(report.exit_code) <= _MAX_EXIT_CODE:
        member.exit_code = report.exit_code
    member.save()
    logger.info("%s: %s -> %s %s", member, before, state, member.reason)
    return True


def _rank(rank: int | None) -> int | None:
    return rank if rank is not None and 0 <= rank < 2**31 else None


def _moment(at: float, clock_offset_s: float) -> datetime:
    try:
        return datetime.fromtimestamp(at - clock_offset_s, UTC)
    except (ValueError, OverflowError, OSError):
        return timezone.now()  # the clock of the node is wrong


def _attempt_follow(attempt: Attempt, run: Run, members: Sequence[Member], report: Report | None) -> None:
    """Bring a locked attempt and its run to the state that its members imply; `report` is one of node rank 0."""
    facts = _attempt_facts(attempt, run, members)
    own: dict[str, Any] = {}
    if report is not None:
        fields = {"command": storable.json(report.command), "environment": storable.json(report.environment)}
        own = {name: value for name, value in fields.items() if value}
    if not facts and not own:
        return
    is_current = run.attempt_number == attempt.number
    state = RunState(facts.get("state", attempt.state))
    cause = first_cause(members) if state.is_final else None
    evidence = _evidence(cause or members[0]) if state.is_final else {}
    if cause is not None and cause.is_consequence:
        Member.objects.filter(pk=cause.pk).update(is_consequence=False)
    Attempt.objects.filter(pk=attempt.pk).update(**facts, **own, **evidence)
    if facts and is_current:
        Run.everything.filter(pk=run.pk, attempt_number=attempt.number).update(**facts)
    if facts:
        logger.info("run %s attempt %s: %s -> %s", run.pk, attempt.number, attempt.state, facts)
    if facts and state.is_final and is_current:
        _run_follow(attempt, run, state, str(facts.get("reason", "")))


def _run_follow(attempt: Attempt, run: Run, state: RunState, reason: str) -> None:
    """Queue the next attempt of a locked run whose current one has ended, or end the run."""
    decision = after_attempt(run=run, number=attempt.number, state=state, reason=reason)
    if decision.goes_on:
        queue_next_attempt(run)
        return
    if (decision.state, decision.reason) != (state, reason):
        logger.info("run %s: %s %s", run.pk, decision.state, decision.reason)
        Run.everything.filter(pk=run.pk).update(state=decision.state, reason=decision.reason)
    events.run_ended(run=run, attempt_number=attempt.number, state=decision.state, reason=decision.reason)


def _attempt_facts(attempt: Attempt, run: Run, members: Sequence[Member]) -> dict[str, Any]:
    """Return the columns of an attempt and its run that change; empty if the state stays."""
    starts = [member.started_at for member in members if member.started_at is not None]
    started = {"started_at": min(starts)} if starts and attempt.started_at is None else {}
    if any(member.is_active for member in members):
        has_run = starts or any(member.member_state is MemberState.FINISHED for member in members)
        if not has_run or attempt.state == RunState.RUNNING:
            return {}
        return {"state": RunState.RUNNING, "reason": "", **started}
    ended_at = max(member.ended_at or timezone.now() for member in members)
    cause = first_cause(members)
    state = RunState(cause.state) if cause else RunState.FINISHED
    # A person cancels the run and not a node.
    is_by_person = state == RunState.CANCELLED and run.cancel_requested_at is not None
    reason = cause_text(cause, 1 if is_by_person else len(members)) if cause else members[0].reason
    is_current = run.attempt_number == attempt.number
    if state in LOST and is_current and run.cancel_requested_at is not None:
        state, reason = RunState.CANCELLED, f"cancelled; {reason}".strip("; ")
    return {"state": state, "reason": reason, "ended_at": ended_at, **started}


def first_cause(members: Sequence[Member]) -> Member | None:
    """Return the member whose end ended the others; None if all have finished.

    It is the earliest end, by clocks without their offsets, that is not the consequence of another one. All nodes write
    a checkpoint together: a node with another end has the reason.
    """
    ends = [member for member in members if member.member_state.is_bad_end]
    return min(ends, key=_cause_order, default=None)


def _cause_order(member: Member) -> tuple[bool, bool, datetime, int]:
    has_checkpointed = member.member_state is MemberState.CHECKPOINTED
    return member.is_consequence, has_checkpointed, _end_time(member), member.node_rank


def _end_time(member: Member) -> datetime:
    ended_at = member.ended_at or timezone.now()
    # The server notices a lost node only when its lease is over: it was gone when its heartbeats stopped.
    if member.state == MemberState.LOST and member.node is not None and member.node.last_heartbeat_at is not None:
        return min(ended_at, member.node.last_heartbeat_at)
    return ended_at


def cause_text(member: Member, nodes: int) -> str:
    """Return the reason of a member's end, with node and rank if the attempt has several nodes."""
    if nodes == 1:
        return member.reason
    if member.reason.startswith((f"node {member.node_name} ", f"node {member.place_name} ")):
        return member.reason
    has_rank = member.first_failed_rank is not None and not member.reason.startswith("rank ")
    rank = f", rank {member.first_failed_rank}" if has_rank else ""
    return f"node {member.place_name}{rank}: {member.reason or member.state}"


def _evidence(member: Member) -> dict[str, Any]:
    """Return the columns of an attempt that show why it ended; empty values keep earlier ones."""
    evidence: dict[str, Any] = {"traceback": member.traceback} if member.traceback else {}
    return evidence if member.exit_code is None else {**evidence, "exit_code": member.exit_code}
