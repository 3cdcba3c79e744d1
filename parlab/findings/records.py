"""What a log or a run says about itself: placeholders read as values, iterations that come twice, runs cut short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from parlab.findings.doubts import Doubt, RunFacts, shown
from parlab.findings.facts import count, number, part
from parlab.findings.tables import line_of
from parlab.formats.schema import Document, Segment

CLOCK_S = 60.0
"""Clocks of nodes differ and buffers swap lines: less than a minute back is no step back in time."""

# Names of times and throughputs: 0 is what a tool prints where it did not measure.
_NEVER_ZERO = ("step_time_s", "samples_per_s", "tokens_per_s", "tflops_per_gpu", "ms_per_sample")
_TIMES = ("%Y-%m-%d %H:%M:%S", "%m/%d/%Y %H:%M:%S")


def placeholder(name: str, value: float) -> Doubt | None:
    """Doubt a value that tools print instead of one: a loss of -1, a time or throughput of 0."""
    if "loss" in name and value == -1.0:
        return Doubt(
            f"{name} of -1 is no loss: tools print it for an iteration that was skipped; leave it out.", {name: value}
        )
    if name.startswith(_NEVER_ZERO) and value == 0.0:
        return Doubt(
            f"{name} of 0 is no measurement: tools print it where nothing was measured or a run failed; leave it out.",
            {name: value},
        )
    return None


def placeholders_in_document(document: Document) -> Iterator[Doubt]:
    """Placeholders that have become figures of a launch, or numbers in a tuner's table."""
    for index, segment in enumerate(document.segments):
        for name, value in _figures(segment):
            if doubt := placeholder(name, value):
                yield doubt.at(segment.lines.first if segment.lines else None, segment=index, figure=name)
    for number_of_table, table in enumerate(document.tables):
        for column, name in enumerate(table.columns):
            if name != "best_metric_val":
                continue
            for row, cells in enumerate(table.rows):
                cell = cells[column] if column < len(cells) else None
                if cell is not None and cell.kind == "number" and cell.value == 0:
                    words = (
                        f"The best metric of {cells[0].text[:80]} is 0: all its experiments failed, so it is no result."
                    )
                    yield Doubt(words, {name: 0.0}).at(
                        line_of(table, row), table=number_of_table, row=row, column=column
                    )


def _figures(segment: Segment) -> Iterator[tuple[str, float]]:
    if segment.loss:
        yield from ((f"{segment.loss.name} ({part})", getattr(segment.loss, part)) for part in ("first", "last", "min"))
    for name in ("samples_per_s", "tokens_per_s", "tflops_per_gpu"):
        value = getattr(segment, name)
        if value is not None:
            yield name, value
    if segment.step_time_s:
        yield "step_time_s", segment.step_time_s.median


def again(document: Document) -> Iterator[Doubt]:
    """Launches that go over iterations again, or back in time, in one stretch of a file."""
    for index in range(1, len(document.segments)):
        before, after = document.segments[index - 1], document.segments[index]
        if before.section != after.section:
            continue
        doubt = _same_iterations(before, after) or _back_in_time(before, after)
        if doubt:
            lines = [record.line for record in (before.last, after.first) if record is not None]
            yield doubt.at(*lines, segment=index)


def _same_iterations(before: Segment, after: Segment) -> Doubt | None:
    """A launch that starts at its first iteration again is another training; one that goes on is the same."""
    if not (before.steps and after.steps) or before.steps.last is None or after.steps.first is None:
        return None
    told, end = after.steps.first, before.steps.last
    if not (before.steps.first or 0) < told <= end or _model(before) != _model(after):
        return None
    return Doubt(
        f"Iterations {shown(told)} to {shown(end)} come twice: one launch ends at iteration {shown(end)} and the next"
        f" goes on from {shown(told)}, as after a restart from a checkpoint; do not add their times and samples up.",
        {"last_iteration": float(end), "next_iteration": float(told)},
    )


def _model(segment: Segment) -> tuple[int | None, ...]:
    launch = segment.launch
    return (launch.num_layers, launch.hidden_size, launch.sequence_length, launch.global_batch_size)


def _back_in_time(before: Segment, after: Segment) -> Doubt | None:
    if before.last is None or after.first is None:
        return None
    ended, began = _time(before.last.time), _time(after.first.time)
    if ended is None or began is None or (ended - began).total_seconds() <= CLOCK_S:
        return None
    return Doubt(
        f"Time runs backwards: a launch ends at {ended} and the one after it in the file begins at {began}; the file"
        " was put together from several or clocks differ.",
        {"seconds_back": (ended - began).total_seconds()},
    )


def _time(text: str | None) -> datetime | None:
    for pattern in _TIMES:
        try:
            return datetime.strptime((text or "")[:19], pattern)
        except ValueError:
            continue
    return None


def placeholders_of_run(run: RunFacts) -> Iterator[Doubt]:
    for name, value in _summary_figures(run.summary):
        if doubt := placeholder(name, value):
            yield doubt.at(run=run.number, figure=name)


def _summary_figures(summary: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name in ("samples_per_s", "tokens_per_s", "ms_per_sample", "tflops_per_gpu"):
        if (value := number(summary.get(name))) is not None:
            yield name, value
    if (value := number(part(summary, "step_time_s").get("median"))) is not None:
        yield "step_time_s", value
    for end in ("first", "last"):
        if (value := number(part(summary, "loss").get(end))) is not None:
            yield f"loss ({end})", value


def cut_short(run: RunFacts) -> Iterator[Doubt]:
    """A run called finished must have measured its last iteration."""
    planned, last = count(part(run.config, "train").get("iterations")), count(part(run.summary, "steps").get("last"))
    left_out = part(run.summary, "steps").get("left_out")
    dropped = max((step for step in left_out if isinstance(step, int)), default=0) if isinstance(left_out, list) else 0
    if run.state != "finished" or not planned or not last or max(last, dropped) == planned:
        return
    yield Doubt(
        f"The run is called finished after iteration {shown(last)}, but {shown(planned)} iterations were configured.",
        {"last_iteration": float(last), "iterations": float(planned)},
    ).at(run=run.number, figure="steps")
