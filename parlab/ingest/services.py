"""Apply batches to lab and series, each exactly once, and rebuild attempts from their raw logs."""

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Any

from django.core.cache import cache
from django.db import DatabaseError, transaction
from django.utils import timezone

from parlab.ingest import orders, printed, utilisation
from parlab.ingest.events import Limits, Parsed, parse, reported_limits
from parlab.ingest.imported_summary import with_utilisation
from parlab.ingest.launches import Sections
from parlab.ingest.reported import summarise_reported
from parlab.ingest.summary import summarise
from parlab.lab.models import Attempt, Member, Run
from parlab.lab.services import attempt_report, launch_store, lock_members, run_findings_refresh, summary_store
from parlab.series import log, operations, store
from parlab.series.streams import joined, marks_of
from runners.config import engine_of, filled_fields
from runners.protocol import Batch, RunState

logger = logging.getLogger(__name__)

UNKNOWN = -1
"""Answer to a batch of an attempt that does not exist here or is assigned to another node."""
SUMMARY_EVERY_S = 5.0
TEXT_EVERY_S = 0.5
# A summary reads the whole series: while a run is active, at most this share of the time is spent on it.
_SUMMARY_SHARE = 0.05
_LAST_POSITION = 2**63 - 1
READ_BY = "read_by"
_SPOOL_BYTES = 32 << 20
"""Size up to which the points of a command's output are held in memory instead of a file."""


@transaction.atomic
def batch_apply(*, batch: Batch) -> int:
    """Store a batch if it is the next one; return the spool position up to which everything is stored.

    Duplicate or reordered batches leave series and log unchanged. Raises ValueError for invalid positions.
    """
    if not batch.sequence <= batch.next_sequence <= _LAST_POSITION:
        raise ValueError(f"next_sequence {batch.next_sequence} is before sequence {batch.sequence}, or beyond 2^63")
    attempt = (
        Attempt.objects.select_for_update(of=("self",), no_key=True)
        .select_related("run")
        .filter(run_id=batch.run, number=batch.attempt)
        .first()
    )
    member = _member(attempt, batch) if attempt is not None else None
    if attempt is None or member is None:
        return UNKNOWN
    if batch.sequence != member.committed:
        return member.committed
    member.committed = batch.next_sequence
    if batch.output:
        output_append(attempt, batch.output, member=member, stamps=batch.stamps, streams=batch.streams)
        attempt.save(update_fields=["last_step"])
    if member.is_active and member.node is not None:
        member.lease_expires_at = timezone.now() + member.node.lease
    member.save(update_fields=["committed", "lease_expires_at"])
    for report in batch.reports:
        attempt_report(attempt=attempt, report=report, node_rank=batch.node_rank)
    if any(report.state != "running" for report in batch.reports):
        transaction.on_commit(partial(orders.follow, attempt.pk), robust=True)
    if any(report.is_final for report in batch.reports):
        attempt_summarise(attempt=attempt)
        # Findings must not reject the batch: they are computed after the commit, and errors are logged.
        transaction.on_commit(partial(run_findings_refresh, run=attempt.run), robust=True)
    elif batch.output:
        summarise_at_intervals(attempt)
    return batch.next_sequence


def _member(attempt: Attempt, batch: Batch) -> Member | None:
    """Return the member of a locked attempt that sent a batch; None if it is assigned to another node."""
    rows = Member.objects.filter(attempt=attempt, node_rank=batch.node_rank).select_related("node")
    member = rows.select_for_update(of=("self",), no_key=True).first()
    if member is None:  # perhaps an attempt without members, which gets its first one
        member = next((each for each in lock_members(attempt) if each.node_rank == batch.node_rank), None)
    if member is None or member.node is None or member.node.name != batch.node:
        return None
    return member


def output_append(
    attempt: Attempt,
    output: bytes,
    *,
    member: Member | None = None,
    stamps: Sequence[tuple[int, float]] = (),
    streams: Sequence[tuple[int, int, bool]] = (),
) -> Parsed:
    """Append output to the log of a locked attempt and its events to the series; the caller saves `last_step`.

    Returns the events.
    """
    node_rank, offset_s = (member.node_rank, member.clock_offset_s) if member else (0, 0.0)
    corrected = [(offset, at - offset_s) for offset, at in stamps]
    unfinished = log.append_log(attempt.pk, output, node_rank=node_rank, stamps=corrected, streams=streams)
    metrics = store.metric_names(attempt.pk)
    is_read = _is_read(attempt)
    marks = marks_of(streams, len(output))
    parsed = parse(
        joined(output, marks) if marks else unfinished + output,
        limits=_limits(attempt.run),
        existing_metrics=metrics,
        last_step=None if is_read else attempt.last_step,
        clock_offset_s=offset_s,
    )
    if is_read and parsed.steps:
        # The command prints steps as events after all: points that readers took from its lines would be duplicates.
        _series_rebuild(attempt)
    elif is_read:
        store.append(attempt.pk, parsed.series)
    else:
        _parsed_store(attempt, parsed)
    return parsed


def _parsed_store(attempt: Attempt, parsed: Parsed) -> None:
    store.append(attempt.pk, parsed.series)
    operations.append(attempt.pk, parsed.operations)
    attempt.last_step = parsed.last_step
    for reason, count in parsed.refused.items():
        logger.info("run %s attempt %s: %d values in the log only: %s", attempt.run_id, attempt.number, count, reason)


def _limits(run: Run) -> Limits:
    if run.origin == Run.Origin.REPORTED:
        return reported_limits()
    return Limits(_world_size(run.resolved), nodes=int(run.resolved["cluster"]["nodes"]))


def _world_size(resolved: Mapping[str, Any]) -> int:
    cluster = resolved["cluster"]
    return int(cluster["nodes"]) * int(cluster["gpus_per_node"])


def attempt_summarise(*, attempt: Attempt) -> None:
    """Compute the summary of an attempt from its series and store it."""
    resolved = attempt.run.resolved
    if attempt.run.origin == Run.Origin.REPORTED:
        # A script reports steps, or `parlab run` and `parlab follow` report lines that readers recognise.
        if not (attempt.last_step is None or _is_read(attempt)) or not _printed_summarise(attempt):
            summary_store(attempt=attempt, summary=summarise_reported(attempt.pk, resolved))
        return
    engine = engine_of(resolved)
    if engine.is_external:
        _command_summarise(attempt)
        return
    summary = summarise(attempt.pk, resolved)
    if engine.trains:
        summary |= utilisation.parts_of(summary, resolved, _world_size(resolved), _reference(attempt, resolved))
    summary_store(attempt=attempt, summary=summary)


def _command_summarise(attempt: Attempt) -> None:
    """Summarise a run of engine `command` from its step events, otherwise from the lines that readers recognise."""
    if (attempt.last_step is None or _is_read(attempt)) and _printed_summarise(attempt):
        return
    # If its lines could be read before, but not now, the previous summary stays.
    sections = filled_fields(attempt.run.resolved)
    summary_store(attempt=attempt, summary=attempt.summary if _is_read(attempt) else summarise(attempt.pk, sections))


def _is_read(attempt: Attempt) -> bool:
    """Return whether the series of an attempt come from readers instead of events."""
    return READ_BY in attempt.summary


def _reference(attempt: Attempt, resolved: Mapping[str, Any]) -> utilisation.Reference | None:
    """Return the peak of an attempt's devices, which its first report has stored by now."""
    environment = Attempt.objects.values_list("environment", flat=True).get(pk=attempt.pk)
    return utilisation.reference_of(resolved, environment, attempt.node.hardware if attempt.node else {})


def _printed_summarise(attempt: Attempt) -> bool:
    """Store what the readers recognise in a command's output so far; return whether there is anything."""
    state = Attempt.objects.values_list("state", flat=True).get(pk=attempt.pk)
    with SpooledTemporaryFile(max_size=_SPOOL_BYTES) as spool:
        try:
            reading = printed.read(lambda: log.read_log(attempt.pk), spool, is_whole=RunState(state).is_final)
        except DatabaseError:
            raise
        except Exception:
            # A batch that cannot be stored would be sent forever; its output stays in the log.
            logger.exception("run %s attempt %s: a reader failed on its output", attempt.run_id, attempt.number)
            return False
        if reading is None:
            return False
        keys = [(info.metric, info.rank) for info in store.metrics(attempt.pk)]
        store.delete(attempt.pk, [key for key in keys if not printed.is_sampled(key)])
        for series in reading.series():
            store.append(attempt.pk, series)
        sections = printed.sections_of(reading.launch, attempt.run.resolved)
        summary = summarise(attempt.pk, sections) | reading.summary(sections)
    summary = with_utilisation(summary, sections, reading.launch, _printed_reference(attempt, sections))
    Attempt.objects.filter(pk=attempt.pk).update(last_step=reading.last_step)
    launch_store(attempt=attempt, launch=reading.launch.model_dump())
    if attempt.run.origin == Run.Origin.REPORTED:
        resolved = attempt.run.resolved
        merged = {name: {**resolved.get(name, {}), **fields} for name, fields in sections.items()}
        Run.everything.filter(pk=attempt.run_id).update(resolved=merged)
    summary_store(attempt=attempt, summary=summary)
    return True


def _printed_reference(attempt: Attempt, sections: Sections) -> utilisation.Reference | None:
    """Return the peak of the node's devices in the precision that the log states."""
    return _reference(attempt, {**attempt.run.resolved, "train": sections["train"]})


def summarise_at_intervals(attempt: Attempt) -> None:
    """Compute the summary of an active attempt, at most every few seconds.

    Where readers make the series from text of a reported run, they only grow here, so it happens more often.
    """
    key = f"parlab.ingest.summary.{attempt.pk}"
    is_text = attempt.run.origin == Run.Origin.REPORTED and (attempt.last_step is None or _is_read(attempt))
    every_s = TEXT_EVERY_S if is_text else SUMMARY_EVERY_S
    if not cache.add(key, True, every_s):
        return
    # Time of the processor: on a busy machine the time of the clock would make lines late that cost next to nothing.
    began = time.thread_time()
    attempt_summarise(attempt=attempt)
    took_s = time.thread_time() - began
    if took_s > every_s * _SUMMARY_SHARE:
        cache.set(key, True, took_s / _SUMMARY_SHARE)


@transaction.atomic
def attempt_reingest(*, attempt: Attempt) -> int:
    """Rebuild the series and summary of an attempt from its log; return the number of points."""
    locked = Attempt.objects.select_for_update(of=("self",), no_key=True).select_related("run").get(pk=attempt.pk)
    _series_rebuild(locked)
    locked.save(update_fields=["last_step"])
    attempt_summarise(attempt=locked)
    return sum(info.points for info in store.metrics(locked.pk))


def _series_rebuild(attempt: Attempt) -> None:
    """Rebuild the series from the events of the whole log, without the points of readers."""
    store.delete(attempt.pk)
    operations.delete(attempt.pk)
    attempt.last_step, attempt.summary = None, {}
    Attempt.objects.filter(pk=attempt.pk).update(summary={})
    limits, metrics = _limits(attempt.run), set[str]()
    offsets = dict(attempt.members.values_list("node_rank", "clock_offset_s"))
    for node_rank in log.node_ranks(attempt.pk):
        unfinished = b""
        for output in log.read_log(attempt.pk, node_rank=node_rank):
            unfinished += output
            parsed = parse(
                unfinished,
                limits=limits,
                existing_metrics=metrics,
                last_step=attempt.last_step,
                clock_offset_s=offsets.get(node_rank, 0.0),
            )
            _parsed_store(attempt, parsed)
            metrics |= {metric for metric, _ in parsed.series}
            unfinished = log.unfinished_line(unfinished)
