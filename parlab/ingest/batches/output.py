"""Output of attempts -> their logs and series, for many attempts with few queries."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parlab.ingest.batches.events import Limits, Parsed, parse, reported_limits
from parlab.ingest.summaries.printed import is_sampled
from parlab.lab.models import Attempt, Run
from parlab.series import log, operations, store
from parlab.series.columns import Columns
from parlab.series.streams import joined, marks_of

logger = logging.getLogger(__name__)

READ_BY = "read_by"
"""Part of a summary: the reader that made the series of an attempt from the lines in its log."""
EVENTS = "events"
"""Value of READ_BY once a command prints steps as events after all, until `rebuild` has replaced a reader's series."""


class Output(NamedTuple):
    """Output of one node of a locked attempt; stamps and streams are those of a Batch."""

    attempt: Attempt
    data: bytes
    node_rank: int = 0
    clock_offset_s: float = 0.0
    stamps: Sequence[tuple[int, float]] = ()
    streams: Sequence[tuple[int, int, bool]] = ()


def output_append(attempt: Attempt, output: bytes) -> Parsed:
    """Append output to the log of a locked attempt and its events to the series; the caller saves `last_step`.

    Returns the events.
    """
    return outputs_append([Output(attempt, output)])[0]


def outputs_append(outputs: Sequence[Output]) -> list[Parsed]:
    """Append output, at most one for each node of an attempt, like `output_append`."""
    ids = {output.attempt.pk for output in outputs}
    before, names = log.append_logs([_log_output(output) for output in outputs]), store.metric_names(ids)
    series: dict[int, dict[store.Key, Columns]] = {}
    results = list[Parsed]()
    for output, unfinished in zip(outputs, before, strict=True):
        attempt, metrics = output.attempt, names[output.attempt.pk]
        parsed = _parse(output, unfinished, metrics)
        metrics |= {metric for metric, _ in parsed.series}
        results.append(parsed)
        if not is_read(attempt):
            attempt.last_step = parsed.last_step
            operations.append(attempt.pk, parsed.operations)
            log_refused(attempt, parsed)
        elif parsed.steps and not has_events(attempt):
            _expect_events(attempt)
        of_attempt = series.setdefault(attempt.pk, {})
        for key, columns in parsed.series.items():
            if is_read(attempt) and not is_sampled(key):
                continue
            of_attempt[key] = Columns.joined([of_attempt[key], columns]) if key in of_attempt else columns
    store.append_all(series)
    return results


def _log_output(output: Output) -> log.Output:
    stamps = [(offset, at - output.clock_offset_s) for offset, at in output.stamps]
    return log.Output(output.attempt.pk, output.data, output.node_rank, stamps, output.streams)


def _parse(output: Output, unfinished: bytes, metrics: set[str]) -> Parsed:
    marks = marks_of(output.streams, len(output.data))
    return parse(
        joined(output.data, marks) if marks else unfinished + output.data,
        limits=limits_of(output.attempt.run),
        existing_metrics=metrics,
        last_step=None if is_read(output.attempt) else output.attempt.last_step,
        clock_offset_s=output.clock_offset_s,
    )


def log_refused(attempt: Attempt, parsed: Parsed) -> None:
    """Log which values of a piece of output are in the log only."""
    for reason, count in parsed.refused.items():
        logger.warning(
            "run %s attempt %s: %d values in the log only: %s", attempt.run_id, attempt.number, count, reason
        )


def is_read(attempt: Attempt) -> bool:
    """Return whether the series of an attempt come from readers instead of events."""
    return READ_BY in attempt.summary


def has_events(attempt: Attempt) -> bool:
    """Return whether events in the log of an attempt are to replace the series of a reader."""
    return bool(attempt.summary.get(READ_BY) == EVENTS)


def _expect_events(attempt: Attempt) -> None:
    """Note that events replace the series of a locked attempt: the next summary does that, which locks it briefly."""
    attempt.summary = {**attempt.summary, READ_BY: EVENTS}
    Attempt.objects.filter(pk=attempt.pk).update(summary=attempt.summary)


def limits_of(run: Run) -> Limits:
    """Return what the events of a run may contain."""
    if run.origin == Run.Origin.REPORTED:
        return reported_limits()
    return Limits(world_size(run.resolved), nodes=int(run.resolved["cluster"]["nodes"]))


def world_size(resolved: Mapping[str, Any]) -> int:
    """Return the number of ranks of a configuration."""
    cluster = resolved["cluster"]
    return int(cluster["nodes"]) * int(cluster["gpus_per_node"])
