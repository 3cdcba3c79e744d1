"""Formats without a reader: the slots of their lines, guessed from a file and stored as JSON.

`learn` finds the slots that repeat (slots.py), the one that counts the steps, the one that names the rank, and what
each quantity is by its name and unit; a person may change every guess. `read` uses the result. Documents read this way
are marked in their `format` and `notes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from parlab.formats.coverage.silence import watched
from parlab.formats.grammar.counters import counter_of
from parlab.formats.grammar.metric_fields import metric_field
from parlab.formats.grammar.pairs import Pair
from parlab.formats.grammar.prefixes import peel
from parlab.formats.grammar.quantities import quantity_of_metric
from parlab.formats.grammar.records import Field as Printed
from parlab.formats.grammar.records import Record
from parlab.formats.grammar.repeats import Repeats
from parlab.formats.grammar.stepcells import record_of, with_timers
from parlab.formats.grammar.units import UNITS, slug, unit_of
from parlab.formats.learnt.slots import Slots

MAX_SHAPES = 1_000
MAX_LINES = 200_000
HEAD_LINES, EACH = 10_000, 20
# After each so many characters, half as many lines are looked at.
HALVING = 2**20
MAX_COLUMNS = 500
# A shape is learnt if it repeats this often.
REPEATS = 2
SAMPLES = 3
# A file has the shape of a format if its lines have this share of the columns.
FITTING = 0.6
PREFIX = "learnt:"
"""Begins the format of a document that was read with a learnt format."""
_RANKS = frozenset({"rank", "global_rank", "worker", "process", "proc", "gpu", "device"})

_PLAINER = {
    **dict.fromkeys(
        ("mem_bytes", "gpu_mem_bytes", "memory_bytes", "gpu_memory_bytes", "vram_bytes"), "allocated_bytes"
    ),
    **dict.fromkeys(("step_s", "it_s", "iter_s", "iteration_s", "update_s", "batch_s", "per_step_s"), "step_time_s"),
}
"""Names of slots whose unit makes the quantity plain -> normal name."""

Role = Literal["quantity", "step", "rank", "ignored"]


class Column(BaseModel):
    """One slot of a line: key and unit as printed, and its role; normal name and factor of a quantity."""

    model_config = ConfigDict(extra="forbid")

    key: str = Field(max_length=200, min_length=1)
    unit: str = Field("", max_length=40)
    name: str = Field(max_length=100, min_length=1)
    scale: float = Field(1.0, gt=0.0, lt=1e30)
    role: Role = "quantity"
    sample: str = Field("", max_length=200)
    count: int = Field(0, ge=0)


class Learnt(BaseModel):
    """A learnt format. Without a column of the role `step`, a word such as `step` or `iter` counts the steps."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[2] = 2
    name: str = Field(max_length=100, min_length=1)
    columns: list[Column] = Field(max_length=MAX_COLUMNS, min_length=1)
    samples: list[str] = Field([], max_length=10)

    @model_validator(mode="after")
    def _roles_once(self) -> Learnt:
        for role in ("step", "rank"):
            keys = [column.key for column in self.columns if column.role == role]
            if len(keys) > 1:
                raise ValueError(f"columns {' and '.join(keys[:3])} have the role {role}; keep it for one of them")
        names = Counter(column.name for column in self.columns if column.role == "quantity")
        if double := next((name for name, count in names.items() if count > 1), ""):
            keys = [column.key for column in self.columns if column.role == "quantity" and column.name == double]
            raise ValueError(f"columns {' and '.join(keys[:3])} are both {double}; ignore one of them or rename it")
        if not names:
            raise ValueError("no column is a quantity; give at least one column a quantity")
        return self

    @property
    def counter(self) -> str:
        """Return the key of the column that counts the steps; empty if a word does."""
        return next((column.key for column in self.columns if column.role == "step"), "")

    @property
    def rank_key(self) -> str:
        """Return the key of the column that names the rank; empty if only prefixes of lines do."""
        return next((column.key for column in self.columns if column.role == "rank"), "")


def learn(lines: Iterable[str], name: str) -> Learnt:
    """Return the format of a file's repeating lines. Raises ValueError if no line with numbers repeats."""
    survey = _Survey()
    for _, _, _, text in peel(_sampled(islice(lines, MAX_LINES))):
        survey.add(text)
    return survey.learnt(name)


def _sampled(lines: Iterable[str]) -> Iterator[str]:
    """Yield the first lines and a part of the others, fewer of long lines: a format repeats."""
    size = 0
    for number, line in enumerate(lines):
        each = (1 if number < HEAD_LINES else EACH) << size // HALVING
        if number % each == 0:
            size += len(line)
            yield line


def fit(guess: Learnt, format: Learnt) -> float:
    """Return the share of the quantities of a format that are among the slots of a guess."""
    slots = {(column.key, column.unit) for column in guess.columns}
    quantities = [(column.key, column.unit) for column in format.columns if column.role == "quantity"]
    return sum(key in slots for key in quantities) / len(quantities)


class _Survey:
    """The shapes of a file's lines, with the values and samples of each."""

    def __init__(self) -> None:
        self._slots = Slots()
        self._shapes: Counter[tuple[str, ...]] = Counter()
        self._values: dict[str, list[float]] = {}
        self._columns: dict[str, Column] = {}
        self._samples: dict[tuple[str, ...], list[str]] = {}
        self._counted: Counter[str] = Counter()
        """Key -> lines in which its number is the one after a word such as `step`; `""` counts these lines."""

    def add(self, text: str) -> None:
        cells = [cell for cell in self._slots.of(text) if cell.value is not None]
        shape = tuple(cell.key for cell in cells)
        if not cells or (shape not in self._shapes and len(self._shapes) >= MAX_SHAPES):
            return
        self._shapes[shape] += 1
        if (at := counter_of(text)) is not None:
            self._counted.update(["", *(cell.key for cell in cells if cell.value == at)])
        if len(texts := self._samples.setdefault(shape, [])) < SAMPLES:
            texts.append(text.strip()[:500])
        for cell in cells:
            _count(self._columns, self._values, cell)

    def learnt(self, name: str) -> Learnt:
        repeated = [shape for shape, count in self._shapes.most_common() if count >= REPEATS]
        keys = {key for shape in repeated for key in shape}
        columns = [column for key, column in self._columns.items() if key in keys]
        if not columns:
            raise ValueError("no line with numbers repeats; choose a file with at least two steps")
        self._roles(columns)
        if not any(column.role == "quantity" for column in columns):
            raise ValueError("the lines that repeat contain only counters; choose a file with times, rates or losses")
        _names_once(columns)
        main = max(repeated, key=lambda shape: (self._measures(shape), self._shapes[shape]))
        return Learnt(name=name, columns=columns, samples=self._samples[main])

    def _roles(self, columns: Sequence[Column]) -> None:
        """Guess the counter, the rank, the step time of lines without names, and the numbers that mean nothing."""
        rank = next((c for c in columns if slug(c.key) in _RANKS and _small(self._values[c.key])), None)
        if rank is not None:
            rank.role = "rank"
        rest = [column for column in columns if column.role == "quantity"]
        self._counter_role(rest)
        bare = [column for column in rest if column.key.partition(" ")[0] == "value"]
        times = [column for column in bare if unit_of(column.unit) and UNITS[column.unit.lower()][0] == "s"]
        if len(times) == 1 and not any(column.name == "step_time_s" for column in columns):
            times[0].name = "step_time_s"
        if any(_is_known(column) for column in rest):
            for column in bare:
                column.role = column.role if column.unit or column.role == "step" else "ignored"

    def _counter_role(self, rest: Sequence[Column]) -> None:
        most = max((column.count for column in rest), default=0)
        rest = [column for column in rest if 2 * column.count > most]
        counter = next((c.key for c in rest if self._counted[c.key] >= max(REPEATS, 0.9 * self._counted[""])), "")
        if not counter and self._counted[""] < REPEATS:
            counter = _counter(self._values, [column.key for column in rest if not column.unit])
        for column in rest:
            column.role = "step" if column.key == counter else "quantity"

    def _measures(self, shape: Sequence[str]) -> int:
        return sum(_is_known(self._columns[key]) for key in shape if key in self._columns)


def _names_once(columns: Sequence[Column]) -> None:
    """Number the quantities that share a name; the first keeps it."""
    names: Counter[str] = Counter()
    for column in columns:
        if column.role == "quantity":
            names[column.name] += 1
            if names[column.name] > 1:
                column.name = f"{slug(column.key)[:80]}_{names[column.name]}"


def _is_known(column: Column) -> bool:
    """Return whether the name or unit of a column states its quantity."""
    return unit_of(column.unit) is not None or quantity_of_metric(column.key) is not None or column.scale != 1.0


def _small(values: Sequence[float]) -> bool:
    return all(value == int(value) and 0 <= value < 1_000_000 for value in values)


def _count(columns: dict[str, Column], values: dict[str, list[float]], cell: Pair) -> None:
    column = columns.get(cell.key)
    if column is None:
        if len(columns) >= MAX_COLUMNS:
            return
        field = _guess(cell)
        column = Column(
            key=cell.key[:200], unit=cell.unit[:40], name=field.name[:100], scale=field.scale, sample=cell.text[:200]
        )
        columns[cell.key] = column
    column.count += 1
    if cell.value is not None and len(seen := values.setdefault(cell.key, [])) < 1_000:
        seen.append(cell.value)


def _guess(cell: Pair) -> Printed:
    """Return the field of a slot: `sec/it`, `mem_GiB` and `dt (ms)` have their unit in the key."""
    field = metric_field(cell.key, cell.unit)
    return field._replace(name=_PLAINER.get(field.name, field.name))


def _counter(values: dict[str, list[float]], keys: Iterable[str]) -> str:
    """Return the key without a known meaning whose values are whole and grow the slowest; empty if there is none."""
    growing = [
        key
        for key in keys
        if quantity_of_metric(key) is None
        and len(seen := values[key]) >= REPEATS
        and all(value == int(value) for value in seen)
        and seen[-1] > seen[0]
        and sum(later >= earlier for earlier, later in pairwise(seen)) >= 0.9 * (len(seen) - 1)
        and len(set(seen)) * 4 >= len(seen)
    ]
    return min(growing, key=lambda key: (values[key][-1] - values[key][0], key), default="")


def read(lines: Iterable[str], learnt: Learnt) -> Iterator[Record]:
    """Read lines of a learnt format; yield steps, and timers in seconds. Cells that it does not name are left out."""
    return watched(lambda watched_lines: _learnt_records(watched_lines, learnt), lines, f"{PREFIX}{learnt.name}")


def _learnt_records(lines: Iterable[str], learnt: Learnt) -> Iterator[Record]:
    columns = {(column.key, column.unit): column for column in learnt.columns if column.role == "quantity"}
    fields = {key: Printed(column.name, column.key, column.unit, column.scale) for key, column in columns.items()}
    counter, rank_key = learnt.counter, learnt.rank_key
    slots = Slots()

    def read_line(line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        cells = slots.of(text)
        iteration = _whole(cells, counter) if counter else counter_of(text)
        good = [
            (cell, field) for cell in cells if cell.value is not None and (field := fields.get((cell.key, cell.unit)))
        ]
        # Without the counter it is no step, as a line of an evaluation; without any counter, a few numbers are none.
        if not good or (iteration is None and (counter or len(good) < min(REPEATS, len(columns)))):
            return []
        speaker = _whole(cells, rank_key) if rank_key else rank
        return with_timers(record_of("step", line, speaker, iteration, good, time))

    repeats = Repeats(read_line)
    for line, rank, time, text in peel(lines):
        # What a row of a table means depends on the headings above it, so rows have no layout.
        yield from (read_line if slots.is_row(text) else repeats.read)(line, rank, time, text)


def _whole(cells: list[Pair], key: str) -> int | None:
    value = next((cell.value for cell in cells if cell.key == key), None)
    return int(value) if value is not None and value == int(value) and 0 <= value < 2**53 else None
