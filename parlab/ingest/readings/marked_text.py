"""A text with what parlab read in it: each number marked as read, derived, average, contradicting or not used. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from parlab.formats import FORMATS
from parlab.formats.schema import Finding, Launch
from parlab.formats.spans import Span, spans

MARKED_CHARACTERS = 256 * 1024
"""Characters at the beginning of a text that are marked, so that a page stays fast."""
_MOST_LINES, _LONGEST, _SHORT = 120, 600, 60
"""Lines that are shown, characters of a line, and lines of a text that is shown whole."""
_AROUND, _ALIKE = 2, 2
"""Lines around a marked one, and lines of the same numbers before the rest of them is folded."""
_GAP = 16
"""Characters between a key and its number at most, so that both have one mark."""
_KEY = re.compile(r"[A-Za-z][\w/.\-()]*(?: [\w/.\-()]+){0,3} ?[:=] ?$")
_AVERAGE_NAME = re.compile(r"(?i)(?:^|_)(?:avg|average|mean)(?:_|$)")
_SAME = 1e-4
_CHECKED = 0.005

Use = Literal["", "read", "derived", "average", "contradiction", "unused"]
_AVERAGES = {"average": "an average since the start", "cumulative": "a sum since the start", "smoothed": "smoothed"}
_NOTES = {
    "step": "number of the step",
    "total": "planned steps",
    "rank": "rank",
    "time": "time stamp",
    "setting": "setting",
    "table": "cell of a table",
    "event": "event",
}


class Mark(NamedTuple):
    """A piece of a line: plain text, or a number with its key."""

    text: str
    use: Use = ""
    name: str = ""
    """The normal name, which joins a mark and a value beside the text."""
    note: str = ""


class MarkedLine(NamedTuple):
    number: int
    marks: list[Mark]
    folded: int = 0
    """Lines without a mark, or like those before, that are left out above this one."""


class MarkedText(NamedTuple):
    """The lines to show, and how many numbers of all lines were used in which way."""

    lines: list[MarkedLine]
    counts: dict[str, int]
    left_out: int
    """Lines after the last one that is shown."""
    spans: list[Span]
    is_whole: bool
    """Whether all of the text was marked."""

    def of(self, *names: str) -> list[Span]:
        """Return the values of some names, in the order of the text."""
        return [span for span in self.spans if span.use == "value" and span.name in names]


def marked_text(
    text: str,
    *,
    name: str,
    format: str,
    lines: int,
    findings: Sequence[Finding] = (),
    launch: Launch | None = None,
    first: int = 1,
) -> MarkedText:
    """Mark the beginning of a text that was read in a format.

    It begins at line `first` of a file of so many lines; `launch` has the settings if there is one launch.
    """
    head = text[:MARKED_CHARACTERS]
    if len(head) < len(text):
        head = head[: head.rfind("\n") + 1] or head
    texts = head.removesuffix("\n").split("\n")
    read = spans([f"{text}\n" for text in texts], format if format in FORMATS else None, file=name)
    found = [span._replace(line=span.line + first - 1) for span in read]
    doubts, checked = _doubts(findings), _checked(found, launch)
    uses = {span: _use(span, doubts, checked) for span in found}
    notes = {span: _note(span, doubts, checked) for span in found}
    by_line: dict[int, list[Span]] = {}
    for span in found:
        by_line.setdefault(span.line, []).append(span)
    shown, before = list[MarkedLine](), 0
    for number in list(_kept(range(first, first + len(texts)), by_line, uses))[:_MOST_LINES]:
        marks = list(_marks(texts[number - first], by_line.get(number, []), uses, notes))
        shown.append(MarkedLine(number, marks, number - before - 1))
        before = number
    left_out = max(0, max(lines, first + len(texts) - 1) - before)
    is_whole = first == 1 and len(head) == len(text)
    return MarkedText(shown, dict(Counter(uses.values())), left_out, found, is_whole)


class _Doubts(NamedTuple):
    """What findings say about numbers: by line, and the values that contradict."""

    by_line: dict[int, list[Finding]]

    def of(self, span: Span) -> Finding | None:
        return next((doubt for doubt in self.by_line.get(span.line, ()) if _is_meant(span, doubt)), None)


def _doubts(findings: Sequence[Finding]) -> _Doubts:
    by_line: dict[int, list[Finding]] = {}
    for finding in findings:
        for line in finding.lines:
            by_line.setdefault(line, []).append(finding)
    return _Doubts(by_line)


def _is_meant(span: Span, finding: Finding) -> bool:
    """Return whether a number is one of those that a finding names."""
    if span.use != "value" or span.value is None:
        return False
    if span.name == finding.where.figure:
        return True
    printed = _parsed(span.text)
    return any(
        abs(value - mine) <= _SAME * abs(value)
        for value in finding.numbers.values()
        for mine in (span.value, printed)
        if mine and value
    )


def _parsed(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return 0.0


def _checked(found: Sequence[Span], launch: Launch | None) -> dict[Span, str]:
    """Return the rates that agree with step time and batch, each with the arithmetic."""
    batch = launch.global_batch_size if launch else None
    tokens = batch * launch.sequence_length if launch and batch and launch.sequence_length else None
    times = {span.line: span for span in found if span.use == "value" and span.name == "step_time_s"}
    checked: dict[Span, str] = {}
    for span in found:
        time, per_step = times.get(span.line), {"samples_per_s": batch, "tokens_per_s": tokens}.get(span.name)
        if time is None or not time.value or not span.value or not per_step:
            continue
        if abs(span.value * time.value - per_step) <= _CHECKED * per_step:
            checked[span] = f"agrees with arithmetic: {per_step:,} / {time.value:g} s"
    return checked


def _use(span: Span, doubts: _Doubts, checked: dict[Span, str]) -> Use:
    if doubts.of(span) is not None:
        return "contradiction"
    if span.use == "unread":
        return "unused"
    if span in checked or span.kind == "derived":
        return "derived"
    return "average" if span.kind in _AVERAGES or _AVERAGE_NAME.search(span.name) else "read"


def _note(span: Span, doubts: _Doubts, checked: dict[Span, str]) -> str:
    doubt = doubts.of(span)
    if doubt is not None:
        return doubt.message
    if span.use == "unread":
        return f"not used: {span.name}"
    if span in checked:
        return checked[span]
    name = _NOTES.get(span.use) or span.name.replace("_", " ")
    kind = _AVERAGES.get(span.kind) or ("a part of the step only" if span.kind == "part" else "")
    return f"{name}: {kind}" if kind else name


def _kept(numbers: range, by_line: dict[int, list[Span]], uses: dict[Span, Use]) -> Iterator[int]:
    """Yield the lines to show: all of a short text, else those with new numbers, the last of each kind, and around."""
    if len(numbers) <= _SHORT:
        yield from numbers
        return
    shapes: Counter[tuple[tuple[str, str], ...]] = Counter()
    last: dict[tuple[tuple[str, str], ...], int] = {}
    wanted: set[int] = set()
    for line, own in sorted(by_line.items()):
        shape = tuple((uses[span], span.name) for span in own)
        shapes[shape] += 1
        last[shape] = line
        if shapes[shape] <= _ALIKE or any(uses[span] == "contradiction" for span in own):
            wanted.add(line)
    wanted.update(last.values())
    near = {at for line in wanted for at in range(line - _AROUND, line + _AROUND + 1)}
    yield from sorted(at for at in near if at in numbers and (at in wanted or at not in by_line))


def _marks(line: str, own: Sequence[Span], uses: dict[Span, Use], notes: dict[Span, str]) -> Iterator[Mark]:
    """Divide a line into plain text and marks; a long one ends early."""
    line = "".join(character if character.isprintable() or character == "\t" else "·" for character in line)
    at = 0
    for span in own:
        begin, end = _with_key(line, span, at)
        if begin >= _LONGEST:
            break
        if begin > at:
            yield Mark(line[at:begin])
        yield Mark(line[begin:end], uses[span], span.name if span.use != "unread" else "", notes[span])
        at = end
    end = max(at, _LONGEST if own else _LONGEST // 4)
    if line[at:end] or not own:
        yield Mark(line[at:end] if len(line) <= end else f"{line[at:end]}…")


def _with_key(line: str, span: Span, after: int) -> tuple[int, int]:
    """Return where a number begins with the key before it, and ends with the unit behind it."""
    begin, end = max(span.start, after), span.end
    at = line.rfind(span.key, after, begin) if span.key else -1
    between = line[at + len(span.key) : begin]
    if at >= 0 and len(between) <= _GAP and not any(character.isdigit() for character in between):
        begin = at
    elif match := _KEY.search(line, max(after, begin - 40), begin):
        begin = match.start()
    behind = line[end : end + len(span.unit) + 1]
    if span.unit and behind.lstrip().startswith(span.unit):
        end += len(behind) - len(behind.lstrip()) + len(span.unit)
    return begin, max(end, begin)
