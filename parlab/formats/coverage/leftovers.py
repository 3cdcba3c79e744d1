"""The named numbers of a line that no record of it holds: each of them is unread, whatever else of the line is read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from parlab.formats.coverage.positions import Places, place
from parlab.formats.grammar.pairs import Pair, pairs
from parlab.formats.grammar.prefixes import ANSI, strip_prefix
from parlab.formats.grammar.quantities import plain
from parlab.formats.grammar.records import Field, Record

# Records whose lines are judged by their numbers; a launch holds its line as arguments, a table as cells.
MEASURED = frozenset({"step", "metrics", "timers", "memory", "validation"})
# Numbers that say where and when a line was printed: a file and its line, a process, a step, a moment.
_PLACES = frozenset(
    {"step", "steps", "globalstep", "currentsteps", "iteration", "iter", "it", "update", "updates", "numupdates",
     "batch", "epoch", "epochnum", "totalsteps", "total", "totaliterations", "rank", "localrank", "globalrank",
     "worldrank", "pid", "ip", "line", "lineno", "gpu", "device", "node", "worker", "actor", "timems", "timestamp",
     "eta", "process", "vnum", "microstep", "train", "training", "trial", "dp", "pp", "tp", "cp", "ep", "progress",
     "in", "out", "err", "firstepochnum", "epochcount", "samplescount", "iters"}
)  # fmt: skip
# Of no interest: `utils.py:23`, `(trainer:756)`, `node-7:0 olmo.train`, `0000:C1:00.0`, the share in front of a bar.
_SOURCE = re.compile(
    r"[A-Za-z_][\w./-]*\.\w+:\d{1,6}(?![\d.])|(?<=[\[(:.])[A-Za-z_]\w*:\d{1,9}(?=[\])]|:| - )"
    r"|^\s*[A-Za-z][\w.-]*:\d{1,4}\s(?=\s{0,4}[a-z_]\w*\.)|\b[\da-fA-F]{4,8}:[\da-fA-F]{2}:[\da-fA-F]{2}\.\d"
    r"|\d{1,3}%\s{0,4}\||\bNCCL (?:INFO|WARN)\b.*|^\s*\[NeMo [A-Z] [^\]]{1,120}\]"
)
_MARK = re.compile(r"[:=]\s{0,20}['\"]?[+-]?\.?\d|\d\s?(?:[a-zA-Zµ%])|\d\s{0,4}[|,)]|\s\d")
MAX_LINE = 8_000
MAX_KNOWN = 2_048
LEAST_WIDTH = 40
# More numbers than this are not compared with their line, which takes long.
MAX_FIELDS = 300
TRIALS, MAX_LEFT = 3, 20


def named_numbers(text: str) -> list[Pair]:
    """Return the numbers of a line that have a name or a unit, without those that say where or when it was printed."""
    return [cell for cell in all_numbers(text) if not is_place(cell)]


def all_numbers(text: str) -> list[Pair]:
    """Return the numbers of a line that have a name or a unit."""
    text = text[:MAX_LINE]
    if _MARK.search(text) is None:
        return []
    return pairs(_SOURCE.sub(" ", strip_prefix(ANSI.sub("", text) if "\x1b" in text else text)[2]))


def is_place(cell: Pair) -> bool:
    """Return whether a number says where or when its line was printed: a step, an epoch, a rank, a moment."""
    if cell.key.lower() == "eta" or (cell.value is None and cell.key.endswith(" of")):
        return True
    if cell.unit not in ("", "%", cell.key):
        return False
    last = plain(re.split(r"[\s/(]", cell.key.rstrip(" )"))[-1])
    return last in _PLACES or plain(cell.key) in _PLACES


def left_over(texts: Mapping[int, str], records: Sequence[Record]) -> list[tuple[int, Pair]]:
    """Return the named numbers of lines that the records which the lines state do not hold."""
    if _is_wrapped(texts):
        texts = {min(texts): "".join(text.rstrip("\r\n") for text in texts.values())}
    named = {number: named_numbers(text) for number, text in texts.items()}
    if not any(named.values()) or sum(len(record.fields) for record in records) > MAX_FIELDS:
        return []
    lines = [Places(number, text.rstrip("\r\n")) for number, text in texts.items()]
    for record in records:
        place(record, lines)
    return [(line.line, cell) for line in lines for cell in named[line.line] if line.is_left(cell.key, cell.text)]


def _is_wrapped(texts: Mapping[int, str]) -> bool:
    """Return whether a terminal has wrapped one line: all parts but the last are about as long."""
    *parts, last = [text.rstrip("\r\n") for text in texts.values()]
    longest = max(map(len, parts), default=0)
    is_long = longest >= LEAST_WIDTH and len(last) <= longest and all(len(part) > 0.9 * longest for part in parts)
    return is_long and not all(part.lstrip()[:1] in _FRAMES for part in (*parts, last))


_FRAMES = frozenset("|│┃║+")


class Judge:
    """Says which numbers are left over; lines of one form, once they have been seen to be whole, are not looked at."""

    def __init__(self) -> None:
        self._forms: dict[tuple[tuple[Field, ...], int], int] = {}
        """Fields of the first record of a line, and its colons -> how many such lines were whole."""
        self._whole: dict[int, tuple[tuple[Field, ...], int]] = {}
        """Identity of fields that many records share -> the fields, and the colons of such lines that are whole."""

    def is_whole(self, text: str, fields: tuple[Field, ...]) -> bool:
        """Return whether enough lines of this form were whole."""
        form = fields, text.count(":")
        known = self._whole.get(id(fields))
        if known is not None and known[0] is fields and known[1] == form[1]:
            return True
        if self._forms.get(form, 0) < TRIALS:
            return False
        if len(self._whole) < MAX_KNOWN or known is not None:
            self._whole[id(fields)] = form
        return True

    def left_over(self, texts: Mapping[int, str], records: Sequence[Record]) -> dict[int, str]:
        """Return the named numbers that records of one or more lines do not hold: line -> what is left of it.

        Of a form that is often not whole, the lines are returned as they are.
        """
        if not any(record.kind in MEASURED for record in records):
            return {}
        first = records[0]
        text = next(iter(texts.values())) if len(texts) == 1 else "".join(texts.values())
        fields = first.fields or (Field(first.kind, str(len(first.values))),)
        form = fields, text.count(":")
        count = self._forms.get(form, 0)
        if count >= TRIALS:
            return {}
        if count <= -MAX_LEFT:
            return {first.line: text}
        left: dict[int, str] = {}
        for number, cell in left_over(texts, records):
            part = f"{cell.key}: {cell.text}{cell.unit}"
            left[number] = f"{left[number]}, {part}" if number in left else part
        if len(self._forms) < MAX_KNOWN or form in self._forms:
            self._forms[form] = min(count, 0) - 1 if left else count + 1 if count >= 0 else count
        return left
