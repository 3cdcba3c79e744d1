"""Hugging Face Trainer: trainer_state.json, and the dictionaries that its output holds.

Source: transformers/trainer.py, trainer_callback.py (TrainerState) 3.x to 5.x. `{'loss': ..., 'epoch': ...}` says no
step: the progress bar in front of it does, if there is one. `train_batch_size` of trainer_state.json is per device. Of
several nodes each prints `{'train_runtime': ...}`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import orjson

from parlab.formats.grammar.prefixes import peel, spliced
from parlab.formats.grammar.records import Ending, Field, Kind, Record, unread
from parlab.formats.grammar.repeats import Repeats
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.stepcells import StepCells
from parlab.formats.grammar.steplines import Dialect, about_launch
from parlab.formats.grammar.units import duration_seconds, slug, to_float
from parlab.formats.logs.bars import STATED, is_other_work
from parlab.formats.logs.huggingface_entries import entries, placed, quantity_name, state
from parlab.formats.logs.trainer_settings import banner_settings, trainer_setting

SIGNS: Signs = (
    (re.compile(r"\{'(?:train_runtime|train_loss|eval_loss|eval_runtime)': "), 30),
    (re.compile(r"\{'loss': [^{}]{1,400}'epoch': "), 20),
    (re.compile(r'^\s*"(?:log_history|is_local_process_zero|is_world_process_zero)": ?(?:\[|true|false)'), 30),
    (re.compile(r'^\s*\{.{0,2000}"log_history": ?\['), 60),
    (re.compile(r"^==\(\(====\)\)==  Unsloth"), 30),
    (re.compile(r"^(?:>> )?\*{5} Running (?:training|Evaluation) \*{5}"), 10),
    (re.compile(r"\[INFO\|trainer\.py:\d+\]"), 6),
    (re.compile(r"^\*{3,5} (?:train|eval|predict) metrics \*{3,5}"), 10),
    (re.compile(r'^\{"current_steps": \d+, "total_steps": \d+, "loss": '), 30),
)

MAX_STATE = 32 * 2**20
_DICT = re.compile(r"\{'[^{}]{1,4000}\}")
_BAR = re.compile(
    r"(?:([^|\r\n%\]]{0,60})\d%\|[^|]{0,300})?\|\s{0,4}(\d{1,15})/(\d{1,15}) \["
    r"(?:[\d:]{4,12}<[\d:?]{1,12},\s{1,4}([\d.]{1,12})(s/it|it/s)(?=[\],]))?"
)
_METRIC = re.compile(r"\s{1,4}(?:(train|eval|predict)_(\w{1,60}?)|epoch)\s{1,40}=\s{1,40}(\S{1,40})\s*$")
_JSON = re.compile(r'\{"current_steps"')
# A file of one JSON object; neither a dictionary that Python printed nor a line of trainer_log.jsonl.
_STATE = re.compile(r'[\ufeff \t]*\{\s*(?:"(?!current_steps")|$|\})')
# Of a notebook: the heading of its table, and what Unsloth's scripts print at the end.
_HEADING = re.compile(r"Step\tTraining Loss(?:\t[^\t\r\n]{1,60}){0,12}\s*$")
_USED = re.compile(r"([\d.]{1,20}) seconds used for training")
_RECENT = 64
# Behind a bar: the number of the step and its loss.
_BEHIND = re.compile(r"(?:s/it|it/s)\](\d{1,12}), (\d{1,6}\.\d{1,12})\s*$")
_LOSS, _EPOCHS = Field("loss", "loss"), Field("epoch", "epoch")
# Every rank says so before the engine's configuration is printed: after that it is another launch in the same file.
_BEGIN = re.compile(r"Initializing (?:torch distributed|TorchBackend)")


class Parser:
    """Reads the output line by line."""

    def __init__(self) -> None:
        self.script = StepCells(Dialect(()).field, {})
        self.repeats = Repeats(entries)
        self.settings: dict[str, Any] = {}
        self.step: int | None = None
        self.total = 0
        self.recent: deque[str] = deque(maxlen=_RECENT)
        self.summaries_seen: set[str] = set()
        self.stated: set[str] = set()
        """Keys of the block of metrics that this launch has stated."""
        self.begun = False
        self.rate: tuple[float, Field, str] | None = None
        """Step time that the last bar of the training shows, its field, and as printed."""
        self.bar_line = 0
        self.unused_bar: tuple[int, int] | None = None
        """Line and step of that bar; none once a step states its time, as later bars add nothing then."""
        self.is_timed = False
        self.epoch = 0.0
        self.is_first_epoch = True
        """Whether no entry of this launch has stated an earlier epoch."""
        self.bar_began_again = False
        """Whether the bar has begun again, which it may do before the first entry of another launch."""
        self.columns: tuple[str, ...] = ()
        """Columns of the table of a notebook that is being read."""
        self.placed: int | None = None
        """The step of the bar to which the last entry belongs."""
        self.has_bars: bool | None = None
        """Whether bars stand between the entries: unknown until a bar, or two entries without one."""
        self.held: list[Record] = []
        """An entry in front of the bar of its step: the bar before it is that of another entry, or of no step."""

    def feed(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read one line."""
        head = text[:20_000]
        released: list[Record] = []
        if "|" in head:
            for bar in _BAR.finditer(head):
                if not bar[1] or not is_other_work(bar[1]):
                    released += self._bar(line, int(bar[2]), int(bar[3]), bar[4], bar[5])
                    released += self._release()
            if (behind := _BEHIND.search(head)) is not None and self.rate is not None:
                return released + self._behind(line, rank, behind)
        held = self.held
        records = self._line(line, rank, time, text, head)
        # What was held in front of this line comes before what the line states.
        is_due = bool(records) and self.held is held
        return released + (self._release(is_due=True) if is_due else []) + records

    def _release(self, *, is_due: bool = False) -> list[Record]:
        """Return the entry that is held back: with the step of the bar behind it, or, once it is due, without one."""
        if not self.held or not (is_due or self._is_ahead()):
            return []
        records, self.held = self.held, []
        if self._is_ahead():
            self._place(records)
        elif self.step is None:
            self.has_bars = False
        return records

    def _is_ahead(self) -> bool:
        """Return whether the bar shows a step that no entry has."""
        return bool(self.step) and self.step != self.placed

    def _place(self, records: list[Record]) -> None:
        """Give an entry the step of the bar, and its rate unless the entry states the time of its step."""
        self.placed = self.step
        for record in records:
            record.iteration = self.step if record.kind != "unread" else None
        values = records[0].values
        self.is_timed, self.unused_bar = self.is_timed or "step_time_s" in values, None
        if self.total:
            values["total_iterations"] = float(self.total)
        if self.rate is not None:
            seconds, field, printed = self.rate
            if "step_time_s" in values:
                field = field._replace(name="bar_step_time_s")
            values[field.name] = seconds
            records[0].fields += (field,)
            records[0].raw += (printed,)
            records[0].also = (self.bar_line,)

    def _behind(self, line: int, rank: int | None, match: re.Match[str]) -> list[Record]:
        """Read `20, 2.2377` behind a bar: the step and its loss, as Unsloth's callback prints them."""
        record = Record("step", line, {"loss": float(match[2])}, int(match[1]), rank, None, (_LOSS,), (match[2],))
        step, self.step = self.step, record.iteration
        self._place([record])
        self.step = step
        return [*self._launch(line), record]

    def _line(self, line: int, rank: int | None, time: str | None, text: str, head: str) -> list[Record]:
        """Read one line without regard to its bars."""
        if head.startswith('{"current_steps"'):
            return [record for part in spliced(_JSON, head) for record in self._json(line, rank, part)]
        if "{'" in head:
            records = [record for match in _DICT.finditer(head) for record in self._dict(line, rank, match[0])]
            if records:
                return records
        setting = trainer_setting(head[:300])
        if setting is None and " = " in head and "|" in head:
            setting = banner_settings(head[:300])
        if setting is not None:
            self.settings.update(setting)
            self.total = setting.get("max_steps", self.total)
            return []
        match = _METRIC.match(head[:300])
        if match:
            return self._metric(line, rank, match)
        if "\t" in head:
            return self._row(line, head.rstrip("\r\n")[:2_000])
        if head[:1].isdigit() and (used := _USED.match(head)) and (seconds := to_float(used[1])) is not None:
            field = Field("train_runtime_s", "used for training", "s")
            return [Record("metrics", line, {field.name: seconds}, rank=rank, fields=(field,), raw=(used[1],))]
        return self._other(line, rank, time, text)

    def _other(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read a command, the memory that a script states, or how the launch ended; detect the start of another."""
        if self.begun and _BEGIN.search(text[:400]):
            self.begun, self.bar_began_again = False, False
            return [self._another(line)]
        records = about_launch(line, rank, time, text)
        if not records and "emory" in text and "GB" in text:
            records = [record for record in self.script.summary(line, rank, time, text) if record.kind == "metrics"]
        return records

    def _another(self, line: int) -> Record:
        """Return the start of another launch."""
        if not self.bar_began_again:
            self.step, self.rate, self.total = None, None, 0
        self.bar_began_again = False
        self.is_timed, self.epoch, self.is_first_epoch = False, 0.0, True
        self.summaries_seen.clear()
        return Record("launch", line, data={}, opens=True)

    def _bar(self, line: int, at: int, total: int, rate: str | None, unit: str | None) -> list[Record]:
        """Track the progress bar of the training: the one with the planned total, or the largest total so far.

        Returns the step that it has left, if no entry belongs to it.
        """
        if total < self.total or at > total:
            return [Record("event", line, data="bar of other work")]
        is_redrawn = self.unused_bar is not None and at == self.unused_bar[1]
        left = [] if is_redrawn or self.held else self._last_bar()
        if is_redrawn and self.unused_bar is not None and self.unused_bar[0] != line:
            left = [Record("event", self.unused_bar[0], data="bar drawn again")]
        self.has_bars = True
        self.bar_began_again = self.bar_began_again or (self.step is not None and at < self.step)
        self.step, self.total = at, total
        number = to_float(rate) if rate else None
        self.bar_line = line
        if not number:
            self.rate, self.unused_bar = None, None
            return [*left, Record("event", line, data="bar without a rate")]
        seconds = number if unit == "s/it" else 1.0 / number
        self.rate = (seconds, Field("step_time_s", str(unit), kind="smoothed"), str(rate))
        if not self.is_timed:
            self.unused_bar = (line, at)
            return left
        self.unused_bar = None
        return [*left, Record("event", line, data=STATED)]

    def _last_bar(self) -> list[Record]:
        """Return the step of the last bar, if no entry states the time of its step or stands behind a bar."""
        if self.rate is None or self.unused_bar is None:
            return []
        seconds, field, printed = self.rate
        (line, step), self.unused_bar = self.unused_bar, None
        values = {field.name: seconds, "total_iterations": float(self.total)}
        return [Record("step", line, values, iteration=step, fields=(field,), raw=(printed,))]

    def _dict(self, line: int, rank: int | None, text: str) -> list[Record]:
        records = self.repeats.read(line, rank, None, text)
        if not records or records[0].kind == "unread":
            return records
        opened = self._starts_again(line, records[0])
        self.begun = True
        stated = records[0].iteration
        if stated is not None:
            self.step, self.total = stated, int(records[0].values.get("total_iterations", self.total))
        measured = records[0].kind
        is_early = stated is None and measured == "step" and self.has_bars is not False and not self._is_ahead()
        for record in records:
            record.iteration = None if record.kind == "unread" or is_early else self.step
        if measured == "step":
            if text in self.recent:
                return [Record("event", line, data="entry printed again")]
            self.recent.append(text)
            if is_early:
                opened += self._launch(line)
                earlier, self.held = self._release(is_due=True), records
                return earlier + opened
            self._place(records)
        elif measured == "metrics":
            records = self._last_bar() + records
        opened += self._launch(line) + records
        if measured == "metrics":
            self.summaries_seen.add("train")
            opened.append(Record("end", line, data=Ending("finished", "train_runtime was printed")))
        elif measured == "validation":
            self.summaries_seen.add("eval")
        return opened

    def _starts_again(self, line: int, entry: Record) -> list[Record]:
        """Return the start of another launch: an entry behind the end of one, or of an earlier epoch.

        Without a bar, so is one of the same whole epoch if a launch has no other entry: they follow at equal distances.
        """
        epoch = entry.values.get("epoch")
        if entry.kind != "step" or epoch is None:
            return []
        before, self.epoch = self.epoch, epoch
        is_same = self.step is None and self.is_first_epoch and epoch == before and epoch.is_integer() and epoch > 0
        if epoch >= before and not is_same and "train" not in self.summaries_seen:
            self.is_first_epoch = self.is_first_epoch and before in (0.0, epoch)
            return []
        opened = self._another(line)
        self.epoch = epoch
        return [opened]

    def _json(self, line: int, rank: int | None, text: str) -> list[Record]:
        """Read a line of LLaMA-Factory's trainer_log.jsonl."""
        try:
            data = orjson.loads(text)
        except orjson.JSONDecodeError:
            return [unread(line, "a JSON object that cannot be read", text)]
        return placed(line, rank, data)

    def _launch(self, line: int) -> list[Record]:
        settings, self.settings = self.settings, {}
        return [Record("launch", line, data=settings)] if settings else []

    def _row(self, line: int, text: str) -> list[Record]:
        """Read a row of the table of a notebook: the step, its loss, and results on held-out data."""
        if _HEADING.match(text):
            self.columns = tuple(text.split("\t")[1:])
            return []
        step, *cells = text.split("\t")
        if not step.isdecimal() or len(cells) != len(self.columns) or len(step) > 15:
            return []
        records: list[Record] = []
        for name, cell in zip(self.columns, cells, strict=True):
            value = to_float(cell)
            if value is not None:
                field = Field("loss" if name == "Training Loss" else slug(name), name)
                kind: Kind = "step" if name == "Training Loss" else "validation"
                records.append(Record(kind, line, {field.name: value}, int(step), None, None, (field,), (cell,)))
        return records

    def _metric(self, line: int, rank: int | None, match: re.Match[str]) -> list[Record]:
        """Read a line of the block `***** train metrics *****`, unless a dictionary contained it before.

        No dictionary has the number of the samples.
        """
        value = to_float(match[3])
        if value is None:
            value = duration_seconds(match[3])
        if value is None or (match[1] in self.summaries_seen and match[2] != "samples"):
            return []
        if match[1] is None:
            return [Record("metrics", line, {"epoch": value}, rank=rank, fields=(_EPOCHS,), raw=(match[3],))]
        key = f"{match[1]}_{match[2]}"
        opened = [self._another(line)] if key in self.stated else []
        self.stated = {key} if opened else self.stated | {key}
        kind: Kind = "metrics" if match[1] == "train" else "validation"
        field = Field(quantity_name(key), key)
        return [*opened, Record(kind, line, {field.name: value}, rank=rank, fields=(field,), raw=(match[3],))]

    def finish(self) -> list[Record]:
        """Return the open records at the end of the file."""
        return self._release(is_due=True) + self._launch(0) + self._last_bar()


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read trainer_state.json or a Trainer's output; yields launches, steps, validation, totals and how it ended."""
    stream = iter(lines)
    start: list[str] = []
    for text in stream:
        start.append(text)
        if not text.isspace():
            break
    if start and _STATE.match(start[-1]):
        size = 0
        for text in stream:
            start.append(text)
            size += len(text)
            if size > MAX_STATE:
                yield unread(len(start), f"a JSON file of more than {MAX_STATE} characters", text)
                break
        records = state(1, "".join(start).lstrip("\ufeff"))
        if records is not None:
            yield from records
            return
    parser = Parser()
    for line, rank, time, text in peel(chain(start, stream)):
        yield from parser.feed(line, rank, time, text)
    yield from parser.finish()
