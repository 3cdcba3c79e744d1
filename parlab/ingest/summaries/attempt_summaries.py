"""Summaries of attempts: from their series, or from whole logs, which are read before anything is locked."""

import logging
from collections.abc import Mapping, Sequence
from typing import IO, Any

from django.db import DatabaseError, transaction

from parlab.ingest.batches.output import has_events, is_read, world_size
from parlab.ingest.batches.rebuild import locked_attempts, series_rebuild
from parlab.ingest.readings.imported_summary import with_utilisation
from parlab.ingest.readings.launches import Sections
from parlab.ingest.spool import spooled
from parlab.ingest.summaries import printed, utilisation
from parlab.ingest.summaries.reloads import reload_of
from parlab.ingest.summaries.reported import summarise_reported
from parlab.ingest.summaries.summary import summarise
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.chains import earlier_attempts
from parlab.lab.services.attempts import launch_store, summary_store
from parlab.series import log, store
from runners.config import engine_of, filled_fields
from runners.wire.protocol import RunState

logger = logging.getLogger(__name__)


def is_printed(attempt: Attempt) -> bool:
    """Return whether the summary of an attempt comes from the lines in its log, because it reports no steps."""
    if attempt.last_step is not None and not is_read(attempt):
        return False
    # `parlab run` and `parlab follow` report lines, as commands print them.
    return attempt.run.origin == Run.Origin.REPORTED or engine_of(attempt.run.resolved).is_external


def attempt_summarise(*, attempt: Attempt) -> None:
    """Compute the summary of an attempt and store it; outside a transaction if it `is_printed`.

    A summary of a printed log is dropped if a newer one was stored meanwhile, unless the attempt has ended.
    """
    if not is_printed(attempt):
        _series_summarise(attempt)
        return
    while is_printed(attempt):
        attempt = Attempt.objects.select_related("run").get(pk=attempt.pk)
        if has_events(attempt):
            series_rebuild(attempt)
        elif _log_summarise(attempt) or not RunState(attempt.state).is_final:
            return
        attempt.refresh_from_db()
    with transaction.atomic():
        _series_summarise(locked_attempts().get(pk=attempt.pk))


def _log_summarise(before: Attempt) -> bool:
    """Read the log of an attempt, then lock it and store what was recognised; return False if that is outdated."""
    size = log.log_size(before.pk)
    with spooled() as spool:
        reading = _reading(before, spool)
        with transaction.atomic():
            attempt = locked_attempts().get(pk=before.pk)
            # The summary of a log that has grown since is stored too, unless another one was stored meanwhile.
            is_newest = attempt.numbers_at == before.numbers_at or log.log_size(attempt.pk) == size
            is_outdated = has_events(attempt) or not is_printed(attempt)
            if attempt.state != before.state or is_outdated or not is_newest:
                return False
            if reading is None:
                _series_summarise(attempt)
            else:
                _reading_store(attempt, reading)
    return True


def _reading(attempt: Attempt, spool: IO[bytes]) -> printed.Printed | None:
    """Return what the readers recognise in the log of an attempt; None if that is nothing, or a reader fails."""
    is_whole = RunState(attempt.state).is_final
    try:
        return printed.read(lambda: log.read_log(attempt.pk), spool, is_whole=is_whole)
    except DatabaseError:
        raise
    except Exception:
        # The output stays in the log, for a better reader.
        logger.exception("run %s attempt %s: a reader failed on its output", attempt.run_id, attempt.number)
        return None


def _reading_store(attempt: Attempt, reading: printed.Printed) -> None:
    """Replace series, launch and summary of a locked attempt by what its log says."""
    keys = [(info.metric, info.rank) for info in store.metrics(attempt.pk)]
    store.delete(attempt.pk, [key for key in keys if not printed.is_sampled(key)])
    reading.series.store(attempt.pk)
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


def _series_summarise(attempt: Attempt) -> None:
    """Compute the summary of an attempt from its series and store it."""
    resolved = attempt.run.resolved
    if attempt.run.origin == Run.Origin.REPORTED:
        summary_store(attempt=attempt, summary=_reported_summary(attempt, resolved))
        return
    engine = engine_of(resolved)
    if engine.is_external:
        _command_summarise(attempt)
        return
    earlier = [each.pk for each in earlier_attempts(attempt)]
    of_run = _engine_summary(attempt, resolved, earlier) if earlier else None
    summary_store(attempt=attempt, summary=_engine_summary(attempt, resolved), of_run=of_run)


def _engine_summary(attempt: Attempt, resolved: Mapping[str, Any], earlier: Sequence[int] = ()) -> dict[str, Any]:
    summary = summarise(attempt.pk, resolved, earlier) | reload_of(attempt)
    if engine_of(resolved).trains:
        summary |= utilisation.parts_of(summary, resolved, world_size(resolved), _reference(attempt, resolved))
    return summary


def _reported_summary(attempt: Attempt, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Summarise what a script has reported; FLOP/s and MFU follow where model, ranks and devices are known."""
    ranks = Run.everything.values_list("launch__world_size", flat=True).get(pk=attempt.run_id)
    devices = ranks if isinstance(ranks, int) and ranks > 0 else None
    summary = summarise_reported(attempt.pk, resolved, world_size=devices) | reload_of(attempt)
    parts = utilisation.parts_of(summary, resolved, devices or summary.get("ranks"), _reference(attempt, resolved))
    return parts | summary  # what the script states itself counts


def _command_summarise(attempt: Attempt) -> None:
    """Summarise a run of engine `command` from its step events."""
    # If its lines could be read before, but not now, the previous summary stays.
    resolved = attempt.run.resolved
    if is_read(attempt):
        summary_store(attempt=attempt, summary=attempt.summary)
        return
    earlier = [each.pk for each in earlier_attempts(attempt)]
    of_run = _command_summary(attempt, resolved, earlier) if earlier else None
    summary_store(attempt=attempt, summary=_command_summary(attempt, resolved), of_run=of_run)


def _command_summary(attempt: Attempt, resolved: Mapping[str, Any], earlier: Sequence[int] = ()) -> dict[str, Any]:
    sections = filled_fields(resolved)
    summary = summarise(attempt.pk, sections, earlier) | reload_of(attempt)
    if (resolved.get("command") or {}).get("describes_training"):
        summary |= utilisation.parts_of(summary, sections, world_size(resolved), _reference(attempt, resolved))
    return summary


def _reference(attempt: Attempt, resolved: Mapping[str, Any]) -> utilisation.Reference | None:
    """Return the peak of an attempt's devices, which its first report has stored by now."""
    environment = Attempt.objects.values_list("environment", flat=True).get(pk=attempt.pk)
    return utilisation.reference_of(resolved, environment, attempt.node.hardware if attempt.node else {})


def _printed_reference(attempt: Attempt, sections: Sections) -> utilisation.Reference | None:
    """Return the peak of the node's devices in the precision that the log states."""
    return _reference(attempt, {**attempt.run.resolved, "train": sections["train"]})
