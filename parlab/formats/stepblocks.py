"""Steps over several lines: the number on a line of its own, `=== Step 3/100 ===`, and the cells on the lines below.

Sources: nemo_rl/algorithms/grpo.py, rsl_rl's runner, fms-fsdp's train_utils.py; the boxes that the loggers of
tinker_cookbook and AReaL draw, with names and numbers in turn: `│ time/total │ 43.12 │`.
"""

from __future__ import annotations

import re
from itertools import pairwise

from parlab.formats.counters import counter_in
from parlab.formats.metric_fields import HELD_OUT
from parlab.formats.pairs import Pair, pairs
from parlab.formats.peel import ANSI
from parlab.formats.quantities import to_float, to_int
from parlab.formats.records import Record, unread
from parlab.formats.stepcells import StepCells, record_of

MAX_LINES = 200
MAX_CELLS = 400
_HEAD = re.compile(
    r"(?i)(?:\W{0,100}|.{0,80}INFO:? {1,8}Epoch \d{1,9}/\d{1,9} Step \d{1,9}/\d{1,9} )"
    r"(?:(?:global|train(?:ing)?|learning) )?"
    r"(?:step|iteration|iter|update|rollout)\s{0,3}[:=#]?\s{0,3}(?P<at>\d{1,15})(?:\s?(?:/|of)\s?(?P<total>\d{1,15}))?"
    r"(?: done)?\W{0,100}"
)
_FRAMES = str.maketrans("│┃║", "|||")
_ROW = re.compile(r"\s*\|.{1,2000}\|\s*$")
_ITEM = " \t•*▶▸-"
# What may not stand in front of a number is looked at behind its first character: a search for those is fast.
_TOKEN = re.compile(
    r"([+\-\d](?<![\w.,+/:-].)(?:(?<=\d)|(?=\d))\d{0,17}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,3})?)(?![\d.,:/])"
)
MAX_LAYOUTS = 1_000
MAX_TOKENS = 8


class StepBlocks:
    """Collects the cells below the number of a step until the next one."""

    def __init__(self, records_of: StepCells) -> None:
        self.records_of = records_of
        self.line = self.until = 0
        self.head: re.Match[str] | None = None
        self.cells: list[Pair] = []
        self.held_out: list[Pair] = []
        self.keys: set[str] = set()
        """Keys of the blocks that another one has followed: a file may end with figures of the whole training."""
        self.layouts: dict[tuple[str, ...], list[tuple[Pair, bool]]] = {}
        """Text between the numbers of a line -> its cells and whether each is held out, if all numbers are values."""

    def again(self, line: int, text: str) -> bool:
        """Read a line whose layout an earlier line of a block has had; return False for any other line."""
        parts = _TOKEN.split(text.strip(), MAX_TOKENS)
        layout = self.layouts.get(tuple(parts[::2]))
        if layout is None or line - self.line > MAX_LINES:
            return False
        for (cell, is_held_out), printed in zip(layout, parts[1::2], strict=True):
            value = Pair(cell.key, printed, cell.unit, to_float(printed))
            (self.held_out if is_held_out else self.cells).append(value)
        self.until = line
        return True

    def feed(self, line: int, text: str) -> list[Record] | None:
        """Read a line of a block, or its head, which returns the step before it; None for any other line."""
        text = ANSI.sub("", text).strip() if "\x1b" in text else text.strip()
        if len(text) < 240 and (head := _HEAD.fullmatch(text)) is not None:
            records = self.close()
            self.head, self.line, self.until = head, line, line
            return records
        if self.head is None:
            return None
        cells = _cells(text)
        if not cells:
            return None
        marked = [(cell, HELD_OUT.match(cell.key) is not None) for cell in cells]
        parts = _TOKEN.split(text, MAX_TOKENS)
        if parts[1::2] == [cell.text for cell in cells] and len(self.layouts) < MAX_LAYOUTS:
            self.layouts[tuple(parts[::2])] = marked
        self.until = line
        for cell, is_held_out in marked:
            (self.held_out if is_held_out else self.cells).append(cell)
        return []

    def ends(self, line: int, text: str) -> bool:
        """Return whether a line is no part of the block above it: it states a step itself, or stands too far below."""
        if self.head is None:
            return False
        if line - self.line > MAX_LINES or len(self.cells) > MAX_CELLS:
            return True
        return _HEAD.fullmatch(text[:240].strip()) is None and counter_in(text[:400]) is not None

    def close(self, *, is_last: bool = False) -> list[Record]:
        """Return the step of a block, and the figures behind the last one as those of the launch."""
        head, cells, held_out = self.head, self.cells, self.held_out
        self.head, self.cells, self.held_out = None, [], []
        if head is None or not (cells or held_out):
            return []
        iteration, total = to_int(head["at"]), to_int(head["total"] or "")
        if iteration is None:
            return [unread(self.line, "the number of a step is damaged", head[0])]
        behind: list[Pair] = []
        if is_last and self.keys:
            behind = [cell for cell in cells if cell.key not in self.keys]
            cells = [cell for cell in cells if cell.key in self.keys]
        self.keys.update(cell.key for cell in cells)
        records = self.records_of.records(self.line, None, None, cells, iteration, total) if cells else []
        if held_out:
            records += self.records_of.validation(self.line, None, held_out, iteration)
        records += record_of("metrics", self.line, None, None, [(cell, self.records_of.field(cell)) for cell in behind])
        for record in records:
            record.until = self.until
        return records


def _cells(text: str) -> list[Pair]:
    """Return the cells of a line in a block; a row of a box has names and numbers in turn."""
    row = text.translate(_FRAMES)
    if _ROW.match(row) is None:
        return pairs(text.lstrip(_ITEM))
    parts = [part.strip() for part in row.strip().strip("|").split("|")]
    return [
        Pair(name, value, "", number)
        for name, value in pairwise(parts)
        if name and to_float(name) is None and (number := to_float(value)) is not None
    ]
