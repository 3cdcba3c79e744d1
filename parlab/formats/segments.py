"""Division of a reader's records into segments, one per launch.

A new segment starts with a record that has `opens`, or when the iterations or time stamps of one rank run backwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.formats import schema
from parlab.formats.builder import MAX_NAMES, MAX_VALIDATIONS, Builder
from parlab.formats.grammar.processes import STATED
from parlab.formats.grammar.records import Ending, Record
from parlab.formats.launch import SETTINGS, normalise
from parlab.formats.summary import fill_from_figures, segment_of

COMMAND = 4
"""Settings that a command states at least; a remark states fewer."""
MAX_SIZES = 64
MAX_SEGMENTS = 500


def _has_settings(arguments: dict[str, Any]) -> bool:
    """Return whether arguments contain a known setting; a command without any (`srun --label date`) is no launch."""
    return any(value is not None for value in normalise(arguments)[0].values())


def _is_other_setting(current: dict[str, Any], arguments: dict[str, Any]) -> bool:
    """Return whether a command line contradicts the settings of the current launch."""
    stated, _ = normalise(current)
    others, derived = normalise(arguments)
    return any(
        value is not None and name not in derived and stated.get(name) not in (None, value)
        for name, value in others.items()
    )


class Segments:
    """Collects records into segments."""

    def __init__(self) -> None:
        self.done: list[schema.Segment] = []
        self.current: Builder | None = None
        self.section: str | None = None
        self.dropped = 0
        self.late = 0
        self.processes = 0
        self.sizes: dict[str, int] = {}
        """Sizes that lines of their own have stated, for the next launch."""
        """The largest number that lines have stated since a launch began to train: that of the next one, if any."""

    def add(self, record: Record) -> None:
        kind = record.kind
        builder = self.current
        if kind == "step":
            if builder is None or builder.runs_backwards(record):
                builder = self._open(record, keep=builder)
            builder.step(record)
        elif kind == "launch":
            self._launch(record)
            return
        elif kind == "end":
            if builder is not None:
                self._ended(builder, record.data)
        else:
            if builder is None:
                builder = self._open(record)
            self._note(builder, record)
        if builder is not None and record.line:
            builder.last_line = record.line

    def _note(self, builder: Builder, record: Record) -> None:
        if record.kind == "timers":
            builder.time(record)
        elif record.kind == "memory":
            builder.remember(record)
        elif record.kind == "metrics":
            builder.metrics.note(record.fields)
            builder.metrics.add(record.values)
            if record.rank is not None:
                builder.metrics.spoke(record.rank, record.values)
        elif record.kind == "validation" and len(builder.validation) < MAX_VALIDATIONS:
            builder.validation.append(
                schema.Validation(iteration=record.iteration, line=record.line, values=record.values)
            )

    @staticmethod
    def _ended(builder: Builder, end: Ending) -> None:
        previous = builder.end
        if (
            previous is None
            or previous.state == "finished"
            or (previous.reason.startswith("Traceback") and end.state == "crashed")
        ):
            builder.end = end

    def _launch(self, record: Record) -> None:
        builder = self.current
        if STATED in record.data:
            self._hear(record.data[STATED])
            return
        if SETTINGS in record.data:
            self._fill(record.data[SETTINGS])
            return
        if builder is None or self._another(builder, record):
            builder = self._open(record)
        builder.tell(record.data, dump=record.opens)
        builder.last_line = record.line or builder.last_line

    def _hear(self, processes: int) -> None:
        """Keep a stated number of processes; smaller ones are of groups within the world."""
        if self.current is None or not self.current.empty:
            self.processes = max(self.processes, processes)
        else:
            self.current.arguments[STATED] = max(self.current.arguments.get(STATED, 0), processes)

    def _fill(self, sizes: Mapping[str, int]) -> None:
        """Keep sizes that stand alone, for the launch that follows or has begun; what its reader reads comes first."""
        if self.current is None or not self.current.empty:
            self.sizes = {**sizes, **self.sizes} if len(self.sizes) < MAX_SIZES else self.sizes
        else:
            for name, value in sizes.items():
                self.current.arguments.setdefault(name, value)

    @staticmethod
    def _another(builder: Builder, record: Record) -> bool:
        """Return whether arguments belong to a launch other than the current one."""
        current = builder.arguments
        if not record.opens:
            if not (builder.records or builder.open):
                return False
            is_command = len(record.data) >= COMMAND and any(current.get(n, v) != v for n, v in record.data.items())
            return is_command or _is_other_setting(current, record.data)
        other = builder.dumped and any(current.get(name, value) != value for name, value in record.data.items())
        return not builder.empty or other or builder.end is not None

    def _open(self, record: Record, keep: Builder | None = None) -> Builder:
        """Close the current segment and start a new one; with `keep`, a restart, copy its arguments."""
        processes, self.processes = self.processes, 0
        sizes, self.sizes = self.sizes, {}
        self.close()
        self.current = Builder(record.line, self.section)
        self.current.arguments = {**(keep.arguments if keep is not None else {}), **sizes}
        if processes:
            self.current.arguments[STATED] = processes
        return self.current

    def close(self) -> None:
        builder, self.current = self.current, None
        processes, self.processes = self.processes, 0
        if builder is not None and processes:
            builder.arguments.setdefault(STATED, processes)
        self.late += builder.late if builder is not None else 0
        if builder is None or (builder.empty and not _has_settings(builder.arguments)):
            return
        if len(self.done) >= MAX_SEGMENTS:
            self.dropped += 1
            return
        self.done.append(segment_of(builder))

    def heading(self, title: str) -> None:
        """Start a new section of a document, which is a separate launch."""
        self.close()
        self.section = title

    def adopt(self, figures: dict[str, list[schema.Figure]]) -> None:
        """Assign all figures of a document to its only launch, and fill in settings that only prose states."""
        if len(self.done) != 1:
            return
        segment = self.done[0]
        for name, stated in figures.items():
            segment.figures.setdefault(name, stated[0])
        prose = {name: figure.value for name, figure in segment.figures.items() if figure.value is not None}
        values, derived = normalise({**prose, **segment.launch.arguments})
        for name, value in values.items():
            if getattr(segment.launch, name) is None and value is not None:
                setattr(segment.launch, name, value)
                segment.launch.derived[name] = derived.get(name, "stated in prose")
        fill_from_figures(segment)

    def figure(self, name: str, figure: schema.Figure) -> None:
        """Add a figure from prose to the current launch."""
        if self.current is not None and len(self.current.figures) < MAX_NAMES:
            self.current.figures.setdefault(name, figure)
