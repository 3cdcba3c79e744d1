"""Apply batches to lab and series, each exactly once, and rebuild attempts from their raw logs."""

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby, zip_longest
from typing import NamedTuple

from django.core.cache import cache
from django.db import transaction

from parlab.ingest.batches import orders
from parlab.ingest.batches.clock import shared_now
from parlab.ingest.batches.output import Output, outputs_append, world_size
from parlab.ingest.batches.rebuild import locked_attempts, series_rebuild
from parlab.ingest.batches.run_files import pieces_store
from parlab.ingest.summaries.attempt_summaries import attempt_summarise, is_printed
from parlab.lab.models import Attempt, Member, Run
from parlab.lab.services.findings import ended_findings_refresh
from parlab.lab.services.members import attempt_report, lock_members
from parlab.series import log, store
from parlab.series.statements import Update
from parlab.series.streams import Mark, extended, marks_of
from runners.wire.protocol import Batch, RunState

UNKNOWN = -1
"""Answer to a batch of an attempt that does not exist here or is assigned to another node."""
SUMMARY_EVERY_S = 5.0
TEXT_EVERY_S = 0.5
# A summary reads the whole series: while a run is active, at most this share of the time is spent on it.
_SUMMARY_SHARE = 0.05
# All summaries of active runs together take at most this share: a hundred scripts would keep a server busy with them.
_SUMMARIES_SHARE = 0.1
_SUMMARIES_KEY = "parlab.ingest.summaries"
_BURST_S = 5.0
_update_attempts = Update(Attempt, ["last_step"])
_update_members = Update(Member, ["committed", "lease_expires_at"])
_LAST_POSITION = 2**63 - 1
_LAST_NUMBER = 2**31 - 1
_NAMED_RANKS = 500
"""Node ranks up to which a query names them; databases limit the number of parameters."""
_ENDS_S = 3600.0
"""How long a process remembers which logs it has read to their ends."""


class Applied(NamedTuple):
    """What became of batches."""

    positions: list[int]
    """For each batch the position up to which the spool of its node is stored, or UNKNOWN."""
    grown: list[Attempt]
    """Attempts with new output that have not ended; their summaries are due at intervals."""
    ended: list[Attempt]
    """Attempts whose logs have to be read after a report of an end, before this batch is acknowledged."""


def batch_apply(*, batch: Batch) -> int:
    """Store a batch if it is the next one; return the spool position up to which everything is stored.

    Duplicate or reordered batches leave series and log unchanged. Raises ValueError for invalid positions.
    """
    return batches_apply_and_summarise(batches=[batch])[0]


def batches_apply_and_summarise(*, batches: Sequence[Batch]) -> list[int]:
    """Store batches as `batches_apply` does, and do at once what follows; return the spool positions."""
    applied = batches_apply(batches=batches)
    for attempt in applied.grown:
        summarise_at_intervals(attempt)
    for attempt in applied.ended:
        log_end(attempt)
    return applied.positions


def batches_apply(*, batches: Sequence[Batch]) -> Applied:
    """Store batches of any attempts, each if it is the next one, in one transaction with few queries.

    Raises ValueError for invalid positions.
    """
    for batch in batches:
        check_positions(batch)
    # Before the transaction: one that waits for Redis keeps all other writers of SQLite waiting.
    now = shared_now()
    with transaction.atomic(savepoint=False):
        return _applied(batches, now)


def _applied(batches: Sequence[Batch], now: datetime) -> Applied:
    attempts = _locked_attempts(batches)
    members = _locked_members(attempts, {batch.node_rank for batch in batches})
    pieces = _advance(batches, attempts, members)
    advanced = [member for member in members.values() if member.pk in pieces]
    _store(advanced, pieces, now)
    ended: list[Attempt] = []
    grown = [attempt for attempt in attempts.values() if _follow_reports(attempt, advanced, pieces, ended)]
    if due := _with_due_orders(advanced, pieces):
        transaction.on_commit(partial(orders.follow, due), robust=True)
    if ended:
        attempts_end(ended)
    senders = [_sender(batch, attempts, members) for batch in batches]
    positions = [UNKNOWN if member is None else member.committed for member in senders]
    # Also of batches that came before: the worker that stored them may have died before it read the log.
    ends = {
        member.attempt_id
        for member, batch in zip(senders, batches, strict=True)
        if member is not None and any(report.is_final for report in batch.reports)
    }
    return Applied(positions, grown, [each for each in attempts.values() if each.pk in ends and is_printed(each)])


def _advance(
    batches: Sequence[Batch], attempts: Mapping[tuple[int, int], Attempt], members: Mapping[tuple[int, int], Member]
) -> dict[int, list[Batch]]:
    """Advance the members whose next batches came; return these batches by the ids of members."""
    pieces: dict[int, list[Batch]] = {}
    for batch in sorted(batches, key=lambda batch: batch.sequence):
        member = _sender(batch, attempts, members)
        if member is not None and batch.sequence == member.committed:
            member.committed = batch.next_sequence
            pieces.setdefault(member.pk, []).append(batch)
    return pieces


def check_positions(batch: Batch) -> None:
    """Raise ValueError for positions that no spool has."""
    if not batch.sequence <= batch.next_sequence <= _LAST_POSITION:
        raise ValueError(f"next_sequence {batch.next_sequence} is before sequence {batch.sequence}, or beyond 2^63")


def _locked_attempts(batches: Sequence[Batch]) -> dict[tuple[int, int], Attempt]:
    """Lock the attempts of batches, in the order of their rows, so that two workers never wait for each other."""
    keys = {(batch.run, batch.attempt) for batch in batches if batch.attempt <= _LAST_NUMBER}
    keys = {(run, number) for run, number in keys if 0 < run <= _LAST_POSITION and number > 0}
    rows = locked_attempts().filter(run_id__in={run for run, _ in keys}, number__in={number for _, number in keys})
    return {(row.run_id, row.number): row for row in rows.order_by("pk") if (row.run_id, row.number) in keys}


def _locked_members(
    attempts: Mapping[tuple[int, int], Attempt], node_ranks: Collection[int]
) -> dict[tuple[int, int], Member]:
    """Lock the members of locked attempts on these node ranks: {(attempt, node rank): member}."""
    by_id = {attempt.pk: attempt for attempt in attempts.values()}
    rows = Member.objects.filter(attempt__in=by_id).select_related("node").order_by("attempt_id", "node_rank")
    if len(node_ranks) <= _NAMED_RANKS:
        rows = rows.filter(node_rank__in=[rank for rank in node_ranks if rank <= _LAST_NUMBER])
    members = list(rows.select_for_update(of=("self",), no_key=True))
    bare = by_id.keys() - {member.attempt_id for member in members}
    # An attempt without members gets its first one.
    members += [member for pk in sorted(bare) for member in lock_members(by_id[pk])]
    for member in members:
        member.attempt = by_id[member.attempt_id]
    return {(member.attempt_id, member.node_rank): member for member in members}


def _sender(
    batch: Batch, attempts: Mapping[tuple[int, int], Attempt], members: Mapping[tuple[int, int], Member]
) -> Member | None:
    """Return the member that sent a batch; None if its attempt is unknown or assigned to another node."""
    attempt = attempts.get((batch.run, batch.attempt))
    member = members.get((attempt.pk, batch.node_rank)) if attempt is not None else None
    return member if member is not None and member.node is not None and member.node.name == batch.node else None


def _store(advanced: Sequence[Member], pieces: Mapping[int, Sequence[Batch]], now: datetime) -> None:
    """Store output, positions and leases of members with new batches."""
    attempts = {member.attempt_id: member.attempt for member in advanced}
    steps = {pk: attempt.last_step for pk, attempt in attempts.items()}
    for outputs in zip_longest(*(_joined(member, pieces[member.pk]) for member in advanced)):
        outputs_append([output for output in outputs if output is not None])
    stepped = [attempt for pk, attempt in attempts.items() if attempt.last_step != steps[pk]]
    _update_attempts(stepped)
    for member in advanced:
        for batch in pieces[member.pk]:
            pieces_store(attempt=member.attempt, pieces=batch.files, world_size=world_size(member.attempt.run.resolved))
    for member in advanced:
        if member.is_active and member.node is not None:
            member.lease_expires_at = now + member.node.lease
    _update_members(advanced)


def _joined(member: Member, batches: Sequence[Batch]) -> list[Output]:
    """Join the output of consecutive batches of a member: one output, or one for each change between the two kinds.

    Output with marks of streams consists of whole lines; without, it continues the last line.
    """
    outputs: list[Output] = []
    for has_marks, group in groupby((batch for batch in batches if batch.output), key=_has_marks):
        data, stamps, marks = bytearray(), list[tuple[int, float]](), list[Mark]()
        for batch in group:
            stamps += [(len(data) + offset, at) for offset, at in batch.stamps if 0 <= offset < len(batch.output)]
            if has_marks:
                marks = extended(marks, len(data), marks_of(batch.streams, len(batch.output)))
            data += batch.output
        outputs.append(Output(member.attempt, bytes(data), member.node_rank, member.clock_offset_s, stamps, marks))
    return outputs


def _has_marks(batch: Batch) -> bool:
    return bool(marks_of(batch.streams, len(batch.output)))


def _follow_reports(
    attempt: Attempt, advanced: Sequence[Member], pieces: Mapping[int, Sequence[Batch]], ended: list[Attempt]
) -> bool:
    """Apply the reports in new batches of an attempt; return whether it has new output and goes on.

    An attempt that has ended is added to `ended`, unless its log has to be read first.
    """
    of_members = [(member, pieces[member.pk]) for member in advanced if member.attempt_id == attempt.pk]
    reports = [(member, report) for member, batches in of_members for batch in batches for report in batch.reports]
    for member, report in reports:
        attempt_report(attempt=attempt, report=report, node_rank=member.node_rank)
    if any(report.is_final for _, report in reports):
        if not is_printed(attempt):
            ended.append(attempt)
        return False
    return any(batch.output for _, batches in of_members for batch in batches)


def _with_due_orders(advanced: Sequence[Member], pieces: Mapping[int, Sequence[Batch]]) -> set[int]:
    """Return the attempts of which a member has reported something that the others may have to follow."""
    return {
        member.attempt_id
        for member in advanced
        if any(report.state != "running" for batch in pieces[member.pk] for report in batch.reports)
    }


def attempts_end(attempts: Sequence[Attempt]) -> None:
    """Compute summaries and findings of attempts that have ended: locked, or outside a transaction if `is_printed`."""
    for attempt in attempts:
        attempt_summarise(attempt=attempt)
    # Findings must not reject a report: they are computed after the commit, and errors are logged.
    transaction.on_commit(partial(ended_findings_refresh, runs=[each.run for each in attempts]), robust=True)


def log_end(attempt: Attempt) -> None:
    """Read the log of an attempt that has reported an end, once, however often its node sends the report again."""
    state = Attempt.objects.values_list("state", flat=True).get(pk=attempt.pk)
    key, log_read = f"parlab.ingest.end.{attempt.pk}", (state, log.log_size(attempt.pk))
    if cache.get(key) != log_read:
        attempts_end([attempt])
        cache.set(key, log_read, _ENDS_S)


def summarise_at_intervals(attempt: Attempt) -> None:
    """Compute the summary of an active attempt, every few seconds, or more rarely where many runs are active."""
    is_counted = not _is_text(attempt)
    now = time.monotonic()
    due_at = cache.get(_SUMMARIES_KEY, 0.0) if is_counted else 0.0
    if now < due_at or not summary_claim(attempt):
        return
    took_s = _summarise_active(attempt)
    if is_counted:
        # Unused time is not saved up, except for a burst.
        cache.set(_SUMMARIES_KEY, max(due_at, now - _BURST_S) + took_s / _SUMMARIES_SHARE)


def attempt_summarise_due(*, attempt_id: int) -> None:
    """Compute the summary of an attempt, for which `summary_claim` has returned True, unless it has ended."""
    with transaction.atomic():
        attempt = locked_attempts().filter(pk=attempt_id).first()
        if attempt is None or RunState(attempt.state).is_final:
            return
        if not is_printed(attempt):
            _summarise_active(attempt)
            return
    _summarise_active(attempt)


def summary_claim(attempt: Attempt) -> bool:
    """Return whether the summary of an active attempt is due; the next one is due some seconds later."""
    return bool(cache.add(_summary_key(attempt), True, _summary_every_s(attempt)))


def _summarise_active(attempt: Attempt) -> float:
    """Compute the summary of an active attempt; return the time of the processor in seconds."""
    # Time of the processor: on a busy machine the time of the clock would make lines late that cost next to nothing.
    began = time.thread_time()
    attempt_summarise(attempt=attempt)
    took_s = time.thread_time() - began
    if took_s > _summary_every_s(attempt) * _SUMMARY_SHARE:
        cache.set(_summary_key(attempt), True, took_s / _SUMMARY_SHARE)
    return took_s


def _summary_key(attempt: Attempt) -> str:
    return f"parlab.ingest.summaries.summary.{attempt.pk}"


def _summary_every_s(attempt: Attempt) -> float:
    """Return the interval between summaries; where readers make the series of a reported run, they only grow here."""
    return TEXT_EVERY_S if _is_text(attempt) else SUMMARY_EVERY_S


def _is_text(attempt: Attempt) -> bool:
    """Return whether readers make the series of a reported run from its output."""
    return attempt.run.origin == Run.Origin.REPORTED and is_printed(attempt)


def attempt_reingest(*, attempt: Attempt) -> int:
    """Rebuild the series and summary of an attempt from its log; return the number of points.

    Must not run in a transaction. Raises Attempt.DoesNotExist if the attempt is deleted meanwhile.
    """
    series_rebuild(attempt)
    attempt_summarise(attempt=Attempt.objects.select_related("run").get(pk=attempt.pk))
    return sum(info.points for info in store.metrics(attempt.pk))
