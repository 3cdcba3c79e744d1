"""Lines of the DeepSpeed engine, and of NeMo, that a terminal wrapped at its width, joined again.

All parts but the last are as long as the terminal is wide, so no line before them is longer. The parts are joined only
if together they are one whole line of the program; otherwise each stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from parlab.formats.grammar.records import Record

# No terminal is narrower than this; no line has more parts than these.
NARROWEST = 40
MAX_PARTS = 24

_BEGINS = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{1,6}\] \[[A-Z]{4,7}\] \[(?:logging|timer)\.py:")
_ANOTHER = re.compile(r"\s*(?:$|Training epoch|\[\d{4}-|\[(?:default|rank)\d|[{<*]|\d{1,6}: )")
_NUMBER = r"[+-]?\d{1,20}(?:\.\d{0,20})?(?:[eE][+-]?\d{1,4})?"
_LIST = r"\[[^\]]{0,400}\]"
_CELL = rf"\w[\w ./-]{{0,60}}: {_NUMBER}"
_WHOLE = re.compile(
    r"\[[\d :,-]{19,30}\] \[[A-Z]{4,7}\] \[\w{1,20}\.py:\d{1,6}:\w{1,40}\] (?:\[Rank -?\d{1,7}\] )?(?:"
    rf"step=\d{{1,18}}, skipped=\d{{1,18}}, lr={_LIST}(?:, mom=\[.{{0,400}}\])?"
    rf"|(?:epoch=)?\d{{1,12}}/[\w=/]{{1,60}}(?:, \w{{1,40}}={_NUMBER}(?:GB)?){{1,12}}"
    rf"|(?:rank=\d{{1,7}} )?time \(ms\) \| ?{_CELL}(?: ?\| ?{_CELL}){{0,60}}"
    r")\s*"
)
# NeMo 2.0: cells between bars behind the iteration.
NEMO = (
    re.compile(r"(?:\d{1,6}: )?Training epoch \d"),
    re.compile(
        r"(?:\d{1,6}: )?Training epoch \d{1,9}, iteration \d{1,15}/\d{1,15}"
        rf"(?: \| [A-Za-z][\w /-]{{0,60}}: {_NUMBER}){{1,60}}\s*"
    ),
)
_DIGITS = re.compile(r"[\d.\s]*")


class Unwrapped:
    """Passes lines on: a joined line in place of its first part, and empty lines in place of the others."""

    def __init__(
        self, lines: Iterable[str], forms: tuple[re.Pattern[str], re.Pattern[str]] = (_BEGINS, _WHOLE)
    ) -> None:
        """`forms` are the beginning of a line and a whole one."""
        self._lines = lines
        self._begins, self._whole = forms
        self._longest = NARROWEST
        self._width = 0
        """The width of the terminal, once a line was joined beyond doubt."""
        self._parts: list[str] = []
        self.ends: dict[int, int] = {}
        """First line of a joined one -> its last line."""

    def __iter__(self) -> Iterator[str]:
        number = 0
        for number, line in enumerate(self._lines, 1):
            if self._parts:
                if self._goes_on(line):
                    continue
                yield from self._release(number)
            size = len(line)
            if size >= self._longest and self._begins.match(line):
                self._longest = max(self._longest, len(line.rstrip("\r\n")))
                self._parts = [line]
                continue
            if size > self._longest + 1:
                self._longest = len(line.rstrip("\r\n"))
            yield line
        yield from self._release(number + 1)

    def read(self, reader: Callable[[Iterable[str]], Iterator[Record]]) -> Iterator[Record]:
        """Yield the records that a reader makes of the lines."""
        for record in reader(self):
            record.until = max(record.until, self.ends.get(record.line, 0))
            yield record

    def extend(self, records: Iterable[Record]) -> None:
        """Extend records of a joined line to its last part."""
        for record in records:
            record.until = max(record.until, self.ends.get(record.line, 0))

    def _goes_on(self, line: str) -> bool:
        """Add a line to the parts if it may continue them."""
        if self._begins.match(line):
            return False
        size = len(line.rstrip("\r\n"))
        full = len(self._parts[-1].rstrip("\r\n")) >= self._longest - 1
        if not full or size > self._longest or len(self._parts) >= MAX_PARTS or _ANOTHER.match(line):
            return False
        self._parts.append(line)
        return True

    def _release(self, number: int) -> Iterator[str]:
        """Yield the parts, which end before line `number`: as many of them as possible joined."""
        parts, self._parts = self._parts, []
        texts = [part.rstrip("\r\n") for part in parts]
        for count in range(len(parts), 1, -1):
            joined = self._joined(texts[:count])
            if joined and self._is_certain(texts[:count]):
                first = number - len(parts)
                self.ends[first] = first + count - 1
                yield joined
                yield from ["\n"] * (count - 1)
                yield from parts[count:]
                return
        yield from parts

    def _joined(self, texts: list[str]) -> str:
        """Return the whole line of these parts, which may have lost the space at their end; empty if it is none."""
        text = "".join(part + " " * (0 < self._longest - len(part) < 2) for part in texts[:-1]) + texts[-1]
        return f"{text}\n" if self._whole.fullmatch(text) else ""

    def _is_certain(self, texts: list[str]) -> bool:
        """Return whether the parts are more than a whole line with a number of the program's own below it."""
        if self._whole.fullmatch(texts[0]) is None or len(texts) > 2:
            self._width = self._longest
            return True
        return self._width == self._longest or _DIGITS.fullmatch(texts[1]) is None
