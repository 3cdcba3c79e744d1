"""Cells of a line -> records: a step with its timers, a validation, or figures of the launch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from parlab.formats.coverage.leftovers import named_numbers
from parlab.formats.grammar.metric_fields import CLOCKS, HELD_OUT
from parlab.formats.grammar.pairs import Pair, pairs
from parlab.formats.grammar.quantities import QUANTITIES
from parlab.formats.grammar.records import Field, Kind, Record, unread
from parlab.formats.grammar.rows import picker
from parlab.formats.grammar.units import factors, normal, slug
from parlab.formats.logs.trainer_settings import trainer_setting

MAX_FIELDS = 4_096
MAX_PLANS = 1_024
LARGEST_WHOLE = 2**53
_MEASURES = ("_s", "fps", "_per_s", "_per_s_per_gpu", "loss", "mfu", "flops_per_gpu", "_bytes")
# What a line about a step may state besides; in other lines these are settings.
_OF_STEPS = (*_MEASURES, "learning_rate", "grad_norm")

# Memory of anything, in a line that states nothing else.
_AMBIGUOUS = frozenset({"memory", "mem", "time"})
_CLOCK = re.compile(
    r"(?:^|_)(?:total_(?:running_)?time|running_time|time_total|start_time|elapsed|eta|remaining|wall|runtime)(?:_|$)"
    r"|^(?:e2e_|raw_)?train(?:ing)?_time_s$"
)


# The loss of a part: `loss_g`.
_LOSS_OF = re.compile(r"loss_(?!scale)")


class StepPlan:
    """Which quantity each number of a step is: cells with the same names, units and forms of numbers have one plan."""

    __slots__ = ("_names", "_pick", "_pick_timers", "_scaled", "_timers", "fields", "has_values", "is_step")

    def __init__(self, fields: Sequence[Field], values: Mapping[str, int], timers: Mapping[str, int]) -> None:
        """`values` and `timers` have the place of the number of each quantity."""
        self.fields = tuple(fields)
        self._names, self._pick = tuple(values), picker(tuple(values.values()))
        self._timers, self._pick_timers = tuple(timers), picker(tuple(timers.values()))
        self._scaled = [(at, *factors(field.scale)) for at, field in enumerate(fields) if field.scale != 1.0]
        self.has_values = bool(values)
        self.is_step = bool(timers) or any(name.endswith(_OF_STEPS) or _LOSS_OF.match(name) for name in values)

    def records(
        self, line: int, rank: int | None, time: str | None, numbers: list[float], raw: tuple[str, ...],
        iteration: int | None, total: int | None,
    ) -> list[Record]:  # fmt: skip
        """Return the step and its timers; `numbers` change their unit."""
        for at, multiplier, divisor in self._scaled:
            numbers[at] = numbers[at] * multiplier / divisor
        values = dict(zip(self._names, self._pick(numbers)))  # noqa: B905 - as many names as places; the hot loop
        if total is not None and iteration is not None and total >= iteration:
            values["total_iterations"] = float(total)
        step = Record("step", line, values, iteration, rank, time, self.fields, raw)
        if not self._timers:
            return [step]
        timers = dict(zip(self._timers, self._pick_timers(numbers), strict=True))
        return [step, Record("timers", line, timers, iteration, rank)]


class StepCells:
    """Turns the cells of one log into records; `field_of` gives the field of a cell, `settings` those of a launch."""

    def __init__(
        self,
        field_of: Callable[[Pair], Field],
        settings: Mapping[str, str],
        *,
        keeps_names: bool = False,
        is_of_rank: bool = False,
        is_beside: bool = False,
    ) -> None:
        """`keeps_names`: timers have the names that are printed, and not normal ones.

        `is_of_rank`: memory is that of the rank that prints it, whether or not its number is known. `is_beside`: a line
        with the number of a step is about it, whatever it states.
        """
        self._field_of = field_of
        self._keeps_names = keeps_names
        self._is_of_rank = is_of_rank
        self._is_beside = is_beside
        self._settings = settings
        self._fields: dict[tuple[str, str], Field] = {}
        self._plans: dict[tuple[tuple[str, str, str], ...], StepPlan] = {}

    def records(
        self, line: int, rank: int | None, time: str | None, cells: list[Pair], iteration: int | None, total: int | None
    ) -> list[Record]:
        """Return the step and its timers; [] if no cell is a measurement."""
        bad = _not_finite(line, cells)
        if bad:
            cells = [cell for cell in cells if cell.value is not None]
        plan = self.plan(cells)
        if not plan.is_step and not (self._is_beside and plan.has_values):
            return bad if plan.has_values else []
        numbers, raw = [cell.value or 0.0 for cell in cells], tuple([cell.text for cell in cells])
        return plan.records(line, rank, time, numbers, raw, iteration, total) + bad

    def plan(self, cells: Sequence[Pair]) -> StepPlan:
        """Return the plan of cells that are all numbers."""
        key = tuple([(cell.key, cell.unit, digits_of(cell.text)) for cell in cells])
        plan = self._plans.get(key)
        if plan is None:
            plan = self._new_plan(cells)
            if len(self._plans) < MAX_PLANS:
                self._plans[key] = plan
        return plan

    def _new_plan(self, cells: Sequence[Pair]) -> StepPlan:
        values: dict[str, int] = {}
        timers: dict[str, int] = {}
        fields: list[Field] = []
        for place, cell in enumerate(cells):
            field = self.field(cell)
            if field.name in ("time_s", "total_s") and (cell.unit == "ms" or len(timers) > 1):
                # The time of the whole step stands alone, or behind its phases.
                field = field._replace(name="step_time_s", kind="printed")
            elif _is_unitless_memory(field, cell):
                field = field._replace(name=slug(cell.key))
            if field.name == "steps_per_s" and len(cell.text) < 3 and cell.text.isdigit():
                field = field._replace(name="whole_steps_per_s")  # too few digits for a step time
            if field.name in values:
                # `source words/s` and `target words/s` are rates, and no times.
                key = cell.key.replace("/", " per ") if field.name.endswith("_per_s") else cell.key
                field = field._replace(name=slug(f"{key} {cell.unit}"))
                if field.name in values:
                    field = field._replace(name=f"{field.name}_{place}", key=f"{cell.key} {place}")
            if is_timer(field.name):
                timers[cell.key if self._keeps_names else field.name.removesuffix("_s")] = place
            else:
                values.setdefault(field.name, place)
                if self._keeps_names and field.name == "step_time_s":
                    timers[cell.key] = place
            fields.append(field)
        return StepPlan(fields, values, timers)

    def follows_digits(self, cell: Pair) -> bool:
        """Return whether the name of a cell's field follows from the form of its number; see `digits_of`."""
        return self.field(cell).name.endswith(("_bytes", "steps_per_s"))

    def field(self, cell: Pair) -> Field:
        """Return the field of a cell."""
        field = self._fields.get((cell.key, cell.unit))
        if field is None:
            field = self._field_of(cell)
            if len(self._fields) < MAX_FIELDS:
                self._fields[cell.key, cell.unit] = field
        return field

    def validation(self, line: int, rank: int | None, cells: list[Pair], iteration: int | None) -> list[Record]:
        return record_of("validation", line, rank, iteration, [(cell, self._field_of(cell)) for cell in cells])

    def summary(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read a line without a counter that states a time, a rate or memory: figures of the launch."""
        if (" = " in text or " / " in text) and (setting := trainer_setting(text[:300])):
            return [Record("launch", line, data=setting, rank=rank)]
        found = pairs(text)
        if found and all(HELD_OUT.match(cell.key) for cell in found):
            return self.validation(line, rank, found, None)
        cells = [(cell, self._field_of(cell)) for cell in found]
        stated = _stated(text, cells)
        names = self._settings
        settings = {
            names[cell.key]: int(cell.value)
            for cell, _ in cells
            if cell.key in names and cell.value is not None and 0 < cell.value < LARGEST_WHOLE
        }
        records = [Record("launch", line, data=settings, rank=rank)] if settings else []
        is_tagged = rank is not None or self._is_of_rank
        is_of_rank = is_tagged and bool(stated) and all(f.name in _OF_RANKS for _, f in stated)
        return records + record_of("memory" if is_of_rank else "metrics", line, rank, None, stated, time)


def _stated(text: str, cells: list[tuple[Pair, Field]]) -> list[tuple[Pair, Field]]:
    """Return the measurements of a line without a counter, and the other named numbers beside them."""
    # A number of tokens, which may be those of the training or of the data.
    tokens = {cell for cell, f in cells if f.name == "tokens_seen"}
    cells = [(cell, f._replace(name=slug(cell.key)) if cell in tokens else f) for cell, f in cells]
    stated = [(cell, f) for cell, f in cells if cell in tokens or _is_measured(cell, f)]
    if all(cell.key.lower() in _AMBIGUOUS for cell, _ in stated):
        return []
    if any(is_timer(f.name) for _, f in stated):
        # `eval time = 12 ms (102 tokens per second)`: the rate of that work, not of the training.
        stated = [(cell, f) for cell, f in stated if cell.key != cell.unit]
    others = {cell for cell in named_numbers(text) if stated}
    return [(cell, f) for cell, f in cells if (cell, f) in stated or (cell in others and not _measures(f))]


def _is_measured(cell: Pair, field: Field) -> bool:
    """Return whether a cell of a line without a counter is a measurement; a loss without a unit is none."""
    return _measures(field) and bool(cell.unit or field.name != "loss")


_OF_RANKS = frozenset(q.name for q in QUANTITIES if q.unit == "bytes" and q.per == "rank")


def _measures(field: Field) -> bool:
    """Return whether a field is of a time, a rate, memory or a loss."""
    return field.name.endswith(_MEASURES)


def _is_unitless_memory(field: Field, cell: Pair) -> bool:
    """Return whether a cell states memory without a unit: only a long whole number is one of bytes."""
    return (
        field.name.endswith("_bytes")
        and field.scale == 1.0
        and not cell.unit
        and "bytes" not in cell.key.lower()
        and (len(cell.text) < 7 or not cell.text.isdigit())
    )


def digits_of(text: str) -> str:
    """Return what the name of a field may follow from: whether a number is whole, and short or long."""
    if not text.isdigit():
        return ""
    return "short" if len(text) < 3 else "long" if len(text) >= 7 else "whole"


@lru_cache(maxsize=8192)
def is_timer(name: str) -> bool:
    """Return whether a quantity is the time of a phase of a step."""
    is_time = name.endswith("_s") and not name.endswith(("_per_s", "step_time_s"))
    return is_time and name not in CLOCKS and not name.startswith("average_") and _CLOCK.search(name) is None


def record_of(
    kind: Kind, line: int, rank: int | None, iteration: int | None, cells: list[tuple[Pair, Field]],
    time: str | None = None,
) -> list[Record]:  # fmt: skip
    """Return one record of the cells that are numbers; the others are unread."""
    good = [(cell, field) for cell, field in cells if cell.value is not None]
    bad = _not_finite(line, [cell for cell, _ in cells]) if len(good) < len(cells) else []
    if not good:
        return bad
    values = {field.name: normal(cell.value or 0.0, field.scale) for cell, field in good}
    fields, raw = tuple([field for _, field in good]), tuple([cell.text for cell, _ in good])
    return [Record(kind, line, values, iteration, rank, time, fields, raw), *bad]


def with_timers(records: list[Record]) -> list[Record]:
    """Return a step with the times of its phases as a record of their own."""
    if not records or records[0].kind != "step":
        return records
    step, *others = records
    timers = {name.removesuffix("_s"): step.values.pop(name) for name in [*step.values] if is_timer(name)}
    return [step, *([Record("timers", step.line, timers, step.iteration, step.rank)] if timers else []), *others]


def _not_finite(line: int, cells: list[Pair]) -> list[Record]:
    """Return an unread record for each cell that is no number."""
    return [unread(line, "not a finite number", f"{cell.key}: {cell.text}") for cell in cells if cell.value is None]
