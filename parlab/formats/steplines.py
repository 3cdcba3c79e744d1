"""Step lines of trainers that name each quantity: a counter and cells in any order.

Sources: nanoGPT, nanochat, llm.c; torchtune/training/metric_logging.py; InternLM/train; verl/utils/tracking.py, slime,
OpenRLHF; fairseq/logging/progress_bar.py; mlx-lm/tuner/trainer.py; composer/loggers/console_logger.py; Lightning's and
tqdm's bars. All of them are read by the same rules, a dialect only names the format and the units that its keys omit.
The names of the quantities are in `names.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as default
from functools import lru_cache
from itertools import islice

from parlab.formats.bars import Bars
from parlab.formats.endings import ending
from parlab.formats.metric_fields import CLOCKS, HELD_OUT, metric_field
from parlab.formats.pairs import Pair, pairs
from parlab.formats.peel import peel, spliced
from parlab.formats.quantities import normal, to_float
from parlab.formats.records import Field, Kind, Record, unread
from parlab.formats.repeats import Repeats
from parlab.formats.sniff import Signs

_COUNTERS = (
    re.compile(
        r"(?i)(?:^|[\s|,\[({'\"/-])(?:global[_ ]?step|current_steps?|num_updates|iter(?:ation)?|step|perf|rollout)"
        r"['\"]?\s{0,4}[:=#]?\s{0,12}(?P<at>\d{1,15})(?:\s?/\s{0,8}(?P<total>\d{1,15}))?(?![\d.]|\s?(?:ms|s|sec|us|%|it)\b|\w)"
    ),
    re.compile(
        r"(?i)(?:^|[\s|,\[(])(?:batch|update)\s{0,4}[:=#]?\s{0,12}(?P<at>\d{1,15})(?:\s?/\s{0,8}(?P<total>\d{1,15}))?(?![\d.\w])"
    ),
    re.compile(r"\bProgress on:\s?train\s(?P<at>\d{1,15})(?:\.\d)?it/(?P<total>\d{1,15})(?:\.\d)?it\b"),  # Levanter
    re.compile(r"(?i)\bepoch\s\d{1,6}:?\s{1,12}(?P<at>\d{1,15})\s?/\s?(?P<total>\d{1,15})(?=\s)"),
)
_COUNTER_KEYS = frozenset({"step", "global_step", "iteration", "iter", "num_updates", "global step", "current_steps"})
MAX_FIELDS = 4_096
LARGEST_WHOLE = 2**53
_MEASURES = ("_s", "_per_s", "_per_s_per_gpu", "loss", "mfu", "flops_per_gpu", "_bytes")
_BLOCK = re.compile(
    r"\s*(?:\[epoch=(?P<epoch>\d{1,9})(?:/\d{1,9})?\])?\[batch=(?P<at>\d{1,15})(?:/(?P<total>\d{1,15}))?\]:\s*$"
)
_BLOCK_CELL = re.compile(r"\s{1,8}(?P<side>Train|Eval|Validation)\s(?P<key>[\w./ -]{1,120}?):\s(?P<value>\S{1,40})\s*$")


@dataclass(frozen=True)
class Dialect:
    """A trainer's step lines: patterns to recognise them, and fields of keys without a unit."""

    SIGNS: Signs
    fields: Mapping[str, Field] = default(default_factory=dict)
    seconds: re.Pattern[str] | None = None
    settings: Mapping[str, str] = default(default_factory=dict)
    """Key of a cell -> setting of the launch."""

    def read(self, lines: Iterable[str], /) -> Iterator[Record]:
        """Read step lines, bars and blocks; yield steps, timers in seconds, validation, metrics and the end."""
        parser = Parser(self)
        for line, rank, time, text in peel(lines):
            yield from parser.feed(line, rank, time, text)
        yield from parser.finish()

    def field(self, cell: Pair) -> Field:
        """Return the field of a cell."""
        stated = self.fields.get(cell.key)
        if stated is not None and not cell.unit:
            return stated._replace(key=cell.key)
        if self.seconds is not None and not cell.unit and self.seconds.search(cell.key):
            named = metric_field(cell.key.rpartition("/")[2], "s")._replace(key=cell.key)
            return named if named.name.endswith("_s") else named._replace(name=f"{named.name}_s")
        return metric_field(cell.key, cell.unit)


class Parser:
    """Reads the lines of one log."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.bars = Bars()
        self.block: tuple[int, re.Match[str]] | None = None
        self.cells: list[Pair] = []
        self.held_out: list[Pair] = []
        self.fields: dict[tuple[str, str], Field] = {}
        self.repeats = Repeats(self._parts)

    def feed(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read one line."""
        if self.block is not None and (cell := _BLOCK_CELL.match(text[:400])):
            side, key, value = cell.groups()
            (self.cells if side == "Train" else self.held_out).append(Pair(key, value, "", to_float(value)))
            return []
        if self.block is None and "%|" not in text and "[batch=" not in text:
            return self.repeats.read(line, rank, time, text)
        records = self.close()
        block = _BLOCK.match(text[:200]) if "[batch=" in text else None
        if block:
            self.block = (line, block)
            return records
        bar = self.bars.feed(line, rank, time, text)
        if bar is not None:
            return records + bar
        return records + self.repeats.read(line, rank, time, text)

    def _parts(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read a line of one or more records."""
        records: list[Record] = []
        for part in parts_of(text[:8_000]):
            records += self._line(line, rank, time, part) or _ended(line, rank, time, part)
        return records

    def close(self) -> list[Record]:
        """Return the steps of a block whose lines have ended."""
        if self.block is None:
            return []
        (line, head), self.block = self.block, None
        cells, held_out, self.cells, self.held_out = self.cells, self.held_out, [], []
        total = int(head["total"]) if head["total"] else None
        iteration = int(head["at"])
        records = self._records(line, None, None, cells, iteration, total) if cells else []
        if held_out:
            records += self._validation(line, None, held_out, iteration)
        for record in records:
            record.until = line + len(cells) + len(held_out)
        return records

    def finish(self) -> list[Record]:
        """Return what the end of the file completes."""
        return self.close() + self.bars.finish()

    def _line(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        text = text.rstrip("\r\n")
        counter = next((match for pattern in _COUNTERS if (match := pattern.search(text))), None)
        if counter is None:
            return self._summary(line, rank, time, text)
        # A counter in front of the cells is no cell; one among them is dropped by its key.
        rest = text[counter.end() :].lstrip(" :|-)]") if counter.start() < 60 else text
        cells = [cell for cell in pairs(rest) if cell.key.lower() not in _COUNTER_KEYS]
        if counter.start() < 60 and not cells:
            return []
        total = int(counter["total"]) if counter["total"] else None
        held_out = [cell for cell in cells if HELD_OUT.match(cell.key)]
        own = [cell for cell in cells if not HELD_OUT.match(cell.key)]
        if "alidation" in text[:200] and not any(cell.key == "loss" for cell in own):
            held_out, own = cells, []
        records = self._records(line, rank, time, own, int(counter["at"]), total) if own else []
        if held_out:
            records += self._validation(line, rank, held_out, int(counter["at"]))
        return records

    def _records(
        self, line: int, rank: int | None, time: str | None, cells: list[Pair], iteration: int, total: int | None
    ) -> list[Record]:
        """Return the step and its timers; [] if no cell is a measurement."""
        values: dict[str, float] = {}
        timers: dict[str, float] = {}
        fields: list[Field] = []
        raw: list[str] = []
        bad: list[Record] = []
        for cell in cells:
            field = self._field(cell)
            if cell.value is None:
                bad.append(unread(line, "not a finite number", f"{cell.key}: {cell.text}"))
                continue
            if field.name == "time_s" and cell.unit == "ms":
                field = field._replace(name="step_time_s")
            value = normal(cell.value, field.scale)
            if is_timer(field.name):
                timers[field.name.removesuffix("_s")] = value
            else:
                values.setdefault(field.name, value)
            fields.append(field)
            raw.append(cell.text)
        if not timers and not any(name.endswith(_MEASURES) for name in values):
            return bad if values else []
        if total is not None and total >= iteration:
            values["total_iterations"] = float(total)
        shown = tuple(fields), tuple(raw)
        step = Record("step", line, values, iteration, rank, time, *shown)
        return [step, *([Record("timers", line, timers, iteration, rank)] if timers else []), *bad]

    def _field(self, cell: Pair) -> Field:
        field = self.fields.get((cell.key, cell.unit))
        if field is None:
            field = self.dialect.field(cell)
            if len(self.fields) < MAX_FIELDS:
                self.fields[cell.key, cell.unit] = field
        return field

    def _validation(self, line: int, rank: int | None, cells: list[Pair], iteration: int | None) -> list[Record]:
        return _record("validation", line, rank, iteration, [(cell, self.dialect.field(cell)) for cell in cells])

    def _summary(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read a line without a counter that states a time, a rate or memory: figures of the launch."""
        cells = [(cell, self.dialect.field(cell)) for cell in pairs(text)]
        stated = [(cell, f) for cell, f in cells if f.name.endswith(_MEASURES) and (cell.unit or f.name != "loss")]
        names = self.dialect.settings
        settings = {
            names[cell.key]: int(cell.value)
            for cell, _ in cells
            if cell.key in names and cell.value is not None and 0 < cell.value < LARGEST_WHOLE
        }
        records = [Record("launch", line, data=settings, rank=rank)] if settings else []
        return records + _record("metrics", line, rank, None, stated, time)


@lru_cache(maxsize=8192)
def is_timer(name: str) -> bool:
    """Return whether a quantity is the time of a phase of a step."""
    return name.endswith("_s") and not name.endswith(("_per_s", "step_time_s")) and name not in CLOCKS


def _record(
    kind: Kind, line: int, rank: int | None, iteration: int | None, cells: list[tuple[Pair, Field]],
    time: str | None = None,
) -> list[Record]:  # fmt: skip
    """Return one record of the cells that are numbers; the others are unread."""
    good = [(cell, field) for cell, field in cells if cell.value is not None]
    bad = [unread(line, "not a finite number", f"{cell.key}: {cell.text}") for cell, _ in cells if cell.value is None]
    if not good:
        return bad
    values = {field.name: normal(cell.value or 0.0, field.scale) for cell, field in good}
    fields, raw = tuple(field for _, field in good), tuple(cell.text for cell, _ in good)
    return [Record(kind, line, values, iteration, rank, time, fields, raw), *bad]


def _ended(line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
    end = ending(text)
    return [Record("end", line, data=end, rank=rank, time=time)] if end else []


_GB = 1e9  # Composer's memory monitor divides by 10**9.
_COMPOSER = {
    "memory/allocated_mem": Field("allocated_bytes", "", "GB", _GB),
    "memory/active_mem": Field("active_bytes", "", "GB", _GB),
    "memory/inactive_mem": Field("inactive_bytes", "", "GB", _GB),
    "memory/reserved_mem": Field("reserved_bytes", "", "GB", _GB),
    "memory/peak_allocated_mem": Field("max_allocated_bytes", "", "GB", _GB),
    "memory/peak_active_mem": Field("max_active_bytes", "", "GB", _GB),
    "memory/peak_reserved_mem": Field("max_reserved_bytes", "", "GB", _GB),
    "time/train": Field("elapsed_s", "", "h", 3600.0),
    "time/val": Field("elapsed_validation_s", "", "h", 3600.0),
    "time/total": Field("elapsed_total_s", "", "h", 3600.0),
    "throughput/samples_per_sec": Field("samples_per_s", "", "samples/s"),
    "throughput/tokens_per_sec": Field("tokens_per_s", "", "tokens/s"),
    "throughput/batches_per_sec": Field("steps_per_s", "", "batches/s"),
}  # fmt: skip

# Name -> dialect; `pairs` is also the fallback for files in no other format.
DIALECTS: dict[str, Dialect] = {
    "nanogpt": Dialect(
        (
            (re.compile(r"^step\s{1,8}\d+(?:/\d+)?(?: \([\d.]+%\))? \| (?:train )?loss"), 10),
            (re.compile(r"^iter \d+: loss [\d.]+, time [\d.]+ms"), 10),
            (re.compile(r"(?i)^step \d+(?: \||:) (?:val(?:idation)? (?:bpb|loss)|train loss)"), 6),
        )
    ),
    "torchtune": Dialect(
        (
            (re.compile(r"^Step \d+ \| loss:\S+ "), 10),
            (re.compile(r"\btorchtune\.utils\."), 4),
        ),
        fields={
            "peak_memory_active": Field("max_active_bytes", "", "GiB", 2**30),
            "peak_memory_alloc": Field("max_allocated_bytes", "", "GiB", 2**30),
            "peak_memory_reserved": Field("max_reserved_bytes", "", "GiB", 2**30),
        },
    ),
    "internlm": Dialect(
        (
            (re.compile(r"record_current_batch_training_metrics"), 10),
            (re.compile(r"\btgs \(tokens/gpu/second\)="), 10),
        ),
        seconds=re.compile(r"^(?:fwd_bwd_time|bwd_time|fwd_time)$"),
    ),
    "verl": Dialect(
        (
            (re.compile(r"\bstep:\d+ - [\w/@.]+:[\d.e+-]+ - "), 10),
            (re.compile(r"\b(?:perf|step|rollout) \d+: \{'[\w]+/"), 10),
            (re.compile(r"'(?:perf|rollout)/\w+': "), 4),
        ),
        seconds=re.compile(r"^perf/\w{1,60}_time$"),
    ),
    "fairseq": Dialect(
        (
            (re.compile(r"\| (?:train_inner|train) \| (?:epoch \d+|\{\"epoch\")"), 10),
            (re.compile(r"\bnum_updates=\d+, lr="), 6),
        ),
        fields={"ups": Field("steps_per_s", "", "updates/s"), "train_wall": Field("train_wall_s", "", "s"),
                "wall": Field("wall_s", "", "s"), "gb_free": Field("free_bytes", "", "GB", 2**30)},
    ),
    "colossalai": Dialect(
        (
            (re.compile(r"\bavg_duration: [\d.]+, avg_throughput: "), 40),
            (re.compile(r"\bTFLOPS per GPU by Megatron: "), 40),
            (re.compile(r"\bBooster init max CUDA memory: "), 40),
            (re.compile(r"\bcolossalai - colossalai - [A-Z]+: "), 10),
        ),
        # The duration of all measured steps of a rank, on average.
        fields={"avg_duration": Field("measured_duration_s", "", "s"),
                "avg_throughput": Field("samples_per_s", "", "samples/s"),
                "TFLOPS per GPU by Megatron": Field("megatron_flops_per_gpu", "", "TFLOP/s", 1e12)},
        settings={"world size": "world_size", "dp_world_size": "data_parallel_size"},
    ),
    "mlx-lm": Dialect(
        (
            (re.compile(r"^Iter \d+: (?:Train|Val) loss [\d.]+, "), 10),
        ),
    ),
    "composer": Dialect(
        (
            (re.compile(r"^(?:\[epoch=\d+(?:/\d+)?\])?\[batch=\d+(?:/\d+)?\]:"), 10),
            (re.compile(r"^\s+Train (?:memory|throughput|time|loss|metrics|trainer)/\w+"), 2),
        ),
        fields=_COMPOSER,
    ),
    "bars": Dialect(
        (
            (re.compile(r"\d%\|[^|]{0,300}\|\s{0,8}[\d.]{1,15}[kMG]?/[\d.]{1,15}[kMG]? \[\d\d?:\d\d"), 1),
            (re.compile(r"(?:Epoch|Episode|Training)[^|%]{0,40}\d%\|[^|]{0,300}\|\s{0,8}\d+/\d+ \[\d\d?:\d\d"), 2),
        )
    ),
    "pairs": Dialect(()),
}  # fmt: skip


def parts_of(text: str) -> list[str]:
    """Split a text before the next mention of its counter: steps of several ranks without a line feed between them."""
    counter = next((match for pattern in _COUNTERS if (match := pattern.search(text))), None)
    if counter is None:
        return [text]
    head = counter[0][: counter.start("at") - counter.start()]
    again = re.compile(rf"(?<![A-Za-z_/]){re.escape(head.strip(' |,[({-'))}\s{{0,12}}(?=\d)")
    return spliced(again, text) if len(text) > 2 * len(counter[0]) and head.strip() else [text]


def counter_of(text: str) -> int | None:
    """Return the number after `step`, `iter` or a similar word; None if the line has none."""
    match = next((match for pattern in _COUNTERS if (match := pattern.search(text[:8_000]))), None)
    return int(match["at"]) if match else None


def is_readable(head: Iterable[str]) -> bool:
    """Return whether lines of no known format contain steps or several measurements that `pairs` can read."""
    measured = 0
    for record in DIALECTS["pairs"].read(islice(head, 2_000)):
        measured += record.kind == "metrics"
        if record.kind == "step" or measured > 1:
            return True
    return False
