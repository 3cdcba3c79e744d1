"""Formats that nobody wrote a reader for: the shape of their step lines, guessed from a file, fixed in JSON.

`learn` finds the keys that repeat, the one that counts, and what each quantity is by its name and unit; a person may
change every guess in the JSON file. `read` uses it. Documents read this way are marked in their `notes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

from pydantic import BaseModel, ConfigDict, Field

from parlab.formats.metric_fields import metric_field
from parlab.formats.names import quantity_of_metric
from parlab.formats.pairs import Pair, pairs
from parlab.formats.peel import peel
from parlab.formats.quantities import normal
from parlab.formats.records import Field as Printed
from parlab.formats.records import Record
from parlab.formats.silence import watched
from parlab.formats.steplines import counter_of, is_timer

MAX_SHAPES = 1_000
MAX_LINES = 200_000
# A shape is learnt if it repeats this often.
REPEATS = 2
SAMPLES = 3


class Column(BaseModel):
    """One quantity of a line: key and unit as printed, normal name, factor to the normal unit."""

    model_config = ConfigDict(extra="forbid")

    key: str = Field(max_length=200)
    unit: str = Field("", max_length=40)
    name: str = Field(max_length=100)
    scale: float = Field(1.0, gt=0.0, lt=1e30)
    sample: str = ""
    count: int = 0


class Learnt(BaseModel):
    """A learnt format. `counter` is the key that counts the steps; empty if a word such as `step` or `iter` does."""

    model_config = ConfigDict(extra="forbid")

    version: int = 1
    name: str = Field(max_length=100)
    counter: str = Field("", max_length=200)
    columns: list[Column] = Field(max_length=500)
    samples: list[str] = []


def learn(lines: Iterable[str], name: str) -> Learnt:
    """Return the format of a file's repeating lines. Raises ValueError if no line with numbers repeats."""
    survey = _Survey()
    for number, _, _, text in peel(lines):
        if number > MAX_LINES:
            break
        survey.add(text)
    return survey.learnt(name)


class _Survey:
    """The shapes of a file's lines, with the values and samples of each."""

    def __init__(self) -> None:
        self._shapes: Counter[tuple[str, ...]] = Counter()
        self._values: dict[str, list[float]] = {}
        self._columns: dict[str, Column] = {}
        self._samples: dict[tuple[str, ...], list[str]] = {}
        self._counted = 0

    def add(self, text: str) -> None:
        cells = [cell for cell in pairs(text) if cell.value is not None]
        shape = tuple(cell.key for cell in cells)
        if not cells or (shape not in self._shapes and len(self._shapes) >= MAX_SHAPES):
            return
        self._shapes[shape] += 1
        self._counted += counter_of(text) is not None
        if len(texts := self._samples.setdefault(shape, [])) < SAMPLES:
            texts.append(text.strip()[:500])
        for cell in cells:
            _count(self._columns, self._values, cell)

    def learnt(self, name: str) -> Learnt:
        repeated = [shape for shape, count in self._shapes.most_common() if count >= REPEATS]
        keys = {key for shape in repeated for key in shape}
        if not keys:
            raise ValueError("no line with `key: value` cells repeats; choose a file with at least two steps")
        columns = {key: column for key, column in self._columns.items() if key in keys}
        counter = ""
        if self._counted < REPEATS:
            counter = _counter(self._values, [key for key, column in columns.items() if not column.unit])
        return Learnt(
            name=name,
            counter=counter,
            columns=[column for key, column in columns.items() if key != counter],
            samples=self._samples[repeated[0]],
        )


def _count(columns: dict[str, Column], values: dict[str, list[float]], cell: Pair) -> None:
    column = columns.get(cell.key)
    if column is None:
        if len(columns) >= 500:
            return
        field = metric_field(cell.key, cell.unit)
        column = Column(key=cell.key[:200], unit=cell.unit, name=field.name, scale=field.scale, sample=cell.text)
        columns[cell.key] = column
    column.count += 1
    if cell.value is not None and len(seen := values.setdefault(cell.key, [])) < 1_000:
        seen.append(cell.value)


def _counter(values: dict[str, list[float]], keys: Iterable[str]) -> str:
    """Return the key without a known meaning whose values are whole and grow the slowest; empty if there is none."""
    growing = [
        key
        for key in keys
        if quantity_of_metric(key) is None
        and len(seen := values[key]) >= REPEATS
        and all(value == int(value) for value in seen)
        and sum(later > earlier for earlier, later in pairwise(seen)) >= 0.9 * (len(seen) - 1)
    ]
    return min(growing, key=lambda key: (values[key][-1] - values[key][0], key), default="")


def read(lines: Iterable[str], learnt: Learnt) -> Iterator[Record]:
    """Read lines of a learnt format; yield steps, and timers in seconds. Cells that it does not name are left out."""
    columns = {(column.key, column.unit): column for column in learnt.columns}
    return watched(lambda watched_lines: _read(watched_lines, learnt, columns), lines, learnt.name)


def _read(lines: Iterable[str], learnt: Learnt, columns: dict[tuple[str, str], Column]) -> Iterator[Record]:
    for line, rank, time, text in peel(lines):
        cells = pairs(text)
        iteration = counter_of(text) if not learnt.counter else _whole(cells, learnt.counter)
        named = [(cell, column) for cell in cells if (column := columns.get((cell.key, cell.unit))) is not None]
        good = [(cell.value, cell, column) for cell, column in named if cell.value is not None]
        if not good or (iteration is None and len(good) < REPEATS):
            continue
        values = {column.name: normal(value, column.scale) for value, _, column in good}
        timers = {name.removesuffix("_s"): value for name, value in values.items() if is_timer(name)}
        fields = tuple(Printed(column.name, column.key, column.unit, column.scale) for _, _, column in good)
        own = {name: value for name, value in values.items() if not is_timer(name)}
        raw = tuple(cell.text for _, cell, _ in good)
        yield Record("step", line, own, iteration, rank, time, fields, raw)
        if timers:
            yield Record("timers", line, timers, iteration, rank)


def _whole(cells: list[Pair], key: str) -> int | None:
    value = next((cell.value for cell in cells if cell.key == key), None)
    return int(value) if value is not None and value == int(value) and 0 <= value < 2**53 else None
