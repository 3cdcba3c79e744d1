"""Step lines of trainers that name each quantity: a counter and cells in any order.

Sources: nanoGPT, nanochat, llm.c; torchtune/training/metric_logging.py; InternLM/train; verl/utils/tracking.py, slime,
OpenRLHF; fairseq/logging/progress_bar.py; mlx-lm/tuner/trainer.py; composer/loggers/console_logger.py; Lightning's and
tqdm's bars. All of them are read by the same rules, a dialect only names the format; what its keys mean is in the table
of `quantities.py`, under its name or for all trainers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as default
from typing import Any

from parlab.formats.coverage.events import is_measurement
from parlab.formats.coverage.leftovers import named_numbers
from parlab.formats.grammar.boxes import Boxes
from parlab.formats.grammar.counters import Clock, Counter, counter_in, counter_of_match, parts_of
from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.metric_fields import HELD_OUT, POWERS, SAYS_UNIT, TIMES, metric_field
from parlab.formats.grammar.pairs import AVERAGE, Pair, pairs, pairs_and_rest
from parlab.formats.grammar.prefixes import is_plain, peel_line, strip_prefix
from parlab.formats.grammar.quantities import Known, known_to
from parlab.formats.grammar.rates import rate_of
from parlab.formats.grammar.records import MAX_TEXT, Ending, Field, Kind, Record, unread
from parlab.formats.grammar.repeats import Repeats, by_part
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.stepblocks import StepBlocks
from parlab.formats.grammar.stepcells import LARGEST_WHOLE, StepCells, record_of
from parlab.formats.grammar.units import slug, to_float, to_int, unit_of
from parlab.formats.grammar.wrapping import Unwrapped
from parlab.formats.launch import MAX_ARGUMENTS, command_arguments, is_command, namespace_arguments
from parlab.formats.logs.bars import Bars

_COUNTER_KEYS = frozenset({"step", "global_step", "iteration", "iter", "num_updates", "nupdates", "global step",
                           "current_steps", "training_iteration", "it", "update", "acc_iter", "steps"})  # fmt: skip
_OF_ALL = frozenset({"global_step"})
"""The key of a step of all epochs."""
_MAX_ENTRIES = 200
_ENTRY = re.compile(r"\s{1,40}'")
# A dictionary that pprint prints, also behind words: `training - { 'loss': 2.5,`.
_BEGINS = re.compile(r"\{'|[^{}]{1,80}\{\s?'[^{}]{1,200},\s*$")
MAX_RANKS = 65_536
_TAG_CHARACTERS = 5
_LEAST = 5
"""Fewer characters hold no name and number."""
_EPOCH = re.compile(r"\s{0,4}Epoch:? (\d{1,9})(?:/\d{1,9})?\s*$")
# What an epoch states in one line: `Epoch: 49, Loss: 11.8, Valid: 92.5%`.
_OF_EPOCH = re.compile(
    r"(?i)(?:.{0,60}?[\s,|:-])?epoch[\s:=#\[]{0,3}(?P<at>\d{1,9})(?:\s?/\s?\d{1,9})?\]?(?:\s(?:done|finished))?"
    r"[\s,:;|)-]{1,6}(?=\D)"
)
_RANK = re.compile(r"(?i)^\W{0,4}rank[\s:=#]{0,3}(\d{1,7})\b")
# The other counter of `iter 8 step 1: loss 8.8`.
_AGAIN = re.compile(r"^step \d{1,15}\s?[:|]\s?")
# Lines of an evaluation.
_HELD_OUT_LINE = re.compile(
    r"(?:\((?:val|test)\)|^(?:DEV|TEST)\s{0,3}:|\bvalid on '\w{1,40}' subset|(?:^|\]: )Evaluation,(?= \w)"
    r"|^\W{0,3}(?:Test|Eval(?:uation)?|Val(?:idation)?)\b.{0,12}\[)"
)
_VALIDATION = re.compile(r"alidation(?!_step_timing)")
# `step 5 of 100 in 1.4 seconds`: the time of the step, unless the line is about other work.
_TOOK = re.compile(
    r"(?i)\b(?:took|in):?\s{1,3}(?P<value>\d{1,12}(?:\.\d{1,12})?)\s?(?P<unit>ms|s|sec|secs|seconds)\b(?!\s?/)"
)
UNKNOWN_TRAINER = "pairs"
_TAKEN = frozenset({"took", "in"})
_IN_BRACKETS = re.compile(r"\[[^\[\]]{1,60}\]")
_OTHER_WORK = re.compile(r"(?i)sav|load|checkpoint|eval|valid|compil|test|writ|warm|init|epoch|data|total|elapsed|last")
# A name and a list of numbers, perhaps behind a tag.
_LIST = re.compile(
    r"\s{0,8}(?:\[[^\[\]]{1,120}\]\s?)?(?P<key>[A-Za-z_][\w ()/-]{0,60}): \[(?P<numbers>[^\[\]]{1,200000}+)\]?\s*$"
)
# What a line may not keep to itself: a number with a unit of time, memory or a rate.
_LEFT = re.compile(
    r"(?<![\w.:/|-])\d{1,12}(?:\.\d{1,12})?\s?(?:ms|s|secs?|seconds|[KMGT]i?B|TFLOP/?s(?:/\w{1,8})?|/s(?:/gpu)?)(?![\w/:])"
    r"|(?<![\w.:/|-])\d{1,12}(?:\.\d{1,12})?\s?(?:m?s|secs?|min)\s?/\s?\d{1,9}[kKM]?\s?[a-z]"
)

_CUT = re.compile(r"(?<=[\s:=])[+-]?\d[\d.,]{0,30}(?:[eE][+-]?\d?)?$")
_WHOLE = 0.8
"""Share of the longest record of a line that a whole record has at least."""


@dataclass(frozen=True)
class Dialect:
    """A trainer's step lines: patterns to recognise them."""

    SIGNS: Signs
    reads: str = ""
    """The trainers and their lines, for the table of formats."""
    trainer: str = ""
    """The name under which the table of quantities has the trainer's own keys."""
    seconds: re.Pattern[str] | None = None
    settings: Mapping[str, str] = default(default_factory=dict)
    """Key of a cell -> setting of the launch."""
    launch: Callable[[str], dict[str, Any]] | None = None
    """What reads the settings of a line, for the launch that begins with the next record; empty for any other line."""
    rewritten: tuple[tuple[re.Pattern[str], str], ...] = ()
    """Parts of a line without a key, and how they would be written with one."""
    counter: re.Pattern[str] | None = None
    """The number of a step that begins again in every epoch, where the common patterns take another one."""
    held_out: re.Pattern[str] | None = None
    """Lines of an evaluation, with the number of its step."""
    uncounted: re.Pattern[str] | None = None
    """Steps that state no number of the step."""
    start: re.Pattern[str] | None = None
    """The beginning of a record, of which a line may have several without a line feed between them."""
    turn: str = ""
    """The timer with which a step of a rank begins, where its lines state no number of it."""
    last: re.Pattern[str] | None = None
    """A line that a launch prints at its end."""
    keeps_names: bool = False
    """Whether timers have the names that are printed."""
    is_of_rank: bool = False
    """Whether lines are tagged with what does not give the number of a rank."""
    counts_to_total: bool = False
    """Whether the number behind the one of a step is the last step of an epoch, counted from 0."""
    wrapped: tuple[re.Pattern[str], re.Pattern[str]] | None = None
    """The beginning of a line that a terminal may have wrapped, and the whole line."""
    has_blocks: bool = False
    """Whether the cells of a step may stand on the lines below its number."""
    has_tags: bool = False
    """Whether that number is a tag above indented cells, `[batch=4/10]:`."""
    is_beside: bool = False
    """Whether the lines stand beside the steps of another format, so that each of their numbers is one of a step."""

    def read(self, lines: Iterable[str], /) -> Iterator[Record]:
        """Read step lines, bars and blocks; yield steps, timers in seconds, validation, metrics and the end."""
        return self._read(lines) if self.wrapped is None else Unwrapped(lines, self.wrapped).read(self._read)

    def _read(self, lines: Iterable[str]) -> Iterator[Record]:
        parser = Parser(self)
        for number, line in enumerate(lines, 1):
            if parser.below.head is not None and not parser.dictionary:
                records = None if line.startswith(parser.tag) else parser.below.again(number, line)
                if records is not None:
                    if records:
                        yield from parser.ahead(records)
                    continue
            if parser.dictionary or ("{" in line and _BEGINS.match(line) is not None):
                yield from parser.pretty(number, line)
                continue
            if "%|" not in line:
                records = None if line.startswith(parser.tag) else parser.repeated(number, line)
                if records is not None:
                    yield from records
                    continue
            elif is_plain(line):
                yield from parser.feed(number, None, None, line)
                continue
            for _, rank, time, text in peel_line(number, line):
                if rank is not None or time is not None:
                    parser.tag = (line[:_TAG_CHARACTERS],)
                parser.prefix = line[: -len(text)] if rank is None and time is None and line.endswith(text) else ""
                yield from parser.feed(number, rank, time, text)
        yield from parser.finish()

    def field(self, cell: Pair) -> Field:
        """Return the field of a cell."""
        if cell.key.endswith(AVERAGE):
            own = self.field(cell._replace(key=cell.key.removesuffix(AVERAGE)))
            return own._replace(name=f"average_{own.name}", key=cell.key, kind="average")
        known = known_to(self.trainer).get(cell.key)
        if known is not None and (printed := _printed_in(cell.unit, known)) is not None:
            return printed.field(cell.key)
        if self.seconds is not None and not cell.unit and self.seconds.search(cell.key):
            named = metric_field(cell.key.rpartition("/")[2], "s")._replace(key=cell.key)
            return named if named.name.endswith("_s") else named._replace(name=f"{named.name}_s")
        field = metric_field(cell.key, cell.unit)
        # A time of a trainer that nobody knows may be in any unit, unless its name says which.
        is_guess = self.trainer == UNKNOWN_TRAINER and not cell.unit and field.name in TIMES and field.scale == 1.0
        return Field(slug(cell.key), cell.key) if is_guess and not SAYS_UNIT.search(cell.key) else field


def _printed_in(unit: str, known: Known) -> Known | None:
    """Return a known quantity in the unit behind its number; None if it cannot be printed in that unit."""
    if unit in ("", known.unit):
        return known
    # K, M or G scale the unit: `4.71K` ms, and not G behind a number of GiB.
    if (power := POWERS.get(unit)) and (known.scale == 1.0 or known.quantity.unit != "bytes"):
        return known._replace(unit=f"{unit} {known.unit}".strip(), scale=known.scale * power)
    if (printed := unit_of(unit)) and known.quantity.unit == printed[0]:
        return known._replace(unit=unit, scale=printed[1])
    if known.quantity.unit == "s" and (rate := rate_of(unit)) and rate[0] == "step_time_s":
        return known._replace(unit=unit, scale=rate[1])
    return None


class Parser:
    """Reads the lines of one log."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.bars = Bars(dialect.field)
        self.records_of = StepCells(
            dialect.field, dialect.settings,
            keeps_names=dialect.keeps_names, is_of_rank=dialect.is_of_rank, is_beside=dialect.is_beside,
        )  # fmt: skip
        is_unknown = dialect.trainer == UNKNOWN_TRAINER
        self.below = StepBlocks(self.records_of, has_tags=dialect.has_tags, counts_epochs=is_unknown)
        self.boxes = Boxes(self.records_of)
        self.repeats = Repeats(by_part(dialect.start, self._parts) if dialect.start is not None else self._parts)
        self.clock = Clock()
        self.epoch: int | None = None
        self.turns: dict[int | None, int] = {}
        """How many steps each rank has begun, where lines state no number of a step."""
        self.has_ended = self.is_last = False
        self.held: list[Record] = []
        """What the first line of an epoch states, until another line shows whether epochs are the steps."""
        self.has_epochs = False
        self.listing: set[int | None] = set()
        """The ranks that have listed the times of all their steps."""
        self.dictionary: list[str] = []
        """The lines so far of a dictionary that pprint has printed."""
        self.settings: dict[str, Any] = {}
        """Settings of the next launch."""
        self.tag: tuple[str, ...] = ()
        """How the last line with a rank or time began: such lines are not looked up as they are printed."""
        self.prefix = ""
        """What was stripped from the last line that had no known layout, if it states neither rank nor time."""

    def repeated(self, line: int, text: str) -> list[Record] | None:
        """Read a line as it is printed, if lines without rank and time have had its layout; None for any other line."""
        if self.below.head is not None or self.settings:
            return None
        if self.prefix and text.startswith(self.prefix):
            text = text[len(self.prefix) :]
        records = self.repeats.fast(line, None, None, text)
        return records if records is None else self.ahead(self._counted(records))

    def pretty(self, line: int, text: str) -> list[Record]:
        """Read a line of a dictionary, which pprint prints with an entry per line: the last one gives the record."""
        printed = text.rstrip()
        is_first = _BEGINS.match(text) is not None
        if is_first and not printed.endswith("}") and not self.dictionary:
            self.dictionary = [printed]
            return []
        if self.dictionary and _ENTRY.match(text) and len(self.dictionary) < _MAX_ENTRIES:
            self.dictionary.append(printed)
            if not printed.endswith("}"):
                return []
            begin, whole = line + 1 - len(self.dictionary), " ".join(self.dictionary)
            self.dictionary = []
            records = self._plain_line_records(begin, None, None, whole)
            for record in records:
                record.until = line
            return records
        self.dictionary = []
        return [record for _, rank, time, part in peel_line(line, text) for record in self.feed(line, rank, time, part)]

    def feed(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read one line."""
        if (bar := self._bar(line, rank, time, text)) is not None:
            self.below.counts_epochs = False
            return bar
        if not self.dialect.has_blocks:
            return self.ahead(self._plain_line_records(line, rank, time, text))
        self._is_epoch(text)
        before = self.below.close() if self.below.ends(line, text) else []
        own = self.below.feed(line, self._rewritten(text), time)
        if own is None and (box := self.boxes.feed(line, text)) is not None:
            return before + box
        return before + self.ahead(self._plain_line_records(line, rank, time, text) if own is None else own)

    def _bar(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record] | None:
        """Read a bar; None for a line without one."""
        if "%|" not in text and not (" • " in text and "━" in text):
            return self.bars.row(line, text)
        records = self.bars.feed(line, rank, time, text)
        if records is None or not (behind := self.bars.behind):
            return records
        # Another writer has not begun a line of its own.
        own_rank, own_time, behind = strip_prefix(behind)
        own = rank if own_rank is None else own_rank
        return records + self.ahead(self._plain_line_records(line, own, own_time or time, behind))

    def ahead(self, records: list[Record]) -> list[Record]:
        """Put the positions of a bar that belong there in front of the step of a line."""
        if records and records[0].kind == "step" and (before := self.bars.before(records[0])):
            return before + records
        return records

    def _plain_line_records(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read a line without a bar; a counter that begins again in every epoch becomes one that grows."""
        if self._is_epoch(text):
            return []
        if ": [" in text and (times := self._listed(line, rank, text)):
            return times
        read = self.repeats.fast(line, rank, time, text) if self.dialect.launch is not None else None
        if read is None and self.dialect.launch is not None and (settings := self.dialect.launch(text)):
            self.settings = {**settings, **self.settings} if len(self.settings) < MAX_ARGUMENTS else self.settings
            return []
        records = self._counted(self.repeats.read(line, rank, time, text) if read is None else read)
        return self._launched(line) + records if records and self.settings else records

    def _is_epoch(self, text: str) -> bool:
        """Return whether a line states the number of the epoch alone, and keep it."""
        head = _EPOCH.match(text[:80]) if "poch" in text else None
        self.epoch = self.epoch if head is None else int(head[1])
        return head is not None

    def _listed(self, line: int, rank: int | None, text: str) -> list[Record]:
        """Read the list of all step times at the end of a run, which only repeats them if the steps were printed."""
        stated = _LIST.match(text)
        if stated is None or self.dialect.field(Pair(stated["key"], "", "", None)).name != "step_time_s":
            return []
        has_steps = self.bars.has_steps
        records: list[Record] = []
        if rank in self.listing and not has_steps:
            records.append(Record("launch", line, data={}, opens=True))
            self.listing.clear()
        self.listing.add(rank)
        kind: Kind = "metrics" if has_steps else "step"
        for number in stated["numbers"].split(","):
            cell = Pair(stated["key"], number.strip(), "", to_float(number.strip()))
            field = self.dialect.field(cell)
            field = field._replace(name=f"repeated_{field.name}") if has_steps else field
            records += record_of(kind, line, rank, None, [(cell, field)])
        return records

    def _launched(self, line: int) -> list[Record]:
        """Return the launch of the settings so far, once."""
        settings, self.settings = self.settings, {}
        return [Record("launch", line, data=settings, opens=True)] if settings else []

    def _counted(self, records: list[Record]) -> list[Record]:
        """Number the steps of a counter that begins again in every epoch, and those of ranks that state no number."""
        if self.dialect.turn:
            return self._in_turn(records)
        if records and records[0].kind == "step":
            if records[0].values.pop("of_epoch", None) is not None:
                return self._epochs(records)
            self.below.counts_epochs = False
            if self.held:
                return self._beside_steps() + self._counted(records)
            if "in_epoch" not in records[0].values:
                return records
        place = iteration = None
        for at, record in enumerate(records):
            if "in_epoch" in record.values:
                place, iteration = record.iteration, self._step_of_all(record)
            if place is not None and record.iteration == place:
                record.iteration = iteration
            if record.kind == "validation" and place is not None:
                records[at] = self.bars.once(record)
            elif record.kind == "end":
                self.has_ended = True
        return records

    def _step_of_all(self, record: Record) -> int | None:
        """Return the step of all epochs: the one that is stated beside that of the epoch, or a count."""
        values, place = record.values, record.iteration
        epochs, total = int(values.pop("in_epoch")), values.pop("total_iterations", None)
        step = values.get("global_step")
        if step is not None and 0.0 <= step < LARGEST_WHOLE:
            # Another epoch may begin after the last step of one, but for the first.
            is_first = self.dialect.counts_to_total and step == place
            if is_first and total is not None:
                values["total_iterations"] = total + 1.0
            self.is_last = is_first and step == total
            return int(step)
        epoch = self.epoch if epochs < 0 else int(values.get("epoch", self.epoch or 0))
        if epochs > 0 and total:
            values["total_iterations"] = epochs * total
        if epoch is None or place is None:
            return place
        return self.clock.iteration(epoch, place, int(total or 0), has_epochs=epochs > 0)

    def _epochs(self, records: list[Record]) -> list[Record]:
        """Return the steps of a log that counts epochs; beside steps with numbers, figures of the launch."""
        held, self.held = self.held, records
        if not self.below.counts_epochs:
            return self._beside_steps()
        if held:
            self.has_epochs, self.held = True, []
            return held + records
        return self._released() if self.has_epochs else []

    def _released(self) -> list[Record]:
        held, self.held = self.held, []
        return held

    def _beside_steps(self) -> list[Record]:
        """Return what an epoch states as figures of the launch."""
        held = self._released()
        for record in held:
            record.iteration = None
            if record.kind == "timers":
                held[0].values |= {f"{name}_s": value for name, value in record.values.items()}
            elif record.kind == "step":
                record.kind = "metrics"
        return [record for record in held if record.kind != "timers"]

    def _in_turn(self, records: list[Record]) -> list[Record]:
        """Number the steps of each rank by its lines; those of a phase alone are no steps."""
        turns, records = self.turns, [record for record in records if record.values or record.data is not None]
        for record in records:
            begins = self.dialect.turn in record.values
            # After the end, a rank that has made as many steps as any other begins another launch.
            if begins and self.has_ended and turns.get(record.rank) == max(turns.values(), default=0):
                turns.clear()
                self.has_ended = False
            if begins and (record.rank in turns or len(turns) < MAX_RANKS):
                turns[record.rank] = turns.get(record.rank, 0) + 1
            self.has_ended = self.has_ended or record.kind == "end"
            if record.kind in ("step", "timers"):
                record.iteration = turns.get(record.rank, 1)
        return records

    def _parts(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read a line of one or more records."""
        records: list[Record] = []
        parts = parts_of(text[:8_000])
        longest = max(map(len, parts))
        for place, part in enumerate(parts, 1):
            # Another rank interrupted a part that is much shorter: of its last number, digits may be missing.
            cut = _CUT.search(part) if place < len(parts) and len(part) < _WHOLE * longest else None
            if cut is not None:
                records.append(unread(line, INTERRUPTED, part[-80:]))
            whole = part if cut is None else part[: cut.start()]
            records += self._line(line, rank, time, whole) or about_launch(line, rank, time, whole)
        if self.dialect.last is not None and self.dialect.last.match(text):
            records.append(Record("end", line, data=Ending("finished", text.strip()[:MAX_TEXT]), rank=rank))
        return records

    def finish(self) -> list[Record]:
        """Return what the end of the file completes."""
        held = self._released() if self.below.counts_epochs else self._beside_steps()
        held += self.below.close(is_last=True) + self.bars.finish() + self._launched(0)
        if self.is_last and not self.has_ended:
            held.append(Record("end", 0, data=Ending("finished", "the last planned iteration was printed")))
        return held

    def _line(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        text = self._rewritten(text.rstrip("\r\n"))
        if (speaker := _RANK.match(text)) is not None:
            rank, text = int(speaker[1]), text[speaker.end() :]
        if (head := _HELD_OUT_LINE.search(text[:200])) is not None:
            return self.records_of.validation(line, rank, pairs(text[head.end() if head[0][-1] == ":" else 0 :]), None)
        if self.dialect.held_out is not None and (match := self.dialect.held_out.search(text[:600])) is not None:
            return self.records_of.validation(line, rank, pairs(text[match.end() :]), to_int(match["at"]))
        stated = self.dialect.counter.search(text[:300]) if self.dialect.counter is not None else None
        counter = counter_in(text) if stated is None else counter_of_match(stated, in_epoch=True)
        if counter is None:
            return (
                self._uncounted(line, rank, time, text)
                or self._of_epoch(line, rank, time, text)
                or self.records_of.summary(line, rank, time, text)
            )
        cells, left, is_ahead = self._cells_beside(text, counter)
        if is_ahead and not cells:
            return []
        own, held_out = _sides(text, cells)
        records = self.records_of.records(line, rank, time, own, counter.at, counter.total) if own else []
        if counter.in_epoch:
            _mark_epoch(records, counter)
        if held_out:
            records += self.records_of.validation(line, rank, held_out, counter.at)
        if records and (more := _LEFT.search(left)) and is_measurement(left[more.start() :]):
            records.append(unread(line, UNNAMED, left.replace("|", " ").strip()))
        return records

    def _of_epoch(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read the cells of an epoch, which may be the steps of a log; `_counted` decides."""
        head = _OF_EPOCH.match(text[:200]) if "poch" in text[:200].lower() else None
        if head is None or self.dialect.uncounted is not None or self.dialect.turn:
            return []
        own, held_out = _sides(text, pairs(text[head.end() :]))
        records = self.records_of.records(line, rank, time, own, int(head["at"]), None) if own else []
        if not records or records[0].kind != "step":
            return []
        records[0].values["of_epoch"] = 1.0
        return records + (self.records_of.validation(line, rank, held_out, int(head["at"])) if held_out else [])

    def _rewritten(self, text: str) -> str:
        for pattern, form in self.dialect.rewritten:
            text = pattern.sub(form, text)
        return text

    def _cells_beside(self, text: str, counter: Counter) -> tuple[list[Pair], str, bool]:
        """Return the cells of a step, what no cell claims, and whether the counter stands in front of them."""
        # A counter in front of the cells is no cell; one among them is dropped by its key.
        in_front, behind = text[: counter.match.start()], text[counter.match.end() :]
        is_ahead = _is_ahead(in_front, behind)
        cells, left = pairs_and_rest(_AGAIN.sub("", behind.lstrip(" :|->)]")) if is_ahead else text)
        if is_ahead and len(in_front) > _LEAST:
            cells = _in_front(in_front) + cells
        kept = known_to(self.dialect.trainer).keys() | (_OF_ALL if counter.in_epoch else set())
        cells = [cell for cell in cells if cell.key in kept or cell.key.lower() not in _COUNTER_KEYS]
        if not _OTHER_WORK.search(_IN_BRACKETS.sub(" ", text)):
            cells = [cell._replace(key="step time") if cell.key.lower() in _TAKEN else cell for cell in cells]
            if took := _TOOK.search(left):
                cells.append(Pair("step time", took["value"], took["unit"], to_float(took["value"])))
                left = left[: took.start()] + left[took.end() :]
        if not is_ahead and "|" not in text:
            cells = [cell for cell in cells if cell.key != cell.unit]  # a rate in a sentence
        if counter.epoch is not None:
            cells = [cell for cell in cells if cell.key.lower() != "epoch"]
        return cells, left, is_ahead

    def _uncounted(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read a step that states no number."""
        pattern = self.dialect.uncounted
        cells = pairs(text) if pattern is not None and pattern.search(text) else []
        return self.records_of.records(line, rank, time, cells, None, None) if cells else []


def _is_ahead(in_front: str, behind: str) -> bool:
    """Return whether a counter stands in front of the cells of its line."""
    return len(in_front) < 60 or in_front.endswith("]") or (behind.startswith(",") and "=" not in in_front)


def _in_front(text: str) -> list[Pair]:
    """Return the cells in front of a counter; a rate there is one of a sentence."""
    return [cell for cell in named_numbers(text) if cell.key != cell.unit]


def _sides(text: str, cells: list[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Return the cells of the training and those of held-out data."""
    held_out = [cell for cell in cells if HELD_OUT.match(cell.key)]
    own = [cell for cell in cells if not HELD_OUT.match(cell.key)]
    if _VALIDATION.search(text[:200]) is not None and not any(cell.key == "loss" for cell in own):
        return [], cells
    return own, held_out


def _mark_epoch(records: list[Record], counter: Counter) -> None:
    """Mark the step of a line that counts the steps of an epoch: -1, or how many epochs are planned, 0 if unknown."""
    if records and records[0].kind == "step":
        records[0].values["in_epoch"] = -1.0 if counter.epoch is None else float(counter.epochs or 0)
        if counter.epoch is not None:
            records[0].values["epoch"] = float(counter.epoch)


UNNAMED = "a number with a unit, but without a name"
INTERRUPTED = "another record begins within this number"


def about_launch(line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
    """Return the settings of a command or of printed arguments, or how the launch ended."""
    settings = namespace_arguments(text) or (command_arguments(text) if is_command(text) else {})
    if settings:
        return [Record("launch", line, data=settings)]
    end = ending(text)
    return [Record("end", line, data=end, rank=rank, time=time)] if end else []
