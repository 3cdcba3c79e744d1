"""What the numbers of a file say together, record by record: the scale of a MFU, step times of a clock, ranks.

A MFU without a unit is a fraction or per cent for the whole file. Where steps state how long the training has run, but
not their own time, the time of a step is the difference of two statements, divided by the steps between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, pairwise
from typing import NamedTuple

from parlab.formats.grammar.records import Field, Record

# A utilization above this is no fraction: it is per cent, or wrong in either way.
LARGEST_SHARE = 1.5
UTILIZATIONS = frozenset({"mfu", "average_mfu"})
# The first steps of a training are slow: one of so many shows whether a utilization is a fraction.
MFU_VALUES = 3
MAX_HELD = 4_096
MAX_RANKS = MAX_PLANS = 1_024
# Steps from which the number of ranks without a tag follows.
FIRST_STEPS = 64
# Of the digits of a clock: a difference of so many units of the last digit has an error of at most a tenth.
LEAST_UNITS = 10.0
# Clocks of the training, the most exact first.
CLOCKS = ("train_time_s", "elapsed_s", "elapsed_time_s", "time_elapsed_s", "train_wall_s", "wall_s", "total_time_s",
          "elapsed_total_s")  # fmt: skip


# Names that some trainers give to the time of one step: clocks once they have grown so often, and never where they
# fall, unless they are printed as clocks are.
AMBIGUOUS = frozenset({"elapsed_s", "elapsed_time_s", "time_elapsed_s", "total_time_s"})
GROWN = 3


INTERVAL = "elapsed_since_last_s"
"""The time of the steps since the last line."""


class _Clock(NamedTuple):
    """A statement of a clock: its name, the step, its seconds, and how often it has grown."""

    name: str
    iteration: int
    seconds: float
    grown: int = 0


class _Plan(NamedTuple):
    """What is to complete in records with the same fields, of which a log has few."""

    fields: tuple[Field, ...]
    has_time: bool
    clocks: tuple[str, ...]
    """Names of the clocks from which the step time may follow, the most exact first."""
    has_bare_mfu: bool
    timed: dict[str, tuple[Field, ...]]
    """Clock -> the fields with that of the step time that follows from it."""


def _plan_of(fields: tuple[Field, ...]) -> _Plan:
    names = {field.name for field in fields}
    has_time = "step_time_s" in names
    known = CLOCKS if "steps_per_s" in names else (INTERVAL, *CLOCKS)
    clocks = () if has_time else tuple(name for name in known if name in names)
    has_bare_mfu = any(field.name in UTILIZATIONS and not field.unit for field in fields)
    return _Plan(fields, has_time, clocks, has_bare_mfu, {})


def completed(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records with what follows from several of them."""
    shares = _Shares()
    clocks: dict[int | None, _Clock] = {}
    fallen: set[str] = set()
    plans: dict[int, _Plan] = {}
    for record in timed(ranked(records)):
        fields = record.fields
        plan = plans.get(id(fields))
        if plan is None or plan.fields is not fields:
            plan = _plan_of(fields)
            if len(plans) < MAX_PLANS:
                plans[id(fields)] = plan
        if record.kind == "step":
            if plan.clocks:
                name = next((name for name in plan.clocks if name not in fallen), plan.clocks[-1])
                _time(record, name, plan.timed, clocks, fallen)
            elif clocks and plan.has_time:
                clocks.clear()
        elif clocks and record.kind == "launch" and record.opens:
            clocks.clear()
        if shares.held or plan.has_bare_mfu:
            yield from shares.add(record, is_bare=plan.has_bare_mfu)
        else:
            yield record
    yield from shares.close()


def _time(
    record: Record, name: str, timed: dict[str, tuple[Field, ...]], clocks: dict[int | None, _Clock], fallen: set[str]
) -> None:
    """Set the time of a step that states only a clock of the training; a time that falls is that of an interval."""
    if record.iteration is None or name not in record.values or "step_time_s" in record.values:
        return
    if record.rank not in clocks and len(clocks) >= MAX_RANKS:
        return
    now = _Clock(name, record.iteration, record.values[name])
    before = clocks.get(record.rank)
    if before is None or before.name != name or now.iteration <= before.iteration:
        clocks[record.rank] = now
        return
    seconds = now.seconds if name == INTERVAL else now.seconds - before.seconds
    if seconds <= 0.0:
        clocks[record.rank] = now._replace(grown=-MAX_HELD)
        fallen.add(name)
        return
    if name != INTERVAL and seconds < LEAST_UNITS * _resolution(record, name):
        return
    clocks[record.rank] = now._replace(grown=before.grown + 1)
    if name in AMBIGUOUS and before.grown < GROWN and not _is_printed_as_clock(record, name):
        return
    record.values["step_time_s"] = seconds / (now.iteration - before.iteration)
    if name not in timed:
        key = _key_of(record, name)
        how = f"{key} / steps" if name == INTERVAL else f"difference of {key}"
        timed[name] = (*record.fields, Field("step_time_s", how, "s", kind="derived"))
    record.fields = timed[name]
    record.raw += (f"{record.values['step_time_s']:.6g}",)


def _is_printed_as_clock(record: Record, name: str) -> bool:
    """Return whether a time is printed as `1:02:03`, `18m 26s` or in minutes or hours."""
    field, text = next((f, t) for f, t in zip(record.fields, record.raw, strict=False) if f.name == name)
    return field.scale > 1.0 or ":" in text or "m" in text


def _resolution(record: Record, name: str) -> float:
    """Return the unit of the last digit of a value in seconds: of `2.45 m`, 0.6 s."""
    for field, text in zip(record.fields, record.raw, strict=False):
        if field.name == name:
            digits = len(text.partition(".")[2]) if text.replace(".", "", 1).isdigit() else 0
            return float(field.scale) / 10.0**digits
    return 1.0


def _key_of(record: Record, name: str) -> str:
    return next((field.key for field in record.fields if field.name == name), name)


def timed(records: Iterable[Record]) -> Iterator[Record]:
    """Take the `Time` of each step for a clock of the training, if it grows as the number of the step does."""
    stream = iter(records)
    head: list[Record] = []
    times: list[tuple[int, float]] = []
    for record in stream:
        head.append(record)
        if record.kind == "timers" and record.values.keys() == {"time"} and record.iteration:
            times.append((record.iteration, record.values["time"]))
        if len(times) == GROWN or len(head) >= FIRST_STEPS:
            break
    if not _is_clock(times):
        yield from head
        yield from stream
        return
    renamed = _Replaced(lambda f: f._replace(name="train_time_s", kind="cumulative") if f.name == "time_s" else f)
    step: Record | None = None
    for record in chain(head, stream):
        if step is not None:
            own, step = step, None
            if record.kind == "timers" and record.line == own.line and record.values.keys() == {"time"}:
                own.values["train_time_s"] = record.values["time"]
                own.fields = renamed(own.fields)
                yield own
                continue
            yield own
        if record.kind == "step":
            step = record
        else:
            yield record
    if step is not None:
        yield step


def _is_clock(times: Sequence[tuple[int, float]]) -> bool:
    """Return whether times only grow, at least to the double, and about as much as the numbers of their steps."""
    if len(times) < GROWN or any(b[1] <= a[1] or b[0] <= a[0] for a, b in pairwise(times)):
        return False
    (began, first), (ended, last) = times[0], times[-1]
    return last >= 2.0 * first > 0.0 and 0.5 < last / first * began / ended < 2.0


def ranked(records: Iterable[Record]) -> Iterator[Record]:
    """Number the ranks of a file whose steps all come several times, in lines of one form with different numbers."""
    stream = iter(records)
    head: list[Record] = []
    steps: list[Record] = []
    for record in stream:
        head.append(record)
        if record.kind == "step":
            steps.append(record)
            if record.rank is not None or (len(steps) == 2 and record.iteration != steps[0].iteration):
                break
        if len(steps) >= FIRST_STEPS or (record.kind == "launch" and steps) or len(head) >= MAX_HELD:
            break
    ranks = _ranks_of(steps)
    if ranks == 1:
        yield from head
        yield from stream
        return
    place, iteration = 0, None
    for record in chain(head, stream):
        if record.kind == "step" and record.rank is None:
            place = place + 1 if record.iteration == iteration else 0
            iteration = record.iteration
        if record.kind in ("step", "timers") and record.rank is None and record.iteration == iteration:
            record.rank = place
        yield record


def _ranks_of(steps: Sequence[Record]) -> int:
    """Return how often each step comes: 1 unless at least two whole steps come equally often, with other results."""
    groups = [list(group) for _, group in groupby(steps, key=lambda step: step.iteration)]
    whole = groups[:-1] if len(groups) > 2 else groups
    sizes = {len(group) for group in whole}
    if len(whole) < 2 or len(sizes) != 1 or sizes == {1} or any(step.rank is not None for step in steps):
        return 1
    names = {tuple(field.key for field in step.fields) for step in steps}
    iterations = [group[0].iteration for group in groups]
    is_growing = all(a is not None and b is not None and a < b for a, b in pairwise(iterations))
    differs = any(group[0].values != step.values for group in whole for step in group[1:])
    return sizes.pop() if len(names) == 1 and is_growing and differs else 1


class _Replaced:
    """The fields of records with some of them replaced; lines of a layout share theirs, which are made once."""

    def __init__(self, replace: Callable[[Field], Field]) -> None:
        self.replace = replace
        self.known: dict[int, tuple[tuple[Field, ...], tuple[Field, ...]]] = {}

    def __call__(self, fields: tuple[Field, ...]) -> tuple[Field, ...]:
        known = self.known.get(id(fields))
        if known is None or known[0] is not fields:
            known = (fields, tuple(map(self.replace, fields)))
            if len(self.known) < MAX_RANKS:
                self.known[id(fields)] = known
        return known[1]


class _Shares:
    """Finds whether a MFU without a unit is a fraction or per cent, by its first values."""

    def __init__(self) -> None:
        self.held: list[tuple[Record, bool]] = []
        self.count = 0
        self.largest = 0.0
        self.is_percent: bool | None = None
        self.per_cent = _Replaced(
            lambda f: f._replace(unit="%", scale=0.01) if f.name in UTILIZATIONS and not f.unit else f
        )

    def add(self, record: Record, *, is_bare: bool) -> Iterable[Record]:
        """Hold a record until the scale is known, and return those whose scale is."""
        if self.is_percent is not None:
            return (self._scaled(record) if is_bare else record,)
        self.held.append((record, is_bare))
        for name in UTILIZATIONS & record.values.keys() if is_bare else ():
            self.count += 1
            self.largest = max(self.largest, record.values[name])
        if self.count >= MFU_VALUES or self.largest > LARGEST_SHARE or len(self.held) >= MAX_HELD:
            return self.close()
        return ()

    def close(self) -> list[Record]:
        """Decide, and return the records that were held."""
        if self.count:
            self.is_percent = self.largest > LARGEST_SHARE
        held, self.held = self.held, []
        return [self._scaled(record) if is_bare else record for record, is_bare in held]

    def _scaled(self, record: Record) -> Record:
        if self.is_percent:
            bare = {field.name for field in record.fields if field.name in UTILIZATIONS and not field.unit}
            record.values |= {name: record.values[name] / 100.0 for name in bare & record.values.keys()}
            record.fields = self.per_cent(record.fields)
        return record
