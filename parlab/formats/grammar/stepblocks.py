"""Steps over several lines: the number on a line of its own, `=== Step 3/100 ===`, and the cells on the lines below.

Sources: nemo_rl/algorithms/grpo.py, rsl_rl's runner, fms-fsdp's train_utils.py; the loggers of Composer and OLMo; the
boxes that the loggers of tinker_cookbook and AReaL draw, with names and numbers in turn: `│ time/total │ 43.12 │`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from parlab.formats.grammar.counters import counter_in
from parlab.formats.grammar.metric_fields import HELD_OUT
from parlab.formats.grammar.pairs import Pair, pairs
from parlab.formats.grammar.prefixes import ANSI
from parlab.formats.grammar.records import Record, unread
from parlab.formats.grammar.stepcells import StepCells, StepPlan, digits_of, record_of
from parlab.formats.grammar.units import LARGEST, floats, to_float, to_int

MAX_LINES = 200
MAX_CELLS = 400
MAX_HEAD = 240
_HEAD = re.compile(
    r"(?i)(?:\W{0,100}|.{0,80}INFO:? {1,8}Epoch \d{1,9}/\d{1,9} Step \d{1,9}/\d{1,9} )"
    r"(?:(?:global|train(?:ing)?|learning) )?"
    r"(?:step|iteration|iter|update|rollout)\s{0,3}[:=#]?\s{0,3}(?P<at>\d{1,15})(?:\s?(?:/|of)\s?(?P<total>\d{1,15}))?"
    r"(?: done)?\W{0,100}"
)
# An epoch counts as the step of a log whose lines state no other number.
_EPOCH = re.compile(r"(?i)\W{0,100}epoch:?\s{0,3}(?P<at>\d{1,9})(?:\s?/\s?(?P<total>\d{1,9}))?\s{0,9}")
# The heads of Composer and OLMo, whose cells are indented.
_TAG = re.compile(
    r"(?:.{0,160}\s)?(?:\[epoch=\d{1,9}(?:/\d{1,9})?\])?"
    r"\[(?:batch|step)=(?P<at>\d[\d,]{0,17})(?:/(?P<total>\d[\d,]{0,17}))?(?:,epoch=[\d/]{1,20})?(?:,eta=[^\]]{1,40})?\]:?"
)
# `Train loss/train/total: 2.3`, `Eval metrics/eval/LanguagePerplexity: 9.8`.
_SIDE = re.compile(r"(?:Train|Eval|Validation) (?=\w+/)")
_BARS = "|│┃║"
_FRAMES = str.maketrans("│┃║", "|||")
MAX_ROW = 2_002
_ITEM = " \t•*▶▸-"
# What may not stand in front of a number is looked at behind its first character: a search for those is fast.
_NUMBER = r"(?:\d{0,2}(?:,\d{3}){1,5}|\d{0,17})(?:\.\d{1,18})?(?:[eE][+-]?\d{1,3})?"
_TOKEN = re.compile(rf"([+\-\d](?<![\w.,+/:-].)(?:(?<=\d)|(?=\d)){_NUMBER})(?![\d.,:/])")
_SAME = rf"([+-]?\d{_NUMBER})(?![\d.,:/])"
MAX_LAYOUTS = 1_000
MAX_TOKENS = 8
MAX_PLANS = 256
_MASK = str.maketrans("123456789", "000000000")


class _Head(NamedTuple):
    """The number of a step as printed, the text around it, and the places of both numbers in it."""

    text: str
    at: tuple[int, int]
    total: tuple[int, int] | None
    is_tag: bool = False
    """Whether the cells below it are indented."""
    is_epoch: bool = False


# Excerpts may begin below the head of a block.
_CUT_OFF = _Head("", (0, 0), None, is_tag=True)
_OF_TAG = re.compile(r"(?:Train )?[a-z_]+/[^=:]{1,80}[=:]\s?[\d.-]")


class _Layout:
    """A line of a block: its cells, and what matches lines that differ from it in their numbers only."""

    __slots__ = ("cells", "following", "match")

    def __init__(self, cells: Sequence[Pair], shape: str | None = None) -> None:
        self.cells = cells
        self.match = re.compile(shape).match if shape is not None else None
        self.following: _Layout | None = None
        """The layout of the next line, the last time."""


class _Plan(NamedTuple):
    """What the numbers of a whole block become."""

    step: StepPlan
    digits: Sequence[tuple[int, str]]
    """Places of numbers on whose form the names of their fields depend, and these forms."""


class StepBlocks:
    """Collects the lines below the number of a step until the next one.

    Blocks mostly repeat: a line is compared with the layout that followed the one before it in an earlier block, and
    blocks of the same layouts are read with the plan of the first of them.
    """

    def __init__(self, records_of: StepCells, *, has_tags: bool = False, counts_epochs: bool = False) -> None:
        """`has_tags`: heads are tags, without which indented cells are a block that was cut off.

        `counts_epochs`: a line `Epoch 3` is a head too, until a line states the number of a step.
        """
        self.records_of = records_of
        self.has_tags = has_tags
        self.counts_epochs = counts_epochs
        self.line = self.until = 0
        self.time: str | None = None
        self.head: _Head | None = None
        self.rows: list[_Layout] = []
        self.texts: list[str] = []
        """The numbers of the rows as printed."""
        self.keys: set[str] = set()
        """Keys of the blocks that another one has followed: a file may end with figures of the whole training."""
        self.heads: dict[str, _Head] = {}
        """Head of a block, with 0 for each digit -> one of these."""
        self.layouts: dict[tuple[str, ...], _Layout] = {}
        """Text between the numbers of a line -> its layout, if all numbers are values."""
        self.plans: dict[tuple[_Layout, ...], _Plan] = {}
        self.top = self.last = _Layout(())

    def again(self, line: int, text: str) -> list[Record] | None:
        """Read a line whose layout an earlier line of a block has had, or a head; None for any other line."""
        layout = self.last.following
        match = layout.match(text) if layout is not None and layout.match is not None else None
        if match is not None:
            numbers: Sequence[str] = match.groups()
        else:
            text = text.strip()
            if (head := self._known_head(text)) is not None:
                return self._open(line, head)
            parts = _TOKEN.split(text, MAX_TOKENS)
            layout, numbers = self.layouts.get(_between(parts, text)), parts[1::2]
        if layout is None or line - self.line > MAX_LINES:
            return None
        self.last.following = self.last = layout
        self.rows.append(layout)
        self.texts += numbers
        self.until = line
        return []

    def feed(self, line: int, text: str, time: str | None = None) -> list[Record] | None:
        """Read a line of a block, or its head, which returns the step before it; None for any other line."""
        is_indented = text[:1].isspace()
        text = ANSI.sub("", text).strip() if "\x1b" in text else text.strip()
        if (head := self._head(text)) is not None:
            return self._open(line, head, time)
        if self.head is None and is_indented and self.has_tags and _OF_TAG.match(text):
            self._open(line, _CUT_OFF)
        if self.head is None or (self.head.is_tag and not is_indented):
            return None
        cells = _cells(text)
        if not cells:
            return None
        parts = _only_values(_TOKEN.split(text, MAX_TOKENS), cells)
        layout = _Layout(cells)
        if parts[1::2] == [cell.text for cell in cells] and len(self.layouts) < MAX_LAYOUTS:
            between = _between(parts, text)
            layout = self.layouts[between] = _Layout(cells, _shape(between, text))
        self.last.following = self.last = layout
        self.rows.append(layout)
        self.texts += [cell.text for cell in cells]
        self.until = line
        return []

    def _open(self, line: int, head: _Head, time: str | None = None) -> list[Record]:
        """Begin a block, and return the step of the one before it."""
        records = self.close()
        self.head, self.line, self.until, self.last = head, line, line, self.top
        self.time = None if head.is_epoch else time
        return records

    def ends(self, line: int, text: str) -> bool:
        """Return whether a line is no part of the block above it: it states a step itself, or stands too far below."""
        if self.head is None:
            return False
        if line - self.line > MAX_LINES or len(self.texts) > MAX_CELLS:
            return True
        is_step = self._head(text[:MAX_HEAD].strip()) is None and counter_in(text[:400]) is not None
        self.counts_epochs = self.counts_epochs and not is_step
        return is_step

    def _known_head(self, text: str) -> _Head | None:
        """Return the head of a block that differs from an earlier one in its digits only."""
        head = self.heads.get(text.translate(_MASK)) if len(text) < MAX_HEAD else None
        return head._replace(text=text) if head is not None and head.is_epoch <= self.counts_epochs else None

    def _head(self, text: str) -> _Head | None:
        """Return the head of a block; None for any other line."""
        if (head := self._known_head(text)) is not None:
            return head
        if (head := _head(text)) is None or head.is_epoch > self.counts_epochs:
            return None
        if len(self.heads) < MAX_LAYOUTS:
            self.heads[text.translate(_MASK)] = head
        return head

    def close(self, *, is_last: bool = False) -> list[Record]:
        """Return the step of a block, and the figures behind the last one as those of the launch."""
        head, rows, texts = self.head, tuple(self.rows), tuple(self.texts)
        self.head, self.rows, self.texts = None, [], []
        if head is None or not rows:
            return []
        records = (
            self._of_launch(rows, texts) if head is _CUT_OFF else self._of_step(head, rows, texts, is_last=is_last)
        )
        for record in records:
            record.until = self.until
        return records

    def _of_launch(self, rows: tuple[_Layout, ...], texts: tuple[str, ...]) -> list[Record]:
        """Return the figures of a block whose head was cut off."""
        own, held_out = _sides(rows, texts)
        figures = record_of("metrics", self.line, None, None, [(cell, self.records_of.field(cell)) for cell in own])
        return figures + (self.records_of.validation(self.line, None, held_out, None) if held_out else [])

    def _of_step(
        self, head: _Head, rows: tuple[_Layout, ...], texts: tuple[str, ...], *, is_last: bool
    ) -> list[Record]:
        iteration = to_int(head.text[slice(*head.at)])
        total = to_int(head.text[slice(*head.total)]) if head.total is not None else None
        if iteration is None:
            return [unread(self.line, "the number of a step is damaged", head.text)]
        if head.is_epoch and not self.counts_epochs:
            beside = [(cell, self.records_of.field(cell)) for cell in _sides(rows, texts)[0]]
            return record_of("metrics", self.line, None, None, beside)
        records = None if is_last else self._planned(rows, texts, iteration, total)
        if records is None:
            records = self._each(rows, texts, iteration, total, is_last=is_last)
        return records

    def _planned(
        self, rows: tuple[_Layout, ...], texts: tuple[str, ...], iteration: int, total: int | None
    ) -> list[Record] | None:
        """Return the records of a block whose layouts an earlier block has had; None for any other block."""
        plan = self.plans.get(rows)
        if plan is None or any(digits_of(texts[place]) != form for place, form in plan.digits):
            return None
        try:
            numbers = floats(texts if "," not in "".join(texts) else [text.replace(",", "") for text in texts])
        except ValueError:
            return None
        if not -LARGEST < sum(numbers) < LARGEST:
            return None
        return plan.step.records(self.line, None, self.time, numbers, texts, iteration, total)

    def _each(
        self, rows: tuple[_Layout, ...], texts: tuple[str, ...], iteration: int, total: int | None, *, is_last: bool
    ) -> list[Record]:
        """Return the records of a block cell by cell, and keep its plan."""
        own, held_out = _sides(rows, texts)
        cells = [cell for cell in own if cell.key in self.keys] if is_last and self.keys else own
        self.keys.update(cell.key for cell in cells)
        records = self.records_of.records(self.line, None, self.time, cells, iteration, total) if cells else []
        if records and not held_out and not is_last:
            self._keep(rows, cells)
        if held_out:
            records += self.records_of.validation(self.line, None, held_out, iteration)
        if len(cells) < len(own):
            behind = [(cell, self.records_of.field(cell)) for cell in own if cell.key not in self.keys]
            records += record_of("metrics", self.line, None, None, behind)
        return records

    def _keep(self, rows: tuple[_Layout, ...], cells: list[Pair]) -> None:
        """Keep the plan of a block of numbers on lines whose layouts are kept."""
        if len(self.plans) >= MAX_PLANS or not all(row.match is not None for row in rows):
            return
        if all(cell.value is not None for cell in cells):
            sensitive = [(at, cell) for at, cell in enumerate(cells) if self.records_of.follows_digits(cell)]
            digits = [(at, digits_of(cell.text)) for at, cell in sensitive]
            self.plans[rows] = _Plan(self.records_of.plan(cells), digits)


def _head(text: str) -> _Head | None:
    """Return the head of a block; None for any other line."""
    if len(text) >= MAX_HEAD:
        return None
    is_tag = text.endswith(("]", "]:")) and ("[batch=" in text or "[step=" in text)
    match = _TAG.fullmatch(text) if is_tag else _HEAD.fullmatch(text) or _EPOCH.fullmatch(text)
    if match is None:
        return None
    total = match.span("total") if match["total"] else None
    return _Head(text, match.span("at"), total, is_tag, match.re is _EPOCH)


def _sides(rows: Sequence[_Layout], texts: Sequence[str]) -> tuple[list[Pair], list[Pair]]:
    """Return the cells of a block: those of the training, and those of held-out data."""
    layouts = [cell for row in rows for cell in row.cells]
    cells = [Pair(cell.key, text, cell.unit, to_float(text)) for cell, text in zip(layouts, texts, strict=True)]
    held_out = [cell for cell in cells if HELD_OUT.match(cell.key)]
    own = [cell for cell in cells if not HELD_OUT.match(cell.key)] if held_out else cells
    return [_without_side(cell) for cell in own], [_without_side(cell) for cell in held_out]


def _without_side(cell: Pair) -> Pair:
    return cell._replace(key=cell.key[match.end() :]) if (match := _SIDE.match(cell.key)) is not None else cell


def _is_row(text: str) -> bool:
    """Return whether a line is a row of a box."""
    return 2 < len(text) <= MAX_ROW and text[0] in _BARS and text[-1] in _BARS


def _only_values(parts: Sequence[str], cells: Sequence[Pair]) -> Sequence[str]:
    """Return the parts of a line with the numbers that are no values, as in `LR (group 0)=1.2e-05`, as text."""
    own, kept = iter(cells), [parts[0]]
    cell = next(own, None)
    for number, behind in zip(parts[1::2], parts[2::2], strict=True):
        if cell is not None and cell.text == number and kept[-1].endswith(("=", ":", " ")):
            kept += [number, behind]
            cell = next(own, None)
        else:
            kept[-1] += number + behind
    return kept


def _between(parts: Sequence[str], text: str) -> tuple[str, ...]:
    """Return the text between the numbers of a line; spaces beside the numbers of a box mean nothing."""
    if not _is_row(text):
        return tuple(parts[::2])
    return (parts[0].rstrip(" "), *[part.strip(" ") for part in parts[2:-1:2]], parts[-1].lstrip(" "))


def _shape(between: Sequence[str], text: str) -> str:
    """Return the expression of lines with other numbers."""
    number = rf" *{_SAME} *" if _is_row(text) else _SAME
    return rf"\s*{number.join(map(re.escape, between))}\s*\Z"


def _cells(text: str) -> list[Pair]:
    """Return the cells of a line in a block; a row of a box has names and numbers in turn."""
    if not _is_row(text):
        return pairs(text.lstrip(_ITEM))
    parts = [part.strip() for part in text.translate(_FRAMES).strip("|").split("|")]
    return [
        Pair(name, value, "", number)
        for name, value in pairwise(parts)
        if name and to_float(name) is None and (number := to_float(value)) is not None
    ]
