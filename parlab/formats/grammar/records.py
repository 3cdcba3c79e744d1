"""Records that readers yield: values in normal units, with the printed texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from parlab.formats import schema

Kind = Literal[
    "launch",  # arguments of a launch; `opens` starts a new segment
    "step",  # one iteration
    "timers",  # seconds per timer name; `low` has those of the fastest rank if a range was printed
    "memory",  # bytes per rank
    "metrics",  # figures of the launch that do not belong to a step
    "validation",  # losses on held-out data
    "figure",  # one named figure of prose or of a footer
    "table",  # schema.Table
    "image",  # schema.Image
    "config",  # schema.Config
    "heading",  # title of the following section
    "end",  # how the launch ended
    "event",  # a line with numbers that are no measurements; `data` is its kind
    "unread",  # text that looked like a measurement but could not be read
]


class Field(NamedTuple):
    """One column of a printed line: normal name, key and unit as printed, factor to the normal unit, and its kind.

    The kind says how the value came about: printed, average, cumulative, smoothed, derived, or part of a step.
    """

    name: str
    key: str
    unit: str = ""
    scale: float = 1.0
    kind: schema.Kind = "printed"


class Printed(NamedTuple):
    """One cell as printed, with the name of its normal form."""

    name: str
    key: str
    value: str
    unit: str
    kind: schema.Kind = "printed"


class Record:
    """One reading. `values` are in normal units (s, bytes, samples/s, FLOP/s); `printed()` yields the printed cells.

    `line` counts from 1; `rank` is the rank that printed the line, if known; `time` is the printed time stamp; `data`
    has everything that is not a number: arguments of a launch, a table, an Ending, an Unread. `until` is the last
    line of a record that several lines state, `also` has others that are not between them.
    """

    __slots__ = (
        "also",
        "data",
        "fields",
        "iteration",
        "kind",
        "line",
        "low",
        "opens",
        "rank",
        "raw",
        "time",
        "until",
        "values",
    )

    def __init__(
        self,
        kind: Kind,
        line: int,
        values: dict[str, float] | None = None,
        iteration: int | None = None,
        rank: int | None = None,
        time: str | None = None,
        fields: tuple[Field, ...] = (),
        raw: tuple[str, ...] = (),
        *,
        low: dict[str, float] | None = None,
        data: Any = None,
        opens: bool = False,
    ) -> None:
        self.kind: Kind = kind
        self.line = self.until = line
        self.also: tuple[int, ...] = ()
        self.values = {} if values is None else values
        self.iteration = iteration
        self.rank = rank
        self.time = time
        self.fields = fields
        self.raw = raw
        self.low = low
        self.data = data
        self.opens = opens

    def printed(self) -> Iterator[Printed]:
        """Yield the cells as printed, in the order of the line."""
        for field, value in zip(self.fields, self.raw, strict=False):
            yield Printed(field.name, field.key, value, field.unit, field.kind)

    def __repr__(self) -> str:
        return f"Record({self.kind!r}, line={self.line}, iteration={self.iteration}, values={self.values!r})"


class Unread(NamedTuple):
    """The reason why a text could not be read, and the text, truncated to MAX_TEXT."""

    reason: str
    text: str


class Ending(NamedTuple):
    """How a launch ended, with the reason that the log gives."""

    state: Literal["finished", "cancelled", "crashed", "unknown"]
    reason: str


MAX_TEXT = 200


def unread(line: int, reason: str, text: str) -> Record:
    """Return the record of a text that could not be read."""
    return Record("unread", line, data=Unread(reason, text[: MAX_TEXT + 1].strip()[:MAX_TEXT]))


def figure(line: int, name: str, value: float | None, text: str, unit: str = "", **extra: Any) -> Record:
    """Return the record of one figure; `extra` becomes fields of schema.Figure (low, high, total)."""
    field = Field(name, name, unit)
    return Record(
        "figure",
        line,
        {} if value is None else {name: value},
        fields=(field,),
        raw=(text[:MAX_TEXT],),
        data={"name": name, "unit": unit, **extra},
    )
