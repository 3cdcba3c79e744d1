"""Contradictions within a log or a run: placeholders, repeated iterations, runs that stopped early."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from parlab.findings.contradictions import Contradiction, RunFacts, shown
from parlab.findings.facts import count, number, part
from parlab.findings.tables import line_of
from parlab.formats.schema import Document, Segment

CLOCK_S = 60.0
"""Clocks of nodes differ and buffers reorder lines: less than a minute backwards is not reported."""

# Names of times and throughputs, for which tools print 0 if they did not measure.
_NEVER_ZERO = ("step_time_s", "samples_per_s", "tokens_per_s", "tflops_per_gpu", "ms_per_sample")
_TIMES = ("%Y-%m-%d %H:%M:%S", "%m/%d/%Y %H:%M:%S")


def placeholder(name: str, value: float) -> Contradiction | None:
    """Recognise a value that tools print in place of a measurement: a loss of -1, a time or throughput of 0."""
    if "loss" in name and value == -1.0:
        return Contradiction(
            f"{name} of -1 is not a loss: tools print it for a skipped iteration; exclude it.", {name: value}
        )
    if name.startswith(_NEVER_ZERO) and value == 0.0:
        return Contradiction(
            f"{name} of 0 is not a measurement: tools print it if nothing was measured or a run failed; exclude it.",
            {name: value},
        )
    return None


def placeholders_in_document(document: Document) -> Iterator[Contradiction]:
    """Find placeholders among the figures of launches and in the tables of autotuners."""
    for index, segment in enumerate(document.segments):
        for name, value in _figures(segment):
            if contradiction := placeholder(name, value):
                yield contradiction.at(segment.lines.first if segment.lines else None, segment=index, figure=name)
    for number_of_table, table in enumerate(document.tables):
        for column, name in enumerate(table.columns):
            if name != "best_metric_val":
                continue
            for row, cells in enumerate(table.rows):
                cell = cells[column] if column < len(cells) else None
                if cell is not None and cell.kind == "number" and cell.value == 0:
                    message = f"The best metric of {cells[0].text[:80]} is 0: all its experiments failed; exclude it."
                    yield Contradiction(message, {name: 0.0}).at(
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


def again(document: Document) -> Iterator[Contradiction]:
    """Find launches that repeat iterations or go back in time within one section of a file."""
    for index in range(1, len(document.segments)):
        before, after = document.segments[index - 1], document.segments[index]
        if before.section != after.section:
            continue
        contradiction = _same_iterations(before, after) or _back_in_time(before, after)
        if contradiction:
            lines = [record.line for record in (before.last, after.first) if record is not None]
            yield contradiction.at(*lines, segment=index)


def _same_iterations(before: Segment, after: Segment) -> Contradiction | None:
    """Compare the iterations of two launches; a launch that starts from its first iteration is another training."""
    if not (before.steps and after.steps) or before.steps.last is None or after.steps.first is None:
        return None
    start, end = after.steps.first, before.steps.last
    if not (before.steps.first or 0) < start <= end or _model(before) != _model(after) or _is_other(before, after):
        return None
    return Contradiction(
        f"Iterations {shown(start)} to {shown(end)} occur twice: one launch ends at iteration {shown(end)}, and the"
        f" next continues from {shown(start)}, as after a restart from a checkpoint; do not add up their times and"
        " samples.",
        {"last_iteration": float(end), "next_iteration": float(start)},
    )


def _is_other(before: Segment, after: Segment) -> bool:
    """Return whether another program prints the steps of a launch: they share fewer than half of their names."""
    names, others = (set(step.printed) if step is not None else set() for step in (before.last, after.first))
    return 2 * len(names & others) < min(len(names), len(others))


def _model(segment: Segment) -> tuple[int | None, ...]:
    launch = segment.launch
    return (launch.num_layers, launch.hidden_size, launch.sequence_length, launch.global_batch_size)


def _back_in_time(before: Segment, after: Segment) -> Contradiction | None:
    if before.last is None or after.first is None:
        return None
    ended, began = _time(before.last.time), _time(after.first.time)
    if ended is None or began is None or (ended - began).total_seconds() <= CLOCK_S:
        return None
    return Contradiction(
        f"Time stamps go backwards: a launch ends at {ended}, and the next one in the file starts at {began}; the file"
        " was combined from several files, or the clocks differ.",
        {"seconds_back": (ended - began).total_seconds()},
    )


def _time(text: str | None) -> datetime | None:
    for pattern in _TIMES:
        try:
            return datetime.strptime((text or "")[:19], pattern)
        except ValueError:
            continue
    return None


def placeholders_of_run(run: RunFacts) -> Iterator[Contradiction]:
    for name, value in _summary_figures(run.summary):
        if contradiction := placeholder(name, value):
            yield contradiction.at(run=run.number, figure=name)


def _summary_figures(summary: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name in ("samples_per_s", "tokens_per_s", "ms_per_sample", "tflops_per_gpu"):
        if (value := number(summary.get(name))) is not None:
            yield name, value
    if (value := number(part(summary, "step_time_s").get("median"))) is not None:
        yield "step_time_s", value
    for end in ("first", "last"):
        if (value := number(part(summary, "loss").get(end))) is not None:
            yield f"loss ({end})", value


def cut_short(run: RunFacts) -> Iterator[Contradiction]:
    """Check that a finished run has measured its last iteration."""
    planned, last = count(part(run.config, "train").get("iterations")), count(part(run.summary, "steps").get("last"))
    left_out = part(run.summary, "steps").get("left_out")
    dropped = max((step for step in left_out if isinstance(step, int)), default=0) if isinstance(left_out, list) else 0
    if run.state != "finished" or not planned or not last or max(last, dropped) == planned:
        return
    yield Contradiction(
        f"The run is finished after iteration {shown(last)}, but {shown(planned)} iterations are configured.",
        {"last_iteration": float(last), "iterations": float(planned)},
    ).at(run=run.number, figure="steps")


def loss_after_reload(run: RunFacts) -> Iterator[Contradiction]:
    """Check that the loss of steps that were made again after a reload is what it was before."""
    reload = part(run.summary, "reload")
    difference, limit = number(reload.get("difference")), number(reload.get("limit"))
    if difference is None or limit is None or abs(difference) <= limit:
        return
    before, after = float(reload["before"]), float(reload["after"])
    first, second = reload["attempts"]
    yield Contradiction(
        f"The loss of step {shown(reload['step'])} was {shown(before)} in attempt {first} and is {shown(after)} in"
        f" attempt {second}, after the reload; over {reload['steps']} repeated steps it differs by {shown(difference)}"
        f" (allowed: {shown(limit)}): weights, optimizer state or the order of the data were not restored.",
        {"before": before, "after": after},
    ).at(run=run.number, figure="loss")
