"""Progress bars of tqdm and Lightning: ` 92%|####  | 11/12 [03:32<00:19, 19.50s/it, loss=2.1]`.

A bar of the training gives steps: its position, the rate that tqdm smooths over recent steps, the elapsed time and the
cells after the rate. Only the last redraw of a position counts. A bar of other work (loading, evaluation, generation)
that reaches its end gives a timer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from parlab.formats.grammar.metric_fields import metric_field
from parlab.formats.grammar.pairs import Pair, pairs
from parlab.formats.grammar.quantities import BY_NAME
from parlab.formats.grammar.records import Field, Record
from parlab.formats.grammar.repeats import Repeats
from parlab.formats.grammar.units import duration_seconds, normal, slug, to_float

_BAR = re.compile(
    r"(?P<share>\d{1,3})%\|[^|]{0,300}\|\s{0,8}(?P<at>[\d.]{1,15})(?P<si>[kMG]?)"
    r"/(?P<total>[\d.]{1,15})(?P<total_si>[kMG]?)\s\[(?P<elapsed>[\d:]{4,12})<[\d:?]{1,12}(?: days?, [\d:]{4,12})?"
    r",\s{1,4}(?P<rate>[\d.]{1,12}|\?)\s?(?P<unit>s/\w{1,12}|\w{1,12}/s)(?P<cells>[^\]]{0,4000})"
)
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
_OWN = frozenset({"step_time_s", "elapsed_s"})
_POWERS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_EPOCH = re.compile(r"(?i)\b(?:epoch|episode)\D{0,4}(\d{1,9})")
_TRAINING = re.compile(r"(?i)epoch|episode|train|\biter|\bstep|progress|loss\b|^[\W\d]*$")
_OTHER = re.compile(
    r"(?i)eval|valid|\btest|predict|\bmap\b|load|download|generat|token|shard|(?<!batches )process|sampl|infer|sanity"
    r"|fetch|profil|warm.?up|bench"
)


_ELAPSED = Field("elapsed_s", "elapsed", "h:mm:ss", kind="cumulative")
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
def _head(unit: str) -> tuple[Field, ...]:
    """Return the fields of rate and elapsed time."""
    return Field("step_time_s", "s/it" if unit.startswith("s/") else "it/s", unit, kind="smoothed"), _ELAPSED


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
    """Return the cells behind the rate of a bar as one record."""
    values: dict[str, float] = {}
    fields: list[Field] = []
    raw: list[str] = []
    for cell in pairs(text):
        field = field_of(cell)
        if cell.value is not None and field.name not in values and cell.key != "v_num":
            fields.append(field)
            raw.append(cell.text)
            values[field.name] = normal(cell.value, field.scale)
    return [Record("metrics", line, values, None, rank, time, tuple(fields), tuple(raw))] if fields else []


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
        behind = text[match.end() + 1 :]
        self.behind = behind if _NAMED.search(behind) and "%|" not in behind else ""
        printed = match.groups()
        begin = match.start()
        name = _name(text[begin - _MAX_NAME if begin > _MAX_NAME else 0 : begin])
        if name.text.startswith("Loss") and (counted := _COUNTED.search(text, 0, begin)):
            return self._counted(line, rank, time, printed, counted)
        if "loss" in name.text and (cells := _IN_FRONT.search(name.text)) is not None:
            printed = (*printed[:8], f", {cells[1]}{printed[8]}")
        elif "loss" in name.text and (cells := _CELLS.search(name.text)) is not None:
            named = _CELL_SIGN.sub(r"\1: ", cells[0])
            printed = (*printed[:8], f", {named}{printed[8]}")
        if name.memory:
            printed = (*printed[:8], f", GPU memory: {name.memory}GB{_columns(self.names, name.others)}{printed[8]}")
        if not name.is_training and "loss" in printed[8] and not is_other_work(name.text):
            name = name._replace(is_training=True)
        if self._is_beside(name):
            scores = _names(f"    {name.text}")
            if scores:
                self.scores, self.has_scores = scores, False
            return self._other(line, rank, "validation" if scores else name.text, match)
        total = _total(printed[3], printed[4])
        rate = to_float(printed[6])
        if not rate or total < self.total:
            return [Record("event", line, data="bar without a rate" if not rate else "bar within a step")]
        self.total = total
        record = self._step(line, rank, time, printed, (rate, total, name.epoch))
        self._round(line, record, name.text)
        if self._is_stated(record):
            return [Record("event", line, data=STATED)]
        previous = self.held.get((rank, ""))
        self.held[rank, ""] = record
        left = self._left(previous, record)
        return self._hold(left) if name.has_batches and self.is_of_batches is None else left

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
        self, line: int, rank: int | None, time: str | None, printed: Sequence[str],
        progress: tuple[float, int, int | None],
    ) -> Record:  # fmt: skip
        rate, total, epoch = progress
        _, at, si, _, _, time_so_far, rate_text, unit, cells = printed
        values = {"step_time_s": rate if unit[0] == "s" and unit[1] == "/" else 1.0 / rate}
        elapsed = _elapsed(time_so_far)
        fields: tuple[Field, ...] = _head(unit)
        raw: tuple[str, ...] = (rate_text, time_so_far)
        if elapsed is None:
            fields, raw = fields[:1], raw[:1]
        else:
            values["elapsed_s"] = elapsed
        for record in self.cells.read(line, rank, None, cells.lstrip(", ")):
            if _OWN.isdisjoint(record.values):
                fields, raw = fields + record.fields, raw + record.raw
                values |= record.values
                continue
            # These cells repeat the rate or the time of the bar.
            beside = [
                (field, cell) for field, cell in zip(record.fields, record.raw, strict=True) if field.name not in values
            ]
            fields, raw = fields + tuple(field for field, _ in beside), raw + tuple(cell for _, cell in beside)
            for key, value in record.values.items():
                values.setdefault(key, value)
        iteration = _count(at, si)
        if epoch is not None:
            self.first_epoch = epoch if self.first_epoch is None else min(self.first_epoch, epoch)
            iteration += (epoch - self.first_epoch) * total
            values["epoch"] = float(epoch)
        else:
            values["total_iterations"] = float(total)
        return Record("step", line, values, iteration, rank, time, fields, raw)

    def _counted(
        self, line: int, rank: int | None, time: str | None, printed: Sequence[str], counted: re.Match[str]
    ) -> list[Record]:
        """Read a bar with the step of all epochs and cells in front of it."""
        epoch, step, cells = counted.groups()
        rate = to_float(printed[6])
        if not rate:
            return []
        behind = (*printed[:8], ", ".join(part for part in (cells, printed[8].strip(" ,")) if part))
        record = self._step(line, rank, time, behind, (rate, 0, None))
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
