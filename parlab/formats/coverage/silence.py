"""What a reader passes over in silence becomes an event or `unread`, number by number.

Every number of a line that has a name or a unit is in a record, or the line is a known event (`events.py`), or the
number is reported. The check runs beside every reader of logs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

from parlab.formats.coverage.events import event_of
from parlab.formats.coverage.leftovers import MEASURED, Judge, all_numbers, is_place, left_over, named_numbers
from parlab.formats.grammar.prefixes import ANSI, strip_prefix
from parlab.formats.grammar.processes import STATED, stated_processes
from parlab.formats.grammar.records import Record, unread
from parlab.formats.launch import SETTINGS, sizes_of_line
from parlab.formats.logs.bars import Bars, is_other_work

# A number beside one of these words may be a measurement.
_WORD = re.compile(
    r"(?i)(?:\btim(?:e|ing)s?(?![a-z])|_tim(?:e|ing)|elapsed|latency|duration|\d ?m?s(?:ec(?:onds?)?)?\b"
    r"|\bseconds?\b|throughput|tokens?[/_]|tok/s|samples?/s"
    r"|\bit/s|s/it\b|flop|\bmfu\b|\bmem(?:ory)?(?![a-z])|_mem|\d ?[KMGT]i?B\b|\bsteps?\b"
    r"|\biter(?:ation)?s?\b|bandwidth|\b(?:wps|ups|tgs|tps)\b|\d ?(?:/s|[a-z]{2,9}/s(?:ec)?)\b"
    r"|(?:/s|/sec|per.sec\w*)\b)"
)
_DIGIT = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?![\w-])|\d\.\d|\d ?(?:ms|s|[KMGT]i?B)\b")

# Format -> kind of event -> lines whose numbers the reader keeps for a later record, or has in its settings.
_ENGINE = {
    "setting": r"\[config\.py:\d+:print",
    "memory of the node": r"see_memory_usage|(?:Free|Total|Requested) memory ?:|stage3\.py",
    "profile": r"Flops ?Profiler|^Profile Summary at step|^fwd (?:flops|MACs) |^(?:params|weights) (?:per GPU|of model)"
    r"|^Comm\. Op\s|^\s*[\d.]+ (?:B|[KMGT]B)\s+\d+(?:\s+-?[\d.]+){4}\s*$",
}
PARTS: dict[str, dict[str, str]] = {
    "mlperf": {"setting": r":::MLL"},
    "deepspeed": _ENGINE,
    "megatron": {"part of a step": r"^\s*samples/sec: "},
    "all-reduce-bench": {"part of a trial": r"^\W*(?:\d+ data size|duration|algo throughput|busbw|Waiting|\d+:)\b"},
    "huggingface": {
        "setting": r"= [\d,]+\s*$|^\s+[\w ]{1,40} = |Num GPUs = \d+\. Max memory: | = \d+ \| ",
        "summary": r"^[\d.]+ (?:(?:seconds|minutes) used for training|GB of memory reserved)|% of max memory = ",
    },
    "nccl-tests": {"setting": r"^\s*(?:#|nThread \d)", "row": r"^\s*\d{1,20}\s+\d{1,20}\s+[a-z]\w*\s"},
    "link-tests": {"setting": r"^\s*#|^ \w[\w ./]{1,30}\t? *: ", "row": r"^\s*\d+\s"},
    "torchtitan": {
        "setting": r"Training starts at step|Peak FLOPS used|(?:CUDA|GPU) capacity|Building .{0,20}device mesh"
    },
    "maxtext": {"memory of the node": r"Memstats: After "},
    "serving": {"row": r"^\s*[┃│]"},
    "nanogpt": {"setting": r"^tokens per iteration will be|\btotal_batch_size="},
}
_PARTS = {name: [(re.compile(pattern), kind) for kind, pattern in kinds.items()] for name, kinds in PARTS.items()}


# A bar that a person has pasted: bold, quoted, or escaped for HTML.
def _is_marked(text: str) -> bool:
    return "**" in text or "&lt;" in text or "&#124;" in text or text.lstrip(" ").startswith(">")


def unmarked(text: str) -> str:
    """Return a bar without the marks of Markdown and HTML around it."""
    text = text.replace("**", "").replace("&lt;", "<").replace("&#124;", "|").replace("&gt;", ">")
    return _QUOTED.sub("", text)


_QUOTED = re.compile(r"^\s{0,3}(?:>\s?){1,4}")
_DIGITS, _GAP = re.compile(r"\d+"), re.compile(r" {3,}")
_AHEAD = 256
_MAX_BARS = 4_096
# Lines that may state the number of processes even if the reader reads them; later ones only if it does not.
_HEAD = 200
# A reader makes a record of no more lines than these, but for tables, whose lines are given back.
_MAX_FRESH = 512
_END = 2**62


def is_measurement(text: str) -> bool:
    """Return whether a line holds a number and a word of time, throughput, memory or steps, and is no known event."""
    rest = _of_interest(text)
    return bool(rest) and not event_of(rest)


def _of_interest(text: str) -> str:
    """Return a line without its tags if it holds a number and a word of measurements; empty for any other line."""
    text = text[:1_000]
    if "\x1b" in text:
        text = ANSI.sub("", text)
    if _WORD.search(text) is None:
        return ""
    rest = strip_prefix(text)[2]
    if _DIGIT.search(rest) is None or (rest != text and _WORD.search(rest) is None):
        return ""
    return rest


class Engine(Protocol):
    """The reader of an engine's lines between those of a trainer."""

    goes_on: bool

    def split(self, text: str) -> tuple[str, str]: ...

    def feed(self, number: int, text: str) -> tuple[list[Record], bool]: ...

    def finish(self) -> list[Record]: ...


class Beside(Protocol):
    """The readers of other formats than that of a file."""

    texts: dict[int, tuple[str, str]]
    """Line that waits -> the format that it is offered to, and its text."""
    step: int | None
    """The last step of the file's reader."""
    following: str
    """The format whose reader goes on, after a long run of its lines."""

    @property
    def engine(self) -> Engine | None: ...

    def offer(self, number: int, text: str) -> bool: ...

    def takes_back(self, record: Record, texts: dict[int, str]) -> bool: ...

    def gives_back(self, number: int) -> str | None: ...

    def joined(self, following: Record | None) -> tuple[list[Record], dict[int, tuple[str, str]]]: ...


class _Watch:
    """Passes lines on and keeps those that yield no record."""

    def __init__(self, lines: Iterable[str], format: str, others: Beside | None, held: _Held) -> None:
        self.lines = lines
        self.held = held
        self.parts = _PARTS.get(format, [])
        self.others = others
        self.first_step = 0
        """Line of the first step; numbers before it may be settings."""
        self.fresh: dict[int, str] = {}
        """The last lines, of which the reader may still make a record."""
        self.passed: dict[int, str] = {}
        """Lines that the reader has passed over, and that are of no other format."""
        self.bars: dict[int, str] = {}
        """Lines of bars, whose positions become records when the bar leaves them."""
        self.lone: dict[str, str] = {}
        """Names of lone numbers, and what they were at first."""
        self.known: dict[str, str] = {}
        """Forms of lines without a number to judge, as rows of a table are, and the kind of event; empty for none."""
        self.heard: list[Record] = []
        """What lines state that the reader does not see: numbers of processes, and those of the engine."""

    def __iter__(self) -> Iterator[str]:
        engine, fresh = None if self.others is None else self.others.engine, self.fresh
        for number, line in enumerate(self.lines, 1):
            text = unmarked(line) if "%|" in line and _is_marked(line) else line
            if number <= _HEAD:
                self._hear(number, text)
            if engine is not None and (engine.goes_on or ("]" in text and "] [" in text)):
                yield from self._beside_engine(engine, number, text)
            else:
                fresh[number] = text
                yield text
            if len(fresh) > _MAX_FRESH:
                self.look(number + 1)
                if self.others is not None and self.others.following:
                    return

    def _beside_engine(self, engine: Engine, number: int, text: str) -> Iterator[str]:
        """Yield what the engine leaves of a line; its records come behind those of the lines above."""
        left, own = engine.split(text)
        records, is_own = engine.feed(number, own) if own else ([], False)
        if left or not is_own:
            self.fresh[number] = left if is_own else text
        yield self.fresh.get(number, "\n")
        if not is_own or (len(records) == 1 and self.held.judge.is_whole(own, records[0].fields)):
            self.heard += records
        else:
            texts = {number: own}
            self.heard += self.held.checked(records, texts) if records else self.judged(number, own, "deepspeed")

    def _hear(self, number: int, text: str) -> None:
        if (processes := stated_processes(text)) is not None:
            self.heard.append(Record("launch", number, data={STATED: processes}))
        elif number <= _HEAD and (sizes := sizes_of_line(text)):
            self.heard.append(Record("launch", number, data={SETTINGS: sizes}))

    def look(self, end: int) -> None:
        """Look at the lines before `end` of which the reader has made no record."""
        for number in list(self.fresh):
            if number >= end:
                return
            text = self.fresh.pop(number)
            if number > _HEAD and "%|" not in text:
                self._hear(number, text)
            if self.others is None or not self.others.offer(number, text):
                self.passed[number] = text

    def told(self) -> list[Record]:
        """Return what lines have stated since the last call."""
        heard, self.heard = self.heard, []
        return heard

    def lines_of(self, record: Record) -> dict[int, str]:
        """Remove the lines that a record states, and return them."""
        texts = {}
        for number in (*range(record.line, record.until + 1), *record.also):
            text = self.fresh.pop(number, None) or self.passed.pop(number, None) or self.bars.pop(number, None)
            if text is not None:
                texts[number] = text
        return texts

    def removes_whole(self, record: Record, judge: Judge) -> bool:
        """Remove the lines of a record if nothing is to be said of them, as of most; returns whether it did."""
        first, last, text = record.line, record.until, self.fresh.get(record.line)
        if text is None or record.also:
            return False
        if first == last:
            if not judge.is_whole(text, record.fields):
                return False
            del self.fresh[first]
            return True
        texts = {number: self.fresh[number] for number in range(first, last + 1) if number in self.fresh}
        if not judge.is_whole("".join(texts.values()), record.fields):
            return False
        for number in texts:
            del self.fresh[number]
        return True

    def take_back(self, record: Record) -> None:
        """Take lines from the other formats that the reader has read after all, as parts of a record."""
        for number in (*range(record.line, record.until + 1), *record.also):
            if self.others is not None and (text := self.others.gives_back(number)) is not None:
                self.passed[number] = text

    def due(self, count: int) -> Iterator[Record]:
        """Yield what the `count` oldest lines without a record are: events, or unread measurements."""
        for number in list(self.passed)[:count]:
            text = self.passed.pop(number)
            if "%|" in text and len(self.bars) < _MAX_BARS:
                self.bars[number] = text
            else:
                yield from self.judged(number, text)

    def rest(self) -> Iterator[Record]:
        """Yield what all lines without a record are."""
        self.bars |= self.passed
        self.passed.clear()
        for number, text in sorted(self.bars.items()):
            yield from self.judged(number, text)
        self.bars.clear()

    def judged(self, number: int, text: str, format: str = "") -> Iterator[Record]:
        """Yield what a line without a record is: an event or unread, if it has a number with a name or a unit.

        `format` is another than the file's, whose reader it was offered to.
        """
        form = _DIGITS.sub("0", _GAP.sub("  ", text[:1_000]))
        known = self.known.get(form)
        if known is not None:
            if known:
                yield Record("event", number, data=known)
            return
        rest = _of_interest(text)
        if not rest and all(map(is_place, numbers := all_numbers(text[:1_000]))):
            if kind := self._remember(form, "position" if numbers else ""):
                yield Record("event", number, data=kind)
            return
        plain = rest or strip_prefix(ANSI.sub("", text[:1_000]))[2]
        if kind := self._part((*self.parts, *_PARTS.get(format, [])), text[:1_000], plain):
            self._remember(form, kind)
        kind = kind or event_of(plain) or self._kind(number, plain, is_of_interest=bool(rest))
        if kind:
            yield Record("event", number, data=kind)
        elif not (bar := _of_bar(number, text)):
            yield unread(number, SILENT, text)
        else:
            yield from bar

    def _remember(self, form: str, kind: str) -> str:
        """Keep the kind of all lines of a form; returns it."""
        if len(self.known) < _MAX_BARS:
            self.known[form] = kind
        return kind

    def _kind(self, number: int, text: str, *, is_of_interest: bool) -> str:
        """Return the kind of a line by its place: a lone number before the first step is a setting."""
        if "%|" in text:
            return "other work" if is_other_work(text) else ""
        is_before = not self.first_step or number < self.first_step
        if is_before and not is_of_interest and len(self.lone) < _MAX_BARS:
            # A number that changes is no setting.
            is_before = all(self.lone.setdefault(cell.key, cell.text) == cell.text for cell in named_numbers(text))
        return "setting" if is_before and not is_of_interest else ""

    @staticmethod
    def _part(parts: Sequence[tuple[re.Pattern[str], str]], text: str, plain: str) -> str:
        """Return the kind of a line that the reader of the format uses otherwise."""
        return next((kind for pattern, kind in parts if pattern.search(text) or pattern.search(plain)), "")


def _of_bar(number: int, text: str) -> list[Record]:
    """Read a bar of the training that the reader of the format does not know: figures beside its steps."""
    if "%|" not in text:
        return []
    bars = Bars()
    records = [record for record in (bars.feed(number, None, None, text) or []) if record.kind != "event"]
    records += bars.finish()
    for record in records:
        if record.kind == "step":
            record.kind, record.iteration = "metrics", None
            record.values.pop("total_iterations", None)
    return records


SILENT = "looks like a measurement, but this format does not define it"
LEFT = "no record holds this number"


class _Held:
    """The records of a line, which wait until all of them are read."""

    def __init__(self) -> None:
        self.judge = Judge()
        self.records: list[Record] = []
        self.texts: dict[int, str] = {}

    def released(self) -> Iterator[Record]:
        """Yield the records that wait, and what they leave of their line."""
        records, texts = self.records, self.texts
        self.records, self.texts = [], {}
        if records:
            yield from self.checked(records, texts)

    def checked(self, records: list[Record], texts: dict[int, str]) -> Iterator[Record]:
        """Yield the records of a line, and what they leave of it."""
        left = self.judge.left_over(texts, records) if texts else {}
        yield from records
        if texts and records[0].kind == "launch" and (others := left_over(texts, records)):
            for number in dict.fromkeys(number for number, _ in others):
                yield Record("event", number, data=event_of(texts[number]) or "setting")
        for number, text in left.items():
            bar = _of_bar(number, texts[number]) if number in texts and "%|" in texts[number] else []
            if bar and left_over({number: texts[number]}, [*records, *bar]):
                yield unread(number, LEFT, text)
            yield from bar
            if not bar:
                yield unread(number, LEFT, text)


def watched(
    read: Callable[[Iterable[str]], Iterator[Record]], lines: Iterable[str], format: str, others: Beside | None = None
) -> Iterator[Record]:
    """Yield the records of a reader, and what it passed over: events, and unread numbers with a name or a unit.

    The records of a line are yielded once all of them are read, with the numbers of the line that none of them holds.
    `others` read the lines of other formats.
    """
    held = _Held()
    watch = _Watch(lines, format, others, held)
    fresh, passed = watch.fresh, watch.passed
    for record in read(watch):
        if others is not None and others.takes_back(record, fresh):
            continue
        if len(fresh) > 1 and next(iter(fresh)) < record.line:
            watch.look(record.line)
        if watch.heard:
            if record.line not in held.texts:
                yield from held.released()
            yield from watch.told()
        if not watch.first_step and record.kind == "step":
            watch.first_step = record.line
        if others is not None:
            if others.texts and record.kind in MEASURED:
                watch.take_back(record)
                if record.line not in held.texts:
                    yield from held.released()
                yield from _beside(watch, held, others, record)
            if record.kind == "step":
                others.step = record.iteration
        if record.line in held.texts:
            held.records.append(record)
            continue
        if held.records:
            yield from held.released()
        if watch.removes_whole(record, held.judge):
            yield record
        else:
            held.records, held.texts = [record], watch.lines_of(record)
        if len(passed) > 2 * _AHEAD:
            yield from watch.due(_AHEAD)
    watch.look(_END)
    yield from held.released()
    if others is not None:
        yield from _beside(watch, held, others, None)
    yield from watch.told()
    if others is not None and others.engine is not None:
        yield from others.engine.finish()
    yield from watch.rest()


def _beside(watch: _Watch, held: _Held, others: Beside, following: Record | None) -> Iterator[Record]:
    """Yield the records of lines of other formats, and what these lines state besides."""
    records, left = others.joined(following)
    for _, group in groupby(records, key=lambda record: record.line):
        own = list(group)
        numbers = {number for each in own for number in (*range(each.line, each.until + 1), *each.also)}
        texts = {number: left.pop(number)[1] for number in sorted(numbers) if number in left}
        yield from held.checked(own, texts)
    for number, (format, text) in left.items():
        yield from watch.judged(number, text, format)
