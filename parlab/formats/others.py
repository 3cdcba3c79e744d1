"""What the readers of other formats make of the lines that a file's own reader passes over.

Lines are offered to them by their signs, and to the general reader if they count steps. What they read is joined by
step: a step between two of the file's reader adds to them; a run of steps that nothing interrupts is a launch of its
own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from parlab.formats.coverage.events import event_of
from parlab.formats.coverage.leftovers import MEASURED
from parlab.formats.documents.tables import table
from parlab.formats.grammar.counters import counter_in
from parlab.formats.grammar.prefixes import peel_line, strip_prefix
from parlab.formats.grammar.records import Field, Record
from parlab.formats.grammar.sniff import THRESHOLD, line_scores
from parlab.formats.grammar.steplines import UNKNOWN_TRAINER, Parser
from parlab.formats.logs.deepspeed_beside import Engine
from parlab.formats.logs.dialects import DIALECTS
from parlab.formats.logs.registry import LOGS
from parlab.formats.schema import Table

# Lines of no other format are offered to these; bars are read in every log.
_WHOLE = frozenset({"bars", "csv", "tensorboard-json", "wandb-runs"})
_TOOLS = frozenset({"nvidia-smi", "dcgm-exporter"})
_TABLE = "table"
_RULE = re.compile(r"^\s{0,8}\|(?:\s*:?-{2,}:?\s*\|){2,100}\s*$")
_WITHOUT_DIGITS = dict.fromkeys(map(ord, "0123456789"))
_NAMED = re.compile(r"[A-Za-z]\W{0,8}\d")
MAX_FORMS = 4_096
MAX_RUN = 20_000
MAX_GAP = 50
"""Lines without a sign between those of a block, as the rows of a table are."""


class _Forms:
    """The formats of lines by their signs; lines that differ in digits only are looked at once."""

    def __init__(self, own: str) -> None:
        self.own = own
        self.takes_counters = own not in DIALECTS
        self._known: dict[str, str] = {}
        """Form of a line -> its format; empty for none."""

    def of(self, text: str) -> str:
        """Return the format of a line; empty for none."""
        form = text[:1_000].translate(_WITHOUT_DIGITS)
        name = self._known.get(form)
        if name is None:
            name = self._by_signs(text)
            if len(self._known) < MAX_FORMS:
                self._known[form] = name
        return name

    def _by_signs(self, text: str) -> str:
        plain = strip_prefix(text[:2_000])[2]
        totals = line_scores(plain, LOGS)
        if totals[self.own]:
            return self.own
        name = max((name for name in totals if name not in _WHOLE), key=lambda name: totals[name], default="")
        if name and totals[name] >= THRESHOLD:
            return name
        counter = counter_in(plain[:400]) if self.takes_counters and not event_of(plain) else None
        is_step = counter is not None and _NAMED.search(plain[: counter.match.start()] + plain[counter.match.end() :])
        return UNKNOWN_TRAINER if is_step else ""


class _Block:
    """The block or table of another format that goes on below lines with a sign."""

    def __init__(self) -> None:
        self.format = ""
        self.until = 0
        """Its last line."""
        self.above: tuple[int, str] = (0, "")
        """The last line that was offered: the names of columns, if a rule follows."""

    def rules(self, number: int, text: str) -> tuple[int, str] | None:
        """Return the line above, if a line is the rule of a table below the names of its columns."""
        above, self.above = self.above, (number, text)
        is_below = "--" in text and above[0] == number - 1 and above[1].count("|") == text.count("|")
        return above if is_below and _RULE.match(text) is not None else None

    def goes_on(self, number: int, text: str) -> bool:
        """Return whether a line without a sign may belong to the block above it."""
        if self.format == _TABLE:
            return text.lstrip().startswith("|")
        return bool(self.format) and number - self.until <= MAX_GAP and not text.isspace()


class Others:
    """The readers of other formats than that of a file, and the lines that wait for them."""

    def __init__(self, own: str, *, is_alone: bool = False) -> None:
        """`is_alone`: the file holds nothing else."""
        self.is_alone = is_alone
        self.engine = Engine(own) if own != "deepspeed" and not is_alone else None
        self.is_of_dialect = own in DIALECTS
        self.forms = _Forms(own)
        self.block = _Block()
        self.texts: dict[int, tuple[str, str]] = {}
        """Line that waits -> the format that it is offered to, and its text."""
        self.step: int | None = None
        """The last step of the file's reader."""
        self.between: set[str] = set()
        """Formats whose lines have stood between those of the file's reader."""
        self.parsers: dict[str, Parser] = {}
        self.known: dict[int, tuple[Field, ...]] = {}
        """Identity of fields of lines of the file's own dialect -> the fields."""
        self.following: tuple[str, int] = ("", 0)
        """The format whose reader goes on, after a long run of its lines, and the last of these lines."""

    def offer(self, number: int, text: str) -> bool:
        """Take a line that the file's reader has passed over, if it is one of another format."""
        if not self.texts and "--" not in text and text.lower() == text.upper():
            return False  # a row of numbers
        if (names := self.block.rules(number, text)) is not None:
            self._add(_TABLE, *names)
            name = _TABLE
        elif (name := self.forms.of(text)) == self.forms.own:
            self.block.format = ""
            return False
        if name:
            self.block.format = "" if self._is_of_lines(name) else name
        elif self.block.goes_on(number, text):
            name = self.block.format
        if name:
            self._add(name, number, text)
        return bool(name)

    def takes_back(self, record: Record, texts: dict[int, str]) -> bool:
        """Take a line that the reader of a dialect has read, if by its signs it is one of another dialect."""
        fields = record.fields
        if record.line != record.until or self.known.get(id(fields)) is fields:
            return False
        if record.line in self.texts:
            return self.texts[record.line][0] in DIALECTS
        text = texts.get(record.line, "%|")
        name = "" if "%|" in text else self.forms.of(text)
        if name in DIALECTS and name != self.forms.own:
            self._add(name, record.line, texts.pop(record.line))
            return True
        if fields and len(self.known) < MAX_FORMS:
            self.known[id(fields)] = fields
        return False

    def _add(self, name: str, number: int, text: str) -> None:
        self.texts[number] = name, text
        self.block.until = number

    def ends(self, line: int) -> bool:
        """Return whether so many lines wait that the reader of their format goes on behind a line."""
        name = next(reversed(self.texts.values()))[0] if len(self.texts) >= MAX_RUN else _TABLE
        self.following = ("", 0) if name == _TABLE else (name, line)
        return name != _TABLE

    def _is_of_lines(self, name: str) -> bool:
        """Return whether the lines of a format are read one by one, by a parser that is kept."""
        reader = DIALECTS.get(name)
        return reader is not None and (not reader.has_blocks or name == UNKNOWN_TRAINER)

    def joined(self, following: Record | None) -> tuple[list[Record], dict[int, tuple[str, str]]]:
        """Return the records of the lines that wait in front of the next record of the file's reader, and these lines.

        A step of that reader without a number gets that of the one step in front of it.
        """
        due = [number for number in sorted(self.texts) if following is None or number < following.line]
        texts = {number: self.texts.pop(number) for number in due}
        runs: dict[str, list[int]] = {}
        for number, (name, _) in texts.items():
            runs.setdefault(name, []).append(number)
        self.block.format = ""
        records = [self._early(record, name) for name, run in runs.items() for record in self._read(name, run, texts)]
        records.sort(key=lambda record: record.line)
        return self._by_step(records, runs, following), texts

    def _by_step(self, records: list[Record], formats: Iterable[str], following: Record | None) -> list[Record]:
        """Return records as a launch of their own, or as parts of the steps between which they stand."""
        numbers = {record.iteration for record in records if record.kind == "step"}
        step = following if following is not None and following.kind == "step" else None
        if step is not None and step.iteration is None and len(numbers) == 1:
            step.iteration = next(iter(numbers))
        limit = None if step is None else step.iteration
        is_apart = self.between.isdisjoint(formats) if following is None else _is_before(limit, self.step)
        if len(numbers) > 1 and is_apart:
            opened = [Record("launch", records[0].line, data={}, opens=True)] if self.step is not None else []
            self.step = None
            return opened + records
        if following is not None:
            self.between.update(formats)
        return [joined for record in records if (joined := self._between(record, len(numbers), limit)) is not None]

    def _early(self, record: Record, name: str) -> Record:
        """Return a record; what a tool says of the GPUs before the first step is no measurement of the training."""
        is_early = self.step is None and name in _TOOLS and record.kind in ("metrics", "figure")
        return Record("event", record.line, data="GPUs before the first step") if is_early else record

    def _between(self, record: Record, count: int, limit: int | None) -> Record | None:
        """Return a record between two of the file's reader: of the step before, or without a number."""
        if record.kind in ("launch", "end"):
            return Record("event", record.line, data="setting") if record.kind == "launch" else None
        if record.kind not in MEASURED or self.step is None:
            return record
        at = self.step if record.iteration is None and count == 1 and record.kind == "step" else record.iteration
        is_within = at is not None and at >= self.step and (limit is None or at <= limit)
        record.iteration = at if is_within else None
        if record.kind == "step" and not is_within:
            record.kind = "metrics"
            record.values.pop("total_iterations", None)
        return record

    def _read(self, name: str, numbers: list[int], texts: Mapping[int, tuple[str, str]]) -> Iterator[Record]:
        """Read the lines of a format; a dialect without blocks keeps what it has learnt of earlier ones."""
        lines = [texts[number][1] for number in numbers]
        if name == _TABLE:
            yield from _tables(numbers, lines)
            return
        if not self._is_of_lines(name):
            for record in LOGS[name].read(lines):
                renumber(record, numbers)
                yield record
            return
        parser = self.parsers.get(name)
        if parser is None:
            parser = self.parsers[name] = Parser(replace(DIALECTS[name], has_blocks=False, is_beside=True))
        for number, text in zip(numbers, lines, strict=True):
            records = [record for peeled in peel_line(number, text) for record in parser.feed(*peeled)]
            if name != UNKNOWN_TRAINER or not all(map(_is_time_alone, records)):
                yield from records


def _is_before(iteration: int | None, step: int | None) -> bool:
    return iteration is not None and step is not None and iteration <= step


def _is_time_alone(record: Record) -> bool:
    """Return whether a record states nothing but a time, as a sentence about any work does."""
    return record.values.keys() <= {"step_time_s", "total_iterations"}


def renumber(record: Record, numbers: Sequence[int]) -> None:
    """Give a record the numbers that its lines have in the file."""
    if record.line:
        record.line, record.until = (numbers[min(line, len(numbers)) - 1] for line in (record.line, record.until))
        record.also = tuple(numbers[line - 1] for line in record.also if 0 < line <= len(numbers))
    if isinstance(record.data, Table):
        record.data.line = record.line


def _tables(numbers: Sequence[int], lines: Sequence[str]) -> Iterator[Record]:
    """Yield the tables that a program draws with bars, and a rule below the names of the columns."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    begins = [at - 1 for at, line in enumerate(lines) if at and _RULE.match(line)]
    for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
        if begin + 2 < end:
            built = table([rows[begin]], rows[begin + 2 : end], line=numbers[begin])
            record = Record("table", numbers[begin], data=built)
            record.until = numbers[end - 1]
            yield record
