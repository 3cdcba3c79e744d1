"""Progress bars of tqdm and Lightning: ` 92%|####  | 11/12 [03:32<00:19, 19.50s/it, loss=2.1]`.

A bar of the training gives steps: its position or the `global_step` that it states, the rate that tqdm smooths over
recent steps, the elapsed time and the cells. Only the last redraw of a position counts. A bar of other work (loading,
evaluation, generation) that reaches its end gives a timer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from parlab.formats.grammar.metric_fields import HELD_OUT, metric_field
from parlab.formats.grammar.pairs import Pair, pairs
from parlab.formats.grammar.quantities import BY_NAME
from parlab.formats.grammar.records import Field, Record
from parlab.formats.grammar.repeats import Repeats
from parlab.formats.grammar.stepcells import LARGEST_WHOLE, record_of
from parlab.formats.grammar.units import duration_seconds, slug, to_float

_BAR = re.compile(
    r"(?P<share>\d{1,3})%\|[^|]{0,300}\|\s{0,8}(?P<at>[\d.]{1,15})(?P<si>[kMG]?)"
    r"/(?P<total>[\d.]{1,15})(?P<total_si>[kMG]?)\s\[(?P<elapsed>[\d:]{4,12})<[\d:?]{1,12}(?: days?, [\d:]{4,12})?"
    r",\s{1,4}(?:(?P<rate>[\d.]{1,12}|\?)\s?(?P<unit>s/\w{1,12}|\w{1,12}/s))?(?P<cells>[^\]]{0,4000})"
)
# The name of another bar, behind one of the same line.
_NEXT = re.compile(r"\][A-Z][^|%\[\]]{0,100}\d{1,3}%\|")
# The end of a bar without a total, over which the bar in front of it was drawn: `]oader 0: 51it [00:20, 2.53it/s]`.
_OVERWRITTEN = re.compile(r"\d\w{1,12} \[[\d:]{4,12},\s{1,4}[\d.?]{1,12}\s?(?:s/\w{1,12}|\w{1,12}/s)\]")
_LEAST = 20
"""Fewer characters are no bar."""
_MAX_NAME = 120
_EARLIER = re.compile(r"[|\r\n%]")
# `1|250|Loss: 1.08:  5%|` of torchtune: epoch, step of all epochs and loss.
_COUNTED = re.compile(r"(?P<epoch>\d{1,9})\|(?P<step>\d{1,15})\|(?P<cells>Loss: [^|%]{1,60}?):?\s{0,4}$")
# `Epoch 0/9 ━━━╸━━━ 12/500 0:00:05 • 0:03:54 2.05it/s train_loss: 1.99` of Rich.
_RICH = re.compile(
    r"(?P<name>[^━╸╺\r\n%]{0,120}?)\s{0,4}[━╸╺]{3,300}[━╸╺ ]{0,300}\s(?P<at>\d{1,15})/(?P<total>\d{1,15})\s{1,4}"
    r"(?P<elapsed>\d[\d:]{3,11})\s•\s(?P<left>[\d:-]{4,12})\s{1,4}(?P<rate>[\d.]{1,12})(?P<unit>it/s|s/it)"
    r"(?P<cells>[^\]]{0,4000})"
)
# OpenRLHF's bar of a rollout and its training; the bar of the training alone stands within it.
_ROLLOUTS = re.compile(r"Episode \[\d")
# Ultralytics' row in front of a bar: epoch, memory, losses, and the size of the images.
_ROW = re.compile(
    r"(?P<epoch>\d{1,9})/\d{1,9}\s{1,20}(?P<memory>\d{1,6}(?:\.\d{1,6})?)G(?P<others>(?:\s{1,20}[\d.]{1,12}){2,12})"
)
# The names above such a row, and a row of an evaluation below the names in front of its bar.
_NAMES = re.compile(r"\s{4,40}[A-Za-z]\w{0,30}(?:\s{1,20}[A-Za-z][\w()%.@-]{0,30}){3,20}\s*")
_SCORES = re.compile(r"\s{4,40}(?P<of>[A-Za-z]\S{0,40})(?P<others>(?:\s{1,20}[\d.]{1,12}){3,20})\s*")
# `step 10/388 completed (loss: 1.23):` in front of a bar.
_IN_FRONT = re.compile(r"[(\[,]\s?(\w{0,20}loss\s?[:=]\s?[\d.eE+-]{1,20})\s?[)\],]")
# OpenRLHF's bar of the batches of one step, as far as other lines state the steps.
_BATCHES = re.compile(r"Train epoch \[\d")
_DIGIT = re.compile(r"\d")
_NAMED = re.compile(r"[A-Za-z]\W{1,4}\d")
# A mean in front of a bar of an epoch, `ppl 5.4 loss 1.69 lr 3.3e-04:`.
_NAMED_NUMBER = r"[A-Za-z][\w/]{1,30}[ =:]{1,2}[\d.eE+-]{1,20}"
_CELLS = re.compile(rf"(?:{_NAMED_NUMBER}[ ,|]{{1,3}}){{1,8}}{_NAMED_NUMBER}")
_CELL_SIGN = re.compile(r"(?<![\w.])([A-Za-z][\w/]{1,30})[ =:]{1,2}(?=[\d.])")
MAX_HELD = 256
STATED = "bar of a step that another line states"
AGAIN = "evaluation printed again"
_ROUNDED = 0.006
"""Share by which a number of three digits may differ from its exact value."""
_POWERS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_EPOCH = re.compile(r"(?i)\b(?:epoch|episode)\D{0,4}(\d{1,9})")
_TRAINING = re.compile(r"(?i)epoch|episode|train|\biter|\bstep|progress|loss\b|^[\W\d]*$")
_OTHER = re.compile(
    r"(?i)eval|valid|\btest|predict|\bmap\b|load|download|generat|token|shard|(?<!batches )process|sampl|infer|sanity"
    r"|fetch|profil|warm.?up|bench"
)


_ELAPSED = Field("elapsed_s", "elapsed", "h:mm:ss", kind="cumulative")
_NO_CELLS = Record("metrics", 0)
# A redraw repeats these texts.
_elapsed = lru_cache(maxsize=1024)(duration_seconds)


class _Name(NamedTuple):
    """What stands in front of a bar."""

    text: str
    is_training: bool
    epoch: int | None
    is_rollout: bool
    has_batches: bool
    memory: str
    """GPU memory in GB of the row in front of the bar; empty for none."""
    others: tuple[str, ...] = ()
    """The other numbers of this row."""


@lru_cache(maxsize=1024)
def _name(front: str) -> _Name:
    """Read what stands in front of a bar, behind an earlier bar of the line."""
    text = _EARLIER.split(front)[-1].strip(" :\t")
    row = _ROW.fullmatch(text)
    if row is not None:
        text = f"Epoch {row['epoch']}"
    epoch = _EPOCH.search(text)
    is_training = _TRAINING.search(text) is not None and _OTHER.search(text) is None
    is_rollout, has_batches = (pattern.match(text) is not None for pattern in (_ROLLOUTS, _BATCHES))
    number = int(epoch[1]) if epoch else None
    memory, others = (row["memory"], tuple(row["others"].split())) if row is not None else ("", ())
    return _Name(text, is_training, number, is_rollout, has_batches, memory, others)


def is_other_work(name: str) -> bool:
    """Return whether a bar with this name is of work beside the training, such as `Map`."""
    return _OTHER.search(name) is not None


@lru_cache(maxsize=64)
def _rate_field(unit: str) -> Field:
    return Field("step_time_s", "s/it" if unit.startswith("s/") else "it/s", unit, kind="smoothed")


def _as_bar(text: str) -> str:
    """Write a bar of Rich as tqdm writes it; other texts become empty."""
    match = _RICH.match(text[:6_000])
    if match is None:
        return ""
    name, at, total, elapsed, left, rate, unit, cells = match.groups()
    share = min(100, 100 * int(at) // max(1, int(total)))
    left = left if left[0].isdigit() else "?"
    return f"{name} {share}%|#| {at}/{total} [{elapsed}<{left}, {rate}{unit}, {cells.strip()}"


def _count(text: str, si: str) -> int:
    if not si and text.isdecimal() and text.isascii():
        return int(text)
    value = to_float(text)
    return 0 if value is None or value * _POWERS[si] >= 2**53 else round(value * _POWERS[si])


# The total of a bar stays the same.
_total = lru_cache(maxsize=64)(_count)


def _named(cell: Pair) -> Field:
    return metric_field(cell.key, cell.unit)


def _cells(field_of: Callable[[Pair], Field], line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
    """Return the cells behind the rate of a bar as one record, and those of held-out data as another."""
    cells: dict[str, tuple[Pair, Field]] = {}
    for cell in pairs(text):
        if cell.key != "v_num":
            field = field_of(cell)
            cells.setdefault(field.name, (cell, field))
    own = [(cell, field) for cell, field in cells.values() if not HELD_OUT.match(cell.key)]
    held_out = [(cell, field) for cell, field in cells.values() if HELD_OUT.match(cell.key)]
    return record_of("metrics", line, rank, None, own, time) + record_of("validation", line, rank, None, held_out, time)


def _global_step(position: int, text: str) -> int:
    """Return the step of all epochs that a bar states, or its position where `2e+3` is rounded and agrees."""
    value = to_float(text)
    if value is None or not 0 <= value < LARGEST_WHOLE:
        return position
    return position if "e" in text.lower() and abs(position - value) <= _ROUNDED * value else int(value)


def _begins_again(previous: Record, record: Record) -> bool:
    """Return whether a bar stands before a position or a time that it has passed, as that of another launch does."""
    before, elapsed = previous.values.get("elapsed_s"), record.values.get("elapsed_s")
    is_earlier = before is not None and elapsed is not None and elapsed < before
    return is_earlier or (record.iteration or 0) < (previous.iteration or 0)


def _is_redraw(previous: Record, record: Record) -> bool:
    """Return whether a bar shows the position before it again, and not that of another launch."""
    return previous.iteration == record.iteration and not _begins_again(previous, record)


def _names(text: str) -> list[str]:
    """Return the names of columns that a line states; none for any other line."""
    is_header = text.strip().count("  ") > 1 and _NAMES.fullmatch(text[:400]) is not None
    return [name.strip("()") for name in text.split()] if is_header else []


def _columns(names: Sequence[str], numbers: tuple[str, ...]) -> str:
    """Return the last columns of a row as cells."""
    own = names[-len(numbers) :] if len(names) > len(numbers) else []
    return "".join(f", {name}: {number}" for name, number in zip(own, numbers, strict=bool(own)))


class Bars:
    """Reads bars; a position is yielded when the bar leaves it."""

    def __init__(self, field_of: Callable[[Pair], Field] = _named) -> None:
        """`field_of` gives the field of a cell behind a bar."""
        self.field_of = field_of
        self.held: dict[tuple[int | None, str], Record] = {}
        self.first_epoch: int | None = None
        self.total = 0
        self.has_rollouts = False
        self.is_of_batches: bool | None = None
        """Whether a bar counts the batches of a step: unknown until a line states a step, or many were drawn."""
        self.draws_batches = False
        self.batches: list[Record] = []
        self.dropped: list[Record] = []
        """Positions that are no steps, since other lines state the steps."""
        self.stated: int | None = None
        """The last position that other lines state."""
        self.drawn: Record | None = None
        self.held_out: tuple[tuple[Field, ...], tuple[str, ...]] | None = None
        """The last figures on held-out data."""
        self.cells = Repeats(partial(_cells, field_of))
        self.names: list[str] = []
        """The names of the columns of rows in front of bars."""
        self.scores: list[str] = []
        """The names of the columns below the bar of an evaluation."""
        self.full: tuple[int, str] | None = None
        """The line of the last bar, and the text in front of it, if it was full."""
        self.rounds = 0
        self.behind = ""
        """What stands behind the last bar in its line, if it has a number with a name."""
        self.has_scores = False
        """Whether the first row below the names of an evaluation has been read: others are of a class."""

    def feed(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record] | None:
        """Read one line or redraw; None for a text without a bar."""
        if "%|" not in text:
            text = _as_bar(text) if " • " in text else ""
        match = _BAR.search(text[:6_000]) if text else None
        if match is None:
            return None
        records = self._bar(line, rank, time, text, match)
        self.behind = ""
        if len(text) - match.end() > _LEAST:
            behind = text[match.end() :]
            if _NEXT.match(behind) is not None:
                records += self.feed(line, rank, time, behind) or []
            elif _OVERWRITTEN.search(behind) is not None:
                records.append(Record("event", line, data="bar of other work"))
            elif _NAMED.search(behind) is not None:
                self.behind = behind.removeprefix("]")
        return records

    def _bar(self, line: int, rank: int | None, time: str | None, text: str, match: re.Match[str]) -> list[Record]:
        printed = match.groups()
        begin = match.start()
        name = _name(text[begin - _MAX_NAME if begin > _MAX_NAME else 0 : begin])
        if name.text.startswith("Loss") and (counted := _COUNTED.search(text, 0, begin)):
            return self._counted(line, rank, time, printed, counted)
        if not name.is_training and "loss" in printed[8] and not is_other_work(name.text):
            name = name._replace(is_training=True)
        if self._is_beside(name):
            scores = _names(f"    {name.text}")
            if scores:
                self.scores, self.has_scores = scores, False
            return self._other(line, rank, "validation" if scores else name.text, match)
        total = _total(printed[3], printed[4])
        if total < self.total:
            return [Record("event", line, data="bar within a step")]
        if name.memory or "loss" in name.text:
            printed = (*printed[:8], self._in_front(name) + printed[8])
        records = self._step(line, rank, time, printed, total, name.epoch)
        if not records:
            return [Record("event", line, data="bar without a rate")]
        self.total = total
        self._round(line, records[0], name.text)
        if self._is_stated(records[0]):
            return [Record("event", line, data=STATED), *records[1:]]
        previous = self.held.get((rank, ""))
        self.held[rank, ""] = records[0]
        left = self._left(previous, records[0])
        return (self._hold(left) if name.has_batches and self.is_of_batches is None else left) + records[1:]

    def _in_front(self, name: _Name) -> str:
        """Return what stands in front of a bar as cells."""
        if name.memory:
            return f", GPU memory: {name.memory}GB{_columns(self.names, name.others)}"
        if (cells := _IN_FRONT.search(name.text)) is not None:
            return f", {cells[1]}"
        cells = _CELLS.search(name.text)
        return ", " + _CELL_SIGN.sub(r"\1: ", cells[0]) if cells is not None else ""

    def once(self, record: Record) -> Record:
        """Return an event for figures on held-out data that a line or bar repeats until the next evaluation."""
        if record.kind != "validation":
            return record
        previous, self.held_out = self.held_out, (record.fields, record.raw)
        return Record("event", record.line, data=AGAIN) if previous == self.held_out else record

    @property
    def has_steps(self) -> bool:
        """Whether lines or bars have stated a step."""
        return self.stated is not None or self.drawn is not None

    def _round(self, line: int, record: Record, text: str) -> None:
        """Count the steps on where each line shows the full bar of another round, with other numbers in front of it."""
        if record.iteration != self.total or "epoch" in record.values:
            self.full = None
            return
        before, self.full = self.full, (line, text)
        if before is not None and before[0] != line and before[1] != text and _DIGIT.search(text):
            self.rounds += 1
        if self.rounds:
            record.iteration = self.total * (self.rounds + 1)
            del record.values["total_iterations"]

    def row(self, line: int, text: str) -> list[Record] | None:
        """Read the names of columns, or a row of an evaluation below its names; None for any other text."""
        if text[:4] != "    ":
            return None
        if (row := _SCORES.fullmatch(text[:400])) is None or not self.scores:
            self.names = _names(text) or self.names
            return None
        if self.has_scores:
            return [Record("event", line, data="row of a class")]
        records = _cells(self.field_of, line, None, None, _columns(self.scores, tuple(row["others"].split())))
        self.has_scores = bool(records)
        for record in records:
            record.kind = "validation"
        return records or None

    @staticmethod
    def _left(previous: Record | None, record: Record) -> list[Record]:
        """Return the position that a bar has left; one that it draws again is no position."""
        if previous is None:
            return []
        return [Record("event", previous.line, data="bar drawn again")] if _is_redraw(previous, record) else [previous]

    def _is_beside(self, name: _Name) -> bool:
        """Return whether a bar is of work within or beside the steps that other bars or lines count."""
        if name.is_rollout:
            self.has_rollouts = True
            self.step_stated()
        self.draws_batches = self.draws_batches or name.has_batches
        if not name.is_training or self.has_rollouts > name.is_rollout:
            return True
        return name.has_batches and self.is_of_batches is True

    def _hold(self, records: list[Record]) -> list[Record]:
        """Hold back what may be batches of a step; return all of it once no line states a step for long."""
        self.batches += records
        if len(self.batches) <= MAX_HELD:
            return []
        self.is_of_batches = False
        records, self.batches = self.batches, []
        return records

    def step_stated(self) -> None:
        """Drop what was held back, as another line or the bar of the rollouts states a step and its time."""
        if self.is_of_batches is None and self.draws_batches:
            self.is_of_batches = True
            self.dropped = [*self.batches, *self.held.values()]
            self.batches.clear()
            self.held.clear()

    def finish(self) -> list[Record]:
        """Return the last positions."""
        held, self.held = self.batches + list(self.held.values()), {}
        self.batches = []
        return self.beside() + held

    def beside(self) -> list[Record]:
        """Return the events of positions that are no steps."""
        dropped, self.dropped = self.dropped, []
        return [Record("event", record.line, data=STATED) for record in dropped]

    def _step(
        self, line: int, rank: int | None, time: str | None, printed: Sequence[str], total: int, epoch: int | None
    ) -> list[Record]:
        """Return the step of a position, and the figures on held-out data; [] without a rate, a time or a loss."""
        _, at, si, _, _, time_so_far, rate, unit, cells = printed
        records = self.cells.read(line, rank, None, cells.lstrip(", ")) if cells else []
        own = records.pop(0) if records and records[0].kind == "metrics" else _NO_CELLS
        stated = own.values
        values: dict[str, float] = {}
        fields: tuple[Field, ...] = ()
        raw: tuple[str, ...] = ()
        # tqdm smooths the rate, so a step time that the trainer states replaces it.
        if "step_time_s" not in stated:
            seconds = to_float(rate) if rate else None
            if seconds:
                values["step_time_s"] = seconds if unit[0] == "s" and unit[1] == "/" else 1.0 / seconds
                fields, raw = (_rate_field(unit),), (rate,)
            elif rate or not any(name.endswith("loss") for name in stated):
                return []
        elapsed = _elapsed(time_so_far)
        if elapsed is not None and "elapsed_s" not in stated:
            values["elapsed_s"] = elapsed
            fields, raw = (*fields, _ELAPSED), (*raw, time_so_far)
        values |= stated
        iteration = self._numbered(values, own, _count(at, si), total, epoch)
        step = Record("step", line, values, iteration, rank, time, fields + own.fields, raw + own.raw)
        if not records:
            return [step]
        for record in records:
            record.iteration = iteration
        return [step, *map(self.once, records)]

    def _numbered(self, values: dict[str, float], own: Record, position: int, total: int, epoch: int | None) -> int:
        """Return the step of a position in all epochs; add the epoch and the steps of all of them to the values."""
        iteration = position
        if epoch is not None:
            self.first_epoch = epoch if self.first_epoch is None else min(self.first_epoch, epoch)
            iteration += (epoch - self.first_epoch) * total
            values["epoch"] = float(epoch)
        is_of_all = epoch is None
        if "global_step" in values:
            texts = zip(own.fields, own.raw, strict=True)
            iteration = _global_step(position, next(text for field, text in texts if field.name == "global_step"))
            # The bar of an epoch has the length of the training only in the first one, whose positions are the steps.
            is_of_all = is_of_all or position - iteration in (0, 1)
        if is_of_all:
            values["total_iterations"] = float(total)
        return iteration

    def _counted(
        self, line: int, rank: int | None, time: str | None, printed: Sequence[str], counted: re.Match[str]
    ) -> list[Record]:
        """Read a bar with the step of all epochs and cells in front of it."""
        epoch, step, cells = counted.groups()
        behind = (*printed[:8], ", ".join(part for part in (cells, printed[8].strip(" ,")) if part))
        records = self._step(line, rank, time, behind, 0, None)
        if not records:
            return []
        record = records[0]
        record.iteration = int(step)
        record.values["epoch"] = float(epoch)
        del record.values["total_iterations"]
        previous = self.held.get((rank, ""))
        self.held[rank, ""] = record
        return self._left(previous, record)

    def before(self, record: Record) -> list[Record]:
        """Return the last positions that belong in front of a step of another line: those before it, or, if its count
        begins again, all. A position whose time that line states is dropped, as a bar only smooths it."""
        iteration = record.iteration
        is_timed = "step_time_s" in record.values
        if is_timed:
            self.step_stated()
        if iteration is None or (self.draws_batches and self.is_of_batches is None):
            return []
        self.stated = iteration if is_timed else iteration - 1
        if not self.held:
            return self.beside()
        if is_timed:
            self.dropped += [bar for bar in self.held.values() if bar.iteration == iteration]
            self.held = {key: bar for key, bar in self.held.items() if bar.iteration != iteration}
        return self.finish()

    def _is_stated(self, record: Record) -> bool:
        """Return whether another line has stated a position, or a later one, since the bar began."""
        previous, self.drawn = self.drawn, record
        if self.stated is None:
            return False
        if previous is not None and _begins_again(previous, record):
            self.stated = None
        return self.stated is not None and (record.iteration or 0) <= self.stated

    def _other(self, line: int, rank: int | None, name: str, match: re.Match[str]) -> list[Record]:
        """Return the time of other work, once its bar is full, and the cells behind it."""
        event = Record("event", line, data="bar of other work")
        elapsed = duration_seconds(match["elapsed"])
        if match["share"] != "100" or not elapsed or not name:
            return [event]
        timer = slug(re.sub(r"[\d/\[\]()]", "", name)).replace("_", "-")
        field = Field(timer, name, "h:mm:ss")
        own = Record("timers", line, {timer: elapsed}, rank=rank, fields=(field,), raw=(match["elapsed"],))
        cells = self.cells.read(line, rank, None, match["cells"].lstrip(", "))
        return [own, *(record for record in cells if BY_NAME.keys().isdisjoint(record.values)), event]
