"""What a reader passes over in silence becomes an event or `unread`, number by number.

Every number of a line that has a name or a unit is in a record, or the line is a known event (`events.py`), or the
number is reported. The check runs beside every reader of logs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from parlab.formats.coverage.events import event_of, of_interest
from parlab.formats.coverage.leftovers import MEASURED, Judge, all_numbers, is_place, left_over, named_numbers
from parlab.formats.documents.prose_gpus import stated_gpus
from parlab.formats.grammar.prefixes import ANSI, strip_prefix
from parlab.formats.grammar.processes import STATED, stated_processes
from parlab.formats.grammar.records import Record, unread
from parlab.formats.launch import SETTINGS, sizes_of_line
from parlab.formats.logs.bars import Bars, is_other_work
from parlab.formats.logs.deepspeed_beside import Engine
from parlab.formats.others import Others

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
# A reader makes a record of no more lines than these.
_MAX_FRESH = 512
_END = 2**62
SILENT = "looks like a measurement, but this format does not define it"
LEFT = "no record holds this number"


_GPUS = re.compile(r"\d ?[x\u00d7*]? ?(?:NVIDIA |AMD )?[AHBVLM]I?\d{2,3}", re.IGNORECASE)
_MAX_REMARK = 200


def _gpus_of(text: str) -> int | None:
    """Return the number of GPUs that a person has written above a log: `Running on 4xH100s:`."""
    stated = stated_gpus(text) if len(text) < _MAX_REMARK and _GPUS.search(text) else None
    return stated.gpus if stated is not None else None


class _Silence:
    """Says what the lines of a file without a record are."""

    def __init__(self, format: str) -> None:
        self.parts = _PARTS.get(format, [])
        self.first_step = 0
        """Line of the first step; numbers before it may be settings."""
        self.lone: dict[str, str] = {}
        """Names of lone numbers, and what they were at first."""
        self.known: dict[str, str] = {}
        """Forms of lines without a number to judge, as rows of a table are, and the kind of event; empty for none."""

    def judged(self, number: int, text: str, format: str = "") -> Iterator[Record]:
        """Yield what a line is: an event or unread, if it has a number with a name or a unit.

        `format` is another than the file's, whose reader it was offered to.
        """
        form = _DIGITS.sub("0", _GAP.sub("  ", text[:1_000]))
        kind = self.known.get(form)
        if kind is None:
            rest = of_interest(text)
            if not rest and all(map(is_place, numbers := all_numbers(text[:1_000]))):
                kind = self._remember(form, "position" if numbers else "")
            else:
                plain = rest or strip_prefix(ANSI.sub("", text[:1_000]))[2]
                kind = self._part(form, (*self.parts, *_PARTS.get(format, [])), text[:1_000], plain)
                kind = kind or event_of(plain) or self._by_place(number, plain, is_of_interest=bool(rest))
                if not kind and (_gpus_of(text) is not None or sizes_of_line(text)):
                    kind = "setting"
                if not kind:
                    yield from _of_bar(number, text) or [unread(number, SILENT, text)]
        if kind:
            yield Record("event", number, data=kind)

    def _remember(self, form: str, kind: str) -> str:
        """Keep the kind of all lines of a form; returns it."""
        if len(self.known) < _MAX_BARS:
            self.known[form] = kind
        return kind

    def _part(self, form: str, parts: Sequence[tuple[re.Pattern[str], str]], text: str, plain: str) -> str:
        """Return the kind of a line that the reader of the format uses otherwise; empty for any other line."""
        kind = next((kind for pattern, kind in parts if pattern.search(text) or pattern.search(plain)), "")
        return self._remember(form, kind) if kind else ""

    def _by_place(self, number: int, text: str, *, is_of_interest: bool) -> str:
        """Return the kind of a line by its place: a lone number before the first step is a setting."""
        if "%|" in text:
            return "other work" if is_other_work(text) else ""
        is_before = not self.first_step or number < self.first_step
        if is_before and not is_of_interest and len(self.lone) < _MAX_BARS:
            # A number that changes is no setting.
            is_before = all(self.lone.setdefault(cell.key, cell.text) == cell.text for cell in named_numbers(text))
        return "setting" if is_before and not is_of_interest else ""


def _of_bar(number: int, text: str) -> list[Record]:
    """Read a bar of the training that the reader of the format does not know: figures beside its steps."""
    if "%|" not in text:
        return []
    bars = Bars()
    records = [record for record in (bars.feed(number, None, None, text) or []) if record.kind != "event"]
    records += bars.finish()
    for record in records:
        if record.kind in ("step", "validation"):
            record.kind, record.iteration = "metrics", None
            record.values.pop("total_iterations", None)
    return records


class _Watch:
    """Passes lines on, and keeps those of which the reader has made no record."""

    def __init__(self, lines: Iterable[str], format: str, others: Others) -> None:
        self.lines = lines
        self.others = others
        self.silence = _Silence(format)
        self.judge = Judge()
        self.fresh: dict[int, str] = {}
        """The last lines, of which the reader may still make a record."""
        self.passed: dict[int, str] = {}
        """Lines that the reader has passed over and that are of no other format, and bars, which every reader knows."""
        self.bars: dict[int, str] = {}
        """Lines of bars, whose positions become records when the bar leaves them."""
        self.heard: list[Record] = []
        """What lines state that the reader does not see: numbers of processes, and those of the engine."""
        self.held: list[Record] = []
        """The records of a line, which wait until all of them are read."""
        self.texts: dict[int, str] = {}
        """The lines of the records that wait."""

    def __iter__(self) -> Iterator[str]:
        engine, fresh, passed = self.others.engine, self.fresh, self.passed
        for number, line in enumerate(self.lines, 1):
            is_bar = "%|" in line
            text = unmarked(line) if is_bar and _is_marked(line) else line
            if number <= _HEAD:
                self._hear(number, text)
            if engine is not None and (engine.goes_on or ("]" in text and "] [" in text and ".py:" in text)):
                yield from self._beside_engine(engine, number, text)
            else:
                (passed if is_bar else fresh)[number] = text
                yield text
            if len(fresh) > _MAX_FRESH:
                self.look(number + 1)
                if self.others.ends(number):
                    return

    def _beside_engine(self, engine: Engine, number: int, text: str) -> Iterator[str]:
        """Yield what the engine leaves of a line; its records come behind those of the lines above."""
        left, own = engine.split(text)
        records, is_own = engine.feed(number, own) if own else ([], False)
        if left or not is_own:
            (self.passed if "%|" in text else self.fresh)[number] = left if is_own else text
        yield text if not is_own else left or "\n"
        if not is_own or (len(records) == 1 and self.judge.is_whole(own, records[0].fields)):
            self.heard += records
        elif records:
            self.heard += self.checked(records, {number: own})
        else:
            self.heard += self.silence.judged(number, own, "deepspeed")

    def _hear(self, number: int, text: str) -> None:
        if (processes := stated_processes(text) or _gpus_of(text)) is not None:
            self.heard.append(Record("launch", number, data={STATED: processes}))
        if sizes := sizes_of_line(text):
            self.heard.append(Record("launch", number, data={SETTINGS: sizes}))

    def look(self, end: int) -> None:
        """Look at the lines before `end` of which the reader has made no record."""
        for number in list(self.fresh):
            if number >= end:
                return
            text = self.fresh.pop(number)
            if number > _HEAD and stated_processes(text) is not None:
                self._hear(number, text)
            if self.others.is_alone or not self.others.offer(number, text):
                self.passed[number] = text

    def in_front(self, record: Record) -> Iterator[Record]:
        """Yield what stands in front of a record."""
        if record.line not in self.texts:
            yield from self.released()
        yield from self.told()
        if self.others.texts and record.kind in MEASURED:
            yield from self.joined(record)

    def told(self) -> list[Record]:
        """Return what lines have stated since the last call."""
        heard, self.heard = self.heard, []
        return heard

    def joined(self, following: Record | None) -> Iterator[Record]:
        """Yield the records of lines of other formats, and what these lines state besides."""
        records, left = self.others.joined(following)
        for _, group in groupby(records, key=lambda record: record.line):
            own = list(group)
            numbers = {number for each in own for number in _lines_of(each)}
            yield from self.checked(own, {number: left.pop(number)[1] for number in sorted(numbers) if number in left})
        for number, (format, text) in left.items():
            yield from self.silence.judged(number, text, format)

    def removes_whole(self, record: Record) -> bool:
        """Remove the lines of a record if nothing is to be said of them, as of most; returns whether it did."""
        first, last, fields = record.line, record.until, record.fields
        if not fields or record.also:
            return False
        if first == last:
            lines = self.fresh if first in self.fresh else self.passed
            text = lines.get(first)
            if text is None or not self.judge.is_whole(text, fields):
                return False
            del lines[first]
            return True
        texts = {number: self.fresh[number] for number in range(first, last + 1) if number in self.fresh}
        if first not in texts or not self.judge.is_whole("".join(texts.values()), fields):
            return False
        for number in texts:
            del self.fresh[number]
        return True

    def holds(self, record: Record) -> bool:
        """Let a record wait for others of its lines; returns whether it has any that no earlier record has."""
        texts = {}
        for number in _lines_of(record):
            text = self.fresh.pop(number, None) or self.passed.pop(number, None) or self.bars.pop(number, None)
            if text is not None:
                texts[number] = text
        if texts:
            self.held, self.texts = [record], texts
        return bool(texts)

    def released(self) -> Iterator[Record]:
        """Yield the records that wait, and what they leave of their line."""
        records, texts = self.held, self.texts
        self.held, self.texts = [], {}
        if records:
            yield from self.checked(records, texts)

    def checked(self, records: list[Record], texts: dict[int, str]) -> Iterator[Record]:
        """Yield the records of a line, and what they leave of it."""
        left = self.judge.left_over(texts, records) if texts else {}
        yield from records
        if texts and records[0].kind == "launch":
            for number in dict.fromkeys(number for number, _ in left_over(texts, records)):
                yield Record("event", number, data=event_of(texts[number]) or "setting")
        for number, text in left.items():
            bar = _of_bar(number, texts.get(number, ""))
            if not bar or left_over({number: texts[number]}, [*records, *bar]):
                yield unread(number, LEFT, text)
            yield from bar

    def due(self) -> Iterator[Record]:
        """Yield what the oldest lines without a record are: events, or unread measurements."""
        for number in list(self.passed)[:_AHEAD]:
            text = self.passed.pop(number)
            if "%|" in text and len(self.bars) < _MAX_BARS:
                self.bars[number] = text
            else:
                yield from self.silence.judged(number, text)

    def finish(self) -> Iterator[Record]:
        """Yield what the end of the file completes, and what all lines without a record are."""
        self.look(_END)
        yield from self.released()
        yield from self.joined(None)
        yield from self.told()
        if self.others.engine is not None:
            yield from self.others.engine.finish()
        for number, text in sorted((self.bars | self.passed).items()):
            yield from self.silence.judged(number, text)


def _lines_of(record: Record) -> Iterable[int]:
    is_one = record.line == record.until and not record.also
    return (record.line,) if is_one else (*range(record.line, record.until + 1), *record.also)


def watched(
    read: Callable[[Iterable[str]], Iterator[Record]], lines: Iterable[str], format: str, others: Others | None = None
) -> Iterator[Record]:
    """Yield the records of a reader, and what it passed over: events, and unread numbers with a name or a unit.

    The records of a line are yielded once all of them are read, with the numbers of the line that none of them holds.
    `others` read the lines of other formats.
    """
    others = others or Others(format, is_alone=True)
    watch = _Watch(lines, format, others)
    fresh = watch.fresh
    for record in read(watch):
        if others.is_of_dialect and others.takes_back(record, fresh):
            continue
        if len(fresh) > 1 and next(iter(fresh)) < record.line:
            watch.look(record.line)
        if watch.heard or others.texts:
            yield from watch.in_front(record)
        if record.kind == "step":
            watch.silence.first_step = watch.silence.first_step or record.line
            others.step = record.iteration
        if record.line in watch.texts:
            watch.held.append(record)
            continue
        if watch.held:
            yield from watch.released()
        if watch.removes_whole(record) or not watch.holds(record):
            yield record
        if len(watch.passed) > 2 * _AHEAD:
            yield from watch.due()
    yield from watch.finish()
