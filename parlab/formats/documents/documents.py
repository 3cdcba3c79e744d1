"""Records of one file -> its Document, in one pass and bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from parlab.formats import schema
from parlab.formats.builder import OPEN
from parlab.formats.grammar.records import Record
from parlab.formats.segments import MAX_SEGMENTS, Segments

MAX_EXAMPLES = 20
MAX_TABLES = 2_000
MAX_FIGURES = 10_000
# A file of which more than this share is unread is presented with a note.
MOSTLY = 0.1
# Formats without a definition of their lines.
GUESSED = frozenset({"pairs"})


# Ending of a normal name -> unit of its values, whatever unit was printed.
_UNITS = (("_bytes_per_s", "bytes/s"), ("_bits_per_s", "bit/s"), ("_bytes", "bytes"), ("_per_s", ""), ("_s", "s"))


def _unit_of(name: str, printed: str, text: str) -> str:
    """Return the unit of a figure's value, which is in the unit of its name; of a figure about a unit, that unit."""
    if not any(map(str.isdigit, text)):
        return printed
    unit = next((unit for ending, unit in _UNITS if name.endswith(ending)), "")
    return unit or printed


class Collector:
    """Collects records; `document()` returns the result."""

    def __init__(self, file: str, format: str) -> None:
        self.result = schema.Document(file=file, format=format)
        self.parts: dict[str, list[Any]] = {
            "table": self.result.tables, "image": self.result.images, "config": self.result.configs
        }  # fmt: skip
        self.segments = Segments()
        self.section: str | None = None
        self.figures = 0
        self.unread_lines = 0
        self.last_unread = self.last_read = -1

    def add(self, record: Record) -> None:
        kind = record.kind
        if kind == "unread":
            self.unread(record)
            return
        if kind == "event":
            self._event(record)
            return
        if record.line == self.last_unread:
            self.unread_lines, self.last_unread = self.unread_lines - 1, -1
        self.last_read = record.line
        if kind == "figure":
            self._figure(record)
        elif (parts := self.parts.get(kind)) is not None:
            if len(parts) < MAX_TABLES:
                parts.append(record.data)
        elif kind == "heading":
            self.section = record.data
            self.segments.heading(record.data)
        else:
            self.segments.add(record)

    def _event(self, record: Record) -> None:
        event = self.result.events.get(record.data)
        if event is None:
            self.result.events[record.data] = schema.Event(count=1, first=record.line, last=record.line)
        else:
            event.count += 1
            event.first, event.last = min(event.first, record.line), max(event.last, record.line)

    def unread(self, record: Record, count: int = 1) -> None:
        # A line of which a part was read is not unread.
        if record.line not in (self.last_unread, self.last_read):
            self.unread_lines, self.last_unread = self.unread_lines + 1, record.line
        unread = self.result.unread
        unread.lines += count
        if len(unread.examples) < MAX_EXAMPLES:
            reason, text = record.data
            unread.examples.append(schema.UnreadLine(line=record.line, reason=reason, text=text))

    def _figure(self, record: Record) -> None:
        self.figures += 1
        if self.figures > MAX_FIGURES:
            return
        data = record.data
        figure = schema.Figure(
            value=record.values.get(data["name"]),
            low=data.get("low"),
            high=data.get("high"),
            total=data.get("total"),
            unit=_unit_of(data["name"], data["unit"], record.raw[0] if record.raw else ""),
            text=record.raw[0] if record.raw else "",
            line=record.line,
            section=self.section,
        )
        self.result.figures.setdefault(data["name"], []).append(figure)
        self.segments.figure(data["name"], figure)

    def document(self, lines: int) -> schema.Document:
        self.segments.close()
        result = self.result
        if self.section is not None:
            self.segments.adopt(result.figures)
        result.lines = lines
        result.segments = self.segments.done
        result.notes = self._notes(lines)
        self._beyond(self.segments.dropped, f"launches beyond the limit of {MAX_SEGMENTS}")
        self._beyond(self.segments.late, f"records of ranks that are more than {OPEN} steps behind")
        return result

    def _beyond(self, count: int, what: str) -> None:
        """Report what exceeds a limit."""
        if count:
            self.result.unread.lines += count
            self.result.unread.examples.append(schema.UnreadLine(line=0, reason=f"{count} {what}", text=""))

    def _notes(self, lines: int) -> list[str]:
        notes: list[str] = []
        if self.unread_lines > MOSTLY * lines:
            notes.append(f"{self.unread_lines} of {lines} lines could not be read")
        if self.result.format in GUESSED:
            notes.append("no known format: the quantities follow from the names and units that the lines print")
        return notes


def note_cut_lines(document: schema.Document, lines: Mapping[int, str]) -> None:
    """Report lines of which only the beginning was read, with the reasons."""
    for number, reason in lines.items():
        document.unread.lines += 1
        document.unread.examples.append(schema.UnreadLine(line=number, reason=reason, text=""))


class Counted:
    """Passes lines on and counts them."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = lines
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        for self.count, line in enumerate(self.lines, 1):  # noqa: B020  callers read the count
            yield line
