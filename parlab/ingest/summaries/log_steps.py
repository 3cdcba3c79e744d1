"""Which step each line of a log states, so that a line marks its step on a curve and a step its line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from parlab.formats import FORMATS, head_of, records
from parlab.formats.grammar.records import Record
from parlab.formats.learnt import learnt
from parlab.ingest.files.requested_format import wanted_of
from parlab.lab.models import Attempt, Run, Source
from parlab.series.log import log_size
from parlab.series.log_search import numbered_lines
from parlab.series.step_lines import stated_step

SCAN_BYTES = 4 << 20
"""Bytes from the beginning of a log that are read, so that a page stays fast."""


class LogSteps(NamedTuple):
    """What a pass over the beginning of a log found."""

    steps: dict[int, int]
    """Number of a line -> the step that it states."""
    lines: int
    """Lines that were read."""
    is_whole: bool
    """Whether these are all lines of the log."""

    def of(self, step: int) -> list[int]:
        """Return the lines of a step in their order."""
        return [line for line, stated in self.steps.items() if stated == step]


def log_steps(run: Run, attempt: Attempt) -> LogSteps:
    """Read the steps of a log: with the reader that imported it, or as parlab's engines report them."""
    if run.source is not None:
        return _of_reader(run.source, attempt)
    steps, number = dict[int, int](), 0
    for number, line in numbered_lines(attempt.pk, SCAN_BYTES):
        if (step := stated_step(line)) is not None:
            steps[number] = step
    return LogSteps(steps, number, log_size(attempt.pk) <= SCAN_BYTES)


def _of_reader(source: Source, attempt: Attempt) -> LogSteps:
    counted = _Counted(numbered_lines(attempt.pk, SCAN_BYTES))
    steps, current = dict[int, int](), 0
    for record in _records(source, iter(counted)):
        if record.kind != "step":
            continue
        # As the series of an import count: a step without a number follows the one before it.
        current = max(record.iteration, 0) if record.iteration is not None else current + 1
        for line in range(record.line, max(record.line, record.until or 0) + 1):
            steps[line] = current
    return LogSteps(steps, counted.lines, log_size(attempt.pk) <= SCAN_BYTES)


def _records(source: Source, lines: Iterator[str]) -> Iterator[Record]:
    wanted = wanted_of(source)
    if wanted is not None and wanted.learnt is not None:
        return iter(learnt.read(lines, wanted.learnt))
    head = head_of(lines)
    return records(chain(head, lines), source.format if source.format in FORMATS else None)


class _Counted:
    """Lines as readers take them, and how many there were."""

    def __init__(self, lines: Iterator[tuple[int, bytes]]) -> None:
        self._lines = lines
        self.lines = 0

    def __iter__(self) -> Iterator[str]:
        for number, line in self._lines:
            self.lines = number
            yield f"{line.decode('utf-8', 'replace')}\n"
