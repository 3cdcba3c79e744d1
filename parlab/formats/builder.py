"""Accumulates the records of one launch in constant memory.

An iteration that several ranks print, or that is printed twice, is one step with the time of the slowest rank. A rank
that prints an iteration again with other values belongs to another launch.
Placeholders (a loss of -1, a timer or step time of 0) are not measurements.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from parlab.formats import schema
from parlab.formats.grammar.records import Ending, Field, Record
from parlab.formats.launch import MAX_ARGUMENTS
from parlab.formats.statistics import BLOCK, Stream

MAX_NAMES = 500
LARGEST_WHOLE = 2.0**53
MAX_RANKS = 16_384
MAX_VALIDATIONS = 2_000
# Steps that stay open for ranks that lag behind.
OPEN = 1_024
# A value that is printed twice with different numbers of digits or units is the same within this ratio.
SAME = 0.01
# All ranks of a step wait for the slowest one, so that times and rates they print differ by less than this ratio. A
# single value may differ more, and in the first step, where ranks start and compile at different speeds, by any ratio.
FAR, VERY_FAR = 1.1, 1.5
_OF_ALL = frozenset({"step_time_s", "samples_per_s", "tokens_per_s", "flops_per_gpu", "tokens_per_s_per_gpu", "mfu"})
# Values that describe the position of a step, not its measurements.
_PROGRESS = frozenset({"epoch", "total_iterations", "micro_step"})
# Endings of values that differ between the ranks of a step, unlike a loss or the norm of the gradients.
_OF_A_RANK = ("_s", "_per_gpu", "_bytes", "_pct", "mfu")
# Values that only another launch begins again.
_GROWING = frozenset({"epoch", "consumed_samples"})
TIMER_LIMIT = 2_048

# Values up to this are placeholders, not measurements.
_FLOORS = {
    "step_time_s": 0.0,
    "samples_per_s": 0.0,
    "tokens_per_s": 0.0,
    "flops_per_gpu": 0.0,
    "tokens_per_s_per_gpu": 0.0,
    "steps_per_s": 0.0,
    "mfu": 0.0,
}


class Streams:
    """One Stream per name, and the largest value of each rank."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.by_name: dict[str, Stream] = {}
        self.by_rank: dict[str, dict[int, float]] = {}
        self.pending = 0
        self.kinds: dict[str, schema.Kind] = {}
        """Name -> how its values came about, if they are not printed as such."""
        self.fields: dict[int, tuple[Field, ...]] = {}

    def note(self, fields: tuple[Field, ...]) -> None:
        """Keep the kinds of fields; lines of a layout share theirs, which are looked at once."""
        if id(fields) in self.fields or len(self.fields) > MAX_NAMES:
            return
        self.fields[id(fields)] = fields
        self.kinds.update({field.name: field.kind for field in fields if field.kind != "printed"})

    def add(self, values: dict[str, float]) -> None:
        by_name = self.by_name
        for name, value in values.items():
            stream = by_name.get(name)
            if stream is None:
                if len(by_name) >= MAX_NAMES:
                    continue
                stream = by_name[name] = Stream(self.limit)
            stream.append(value)
        self.pending += 1
        if self.pending >= BLOCK:
            self.pending = 0
            for stream in by_name.values():
                stream.flush()

    def spoke(self, rank: int, values: dict[str, float]) -> None:
        """Update the largest value of a rank."""
        for name, value in values.items():
            ranks = self.by_rank.setdefault(name, {})
            if len(ranks) < MAX_RANKS and value >= ranks.get(rank, value):
                ranks[rank] = value

    def statistics(self, lows: dict[str, float] | None = None) -> dict[str, schema.Statistic]:
        return {name: self.statistic(name, (lows or {}).get(name)) for name in self.by_name if self.by_name[name]}

    def statistic(self, name: str, low: float | None = None) -> schema.Statistic:
        stream = self.by_name[name]
        stream.flush()
        ranks = self.by_rank.get(name, {})
        return schema.Statistic(
            count=stream.count,
            first=stream.first,
            last=stream.last,
            mean=stream.mean,
            median=stream.quantiles(0.5)[0],
            min=stream.minimum if low is None else min(low, stream.minimum),
            max=stream.maximum,
            by_rank={str(rank): value for rank, value in sorted(ranks.items())} if len(ranks) > 1 else {},
            kind=self.kinds.get(name, "printed"),
        )


class Builder:
    """An open segment."""

    def __init__(self, line: int, section: str | None) -> None:
        self.line = self.last_line = line
        self.section = section
        self.arguments: dict[str, Any] = {}
        self.dumped = False
        self.steps = Streams(16_384)
        self.timers = Streams(TIMER_LIMIT)
        self.timer_lows: dict[str, float] = {}
        self.memory = Streams(TIMER_LIMIT)
        self.memory_ranks: set[int | None] = set()
        self.memory_until: int | None = None
        """Iteration after which memory was last printed."""
        self.metrics = Streams(TIMER_LIMIT)
        self.figures: dict[str, schema.Figure] = {}
        self.validation: list[schema.Validation] = []
        self.first: Record | None = None
        self.current: Record | None = None
        self.open: OrderedDict[int, Record] = OrderedDict()
        self.closed: int | None = None
        self.late = 0
        self.records = 0
        self.total: int | None = None
        self.skipped: float | None = None
        self.skipped_total: float | None = None
        self.end: Ending | None = None
        self.by_rank: dict[int | None, int] = {}
        # Whether ranks without a tag printed a step with different values.
        self.repeated = False

    @property
    def empty(self) -> bool:
        return not (self.records or self.open or self.timers.by_name or self.memory.by_name or self.metrics.by_name
                    or self.validation or self.figures)  # fmt: skip

    def runs_backwards(self, record: Record) -> bool:
        """Return whether a rank repeats an iteration with other values or goes back, except for copies of a step."""
        if self.current is None or record.line == self.current.line:
            return False
        if self._earlier(record, self.current) or self._plans_otherwise(record, self.current):
            return True
        if record.iteration is None:
            return self._trained_less(record, self.current)
        if self._contradicts(record, self.current):
            return True
        last = self.by_rank.get(record.rank)
        if last is None or record.iteration >= last:
            return False
        return not (
            record.iteration in self.open and record.rank is None and len(self.by_rank) == 1 and self._copy(record)
        )

    @staticmethod
    def _earlier(record: Record, current: Record) -> bool:
        """Return whether the clock of a rank goes back by a minute or more: another launch, appended out of order."""
        now, then = record.time, current.time
        if not now or not then or record.rank != current.rank or len(now) != len(then) or now[4:5] != then[4:5]:
            return False
        return now[4:5] in ("-", "/") and now[:16] < then[:16]

    @staticmethod
    def _plans_otherwise(record: Record, current: Record) -> bool:
        """Return whether a rank states another total of iterations than it did before."""
        total, before = record.values.get("total_iterations"), current.values.get("total_iterations")
        return record.rank == current.rank and total is not None and before is not None and total != before

    @staticmethod
    def _trained_less(record: Record, current: Record) -> bool:
        """Return whether a step without a number is of less training than the one before it."""
        if record.rank != current.rank or current.iteration is not None:
            return False
        return any(
            record.values[name] < current.values[name]
            for name in _GROWING & record.values.keys() & current.values.keys()
        )

    def _contradicts(self, record: Record, current: Record) -> bool:
        """Return whether a rank prints a step again with other values, as another launch does.

        Ranks without a tag may also print the same step: then the loss and other results, which are averaged over the
        ranks, or the time stamp are the same, or earlier steps were printed several times as well.
        """
        if record.iteration != current.iteration and record.iteration == self.by_rank.get(record.rank):
            current = self.open.get(record.iteration or 0, current)
        if record.iteration != current.iteration or record.rank != current.rank:
            return False
        if current.rank is None and (self.repeated or (record.time is not None and record.time == current.time)):
            return False
        return _differ(record, current)

    def _copy(self, record: Record) -> bool:
        """Return whether a record repeats a step, printed at the same time."""
        current = self.current
        if current is None or current.iteration is None or record.iteration is None:
            return False
        return 0 < current.iteration - record.iteration <= 2 and record.time is not None and record.time == current.time

    def step(self, record: Record) -> None:
        """Add a step, or what another rank printed about a step that is still open."""
        iteration = record.iteration
        if len(self.by_rank) < MAX_RANKS:
            self.by_rank[record.rank] = iteration or 0
        if iteration is None:
            self.close_steps()
            self.current = record
            self._close(record)
        else:
            existing = self.open.get(iteration)
            if existing is not None:
                self._merge(existing, record)
                return
            if self.closed is not None and iteration <= self.closed:
                self.late += 1
                return
            self.current = self.open[iteration] = record
            if len(self.open) > OPEN:
                self._close(self.open.popitem(last=False)[1])
        if self.end is not None and self.end.state != "finished":
            self.end = None

    def _merge(self, current: Record, record: Record) -> None:
        values = current.values
        if _has_estimate(current, record):
            _put_aside(current, record, "loss", "evaluated")
        for name, value in record.values.items():
            existing = values.get(name)
            if existing is not None and existing != value and record.rank is None and not self.repeated:
                self.repeated = _key_of(current, name) == _key_of(record, name)
            if existing is None:
                values[name] = value
                if len(current.fields) < MAX_NAMES:
                    current.fields += tuple(f for f in record.fields if f.name == name)
                    current.raw += tuple(r for f, r in zip(record.fields, record.raw, strict=False) if f.name == name)
            elif self._is_of_whole(current, record, name):
                _put_aside(current, record, name, "engine")
            elif value > existing and (name == "step_time_s" or name.endswith("_bytes")):
                values[name] = value

    @staticmethod
    def _is_of_whole(current: Record, record: Record, name: str) -> bool:
        """Return whether a record states for the whole step what the step has of a part."""
        kinds = [next((f.kind for f in each.fields if f.name == name), None) for each in (current, record)]
        return kinds == ["part", "printed"]

    def close_steps(self) -> None:
        """Close all open steps in the order of their first lines."""
        while self.open:
            self._close(self.open.popitem(last=False)[1])

    def _close(self, record: Record) -> None:
        if self.first is None:
            self.first = record
        self.records += 1
        self.last = record
        if record.iteration is not None and (self.closed is None or record.iteration > self.closed):
            self.closed = record.iteration
        values = record.values
        total = values.pop("total_iterations", None)
        if total is not None and total < LARGEST_WHOLE:
            self.total = int(total)
        skipped = values.get("skipped_iterations")
        if skipped:
            self.skipped = (self.skipped or 0.0) + skipped
        elif skipped is not None and self.skipped is None:
            self.skipped = 0.0
        cumulative = values.get("skipped_total")
        if cumulative is not None:
            self.skipped_total = max(self.skipped_total or 0.0, cumulative)
        self.steps.note(record.fields)
        self.steps.add(values if self._sound(values) else measured(values))

    @staticmethod
    def _sound(values: dict[str, float]) -> bool:
        return all(value > 0.0 for value in values.values())

    def time(self, record: Record) -> None:
        values = {name: value for name, value in record.values.items() if value > 0.0}
        self.timers.add(values)
        if record.rank is not None:
            self.timers.spoke(record.rank, values)
        if record.low:
            for name, value in record.low.items():
                if len(self.timer_lows) < MAX_NAMES:
                    self.timer_lows[name] = min(value, self.timer_lows.get(name, value))

    def remember(self, record: Record) -> None:
        self.memory.add(record.values)
        if record.iteration is not None:
            self.memory_until = max(record.iteration, self.memory_until or 0)
        if len(self.memory_ranks) < MAX_RANKS:
            self.memory_ranks.add(record.rank)
        if record.rank is not None:
            self.memory.spoke(record.rank, record.values)

    def tell(self, arguments: dict[str, Any], *, dump: bool) -> None:
        """Add arguments; those of a dump override command lines and remarks."""
        if dump:
            self.arguments = {**self.arguments, **arguments} if not self.dumped else {**arguments, **self.arguments}
            self.dumped = True
            return
        for name, value in arguments.items():
            if len(self.arguments) < MAX_ARGUMENTS:
                self.arguments.setdefault(name, value)

    last: Record | None = None


def _differ(record: Record, current: Record) -> bool:
    """Return whether two records of a step differ in what both print, and not only in times of ranks."""
    values = current.values
    keys = {(field.name, field.key) for field in current.fields}
    printed = {field.name for field in record.fields if (field.name, field.key) in keys}
    shared = [name for name in record.values if name in values and name in printed and name not in _PROGRESS]
    results = [name for name in shared if not name.endswith(_OF_A_RANK)]
    is_same = all(record.values[name] == values[name] for name in results)
    if is_same and any(name.endswith("loss") for name in results):
        ratios = [_ratio(record.values[name], values[name]) for name in shared if name in _OF_ALL]
        return sum(ratio > FAR for ratio in ratios) > 1 or (
            record.iteration != 1 and max(ratios, default=1.0) > VERY_FAR
        )
    return any(abs(record.values[name] - values[name]) > SAME * abs(values[name]) for name in shared)


def _ratio(value: float, other: float) -> float:
    """Return the larger value divided by the smaller one, and 1 for placeholders."""
    return max(value, other) / min(value, other) if min(value, other) > 0.0 else 1.0


def _has_estimate(current: Record, record: Record) -> bool:
    """Return whether a step has the estimate of a loss, as nanoGPT prints it, and its own loss comes with its time."""
    is_timed = "step_time_s" in record.values and "step_time_s" not in current.values
    has_losses = "loss" in record.values and "loss" in current.values
    return is_timed and has_losses and _key_of(current, "loss") != _key_of(record, "loss")


def _key_of(record: Record, name: str) -> str | None:
    """Return the key under which a record states a value."""
    return next((field.key for field in record.fields if field.name == name), None)


def measured(values: dict[str, float]) -> dict[str, float]:
    """Remove placeholders: a loss or loss scale of -1, a time or throughput of 0."""
    return {
        name: value
        for name, value in values.items()
        if value > 0.0 or not (value <= _FLOORS.get(name, -1e400) or (value == -1.0 and "loss" in name))
    }


def _put_aside(current: Record, record: Record, name: str, of: str) -> None:
    """Replace the value of a part of a step by that of the whole; the former stays under the name `of`_`name`."""
    current.values |= {f"{of}_{name}": current.values[name], name: record.values[name]}
    current.fields = tuple(f._replace(name=f"{of}_{name}") if f.name == name else f for f in current.fields)
    own = [(f, raw) for f, raw in zip(record.fields, record.raw, strict=False) if f.name == name]
    current.fields += tuple(f for f, _ in own)
    current.raw += tuple(raw for _, raw in own)
