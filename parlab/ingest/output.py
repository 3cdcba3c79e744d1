"""Output of attempts -> their logs and series, for many attempts with few queries."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parlab.ingest.events import Limits, Parsed, parse, reported_limits
from parlab.lab.models import Attempt, Run
from parlab.series import log, operations, store
from parlab.series.columns import Columns
from parlab.series.streams import joined, marks_of

logger = logging.getLogger(__name__)

READ_BY = "read_by"


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
    changed, results = dict[int, Attempt](), list[Parsed]()
    for output, unfinished in zip(outputs, before, strict=True):
        attempt, metrics = output.attempt, names[output.attempt.pk]
        parsed = _parse(output, unfinished, metrics)
        metrics |= {metric for metric, _ in parsed.series}
        results.append(parsed)
        if not is_read(attempt):
            attempt.last_step = parsed.last_step
            operations.append(attempt.pk, parsed.operations)
            _log_refused(attempt, parsed)
        elif parsed.steps:
            changed[attempt.pk] = attempt
        of_attempt = series.setdefault(attempt.pk, {})
        for key, columns in parsed.series.items():
            of_attempt[key] = Columns.joined([of_attempt[key], columns]) if key in of_attempt else columns
    for attempt in changed.values():
        # The command prints steps as events after all: points that readers took from its lines would be duplicates.
        del series[attempt.pk]
        series_rebuild(attempt)
    store.append_all(series)
    return results


def _log_output(output: Output) -> log.Output:
    stamps = [(offset, at - output.clock_offset_s) for offset, at in output.stamps]
    return log.Output(output.attempt.pk, output.data, output.node_rank, stamps, output.streams)


def _parse(output: Output, unfinished: bytes, metrics: set[str]) -> Parsed:
    marks = marks_of(output.streams, len(output.data))
    return parse(
        joined(output.data, marks) if marks else unfinished + output.data,
        limits=_limits(output.attempt.run),
        existing_metrics=metrics,
        last_step=None if is_read(output.attempt) else output.attempt.last_step,
        clock_offset_s=output.clock_offset_s,
    )


def series_rebuild(attempt: Attempt) -> None:
    """Rebuild the series of a locked attempt from the events of the whole log, without the points of readers."""
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
            store.append(attempt.pk, parsed.series)
            operations.append(attempt.pk, parsed.operations)
            attempt.last_step = parsed.last_step
            _log_refused(attempt, parsed)
            metrics |= {metric for metric, _ in parsed.series}
            unfinished = log.unfinished_line(unfinished)


def _log_refused(attempt: Attempt, parsed: Parsed) -> None:
    for reason, count in parsed.refused.items():
        logger.info("run %s attempt %s: %d values in the log only: %s", attempt.run_id, attempt.number, count, reason)


def is_read(attempt: Attempt) -> bool:
    """Return whether the series of an attempt come from readers instead of events."""
    return READ_BY in attempt.summary


def _limits(run: Run) -> Limits:
    if run.origin == Run.Origin.REPORTED:
        return reported_limits()
    return Limits(world_size(run.resolved), nodes=int(run.resolved["cluster"]["nodes"]))


def world_size(resolved: Mapping[str, Any]) -> int:
    """Return the number of ranks of a configuration."""
    cluster = resolved["cluster"]
    return int(cluster["nodes"]) * int(cluster["gpus_per_node"])
