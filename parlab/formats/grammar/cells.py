"""Fast reading of lines of the form `key: value | key: value |`.

A line's *layout* is its keys in their order. A layout seen twice is compiled into one regular expression that reads the
whole line at once; every other line takes the slow way, which knows about damage. Both give the same records.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from parlab.formats.grammar.pairs import AVERAGE, Pair
from parlab.formats.grammar.records import Field
from parlab.formats.grammar.rows import Columns
from parlab.formats.grammar.units import to_float

MAX_LAYOUTS = 32
MAX_CELLS = 400
MAX_KEY = 80
# Suffix of the key of a size in GB, `hip mem usage/free: 100.1GB/91.9GB`.
SIZE = " (GB)"
_SIZES = re.compile(r"[\d.]{1,20}GB(?:/[\d.]{1,20}(?:GB|%)){1,8}")

# Megatron-LM 1.0 prints no colon: `lm loss 8.1E+00`.
_SPACED = re.compile(r"([A-Za-z][^\d|]{0,60}?) ([+-]?[\d.]{1,40}(?:[eE][+-]?\d{1,4})?)")
_VALUE = r" *([0-9.eE+-]+) *"


def cell(key: str, text: str) -> Pair:
    """Return a cell without a unit; its value is None if it was cut off or is not a number."""
    return Pair(key, text, "", to_float(text))


class Layout(NamedTuple):
    """A compiled line: groups are those of the head, then one value per field."""

    match: Callable[[str], re.Match[str] | None]
    columns: Columns


class Layouts:
    """The layouts of one kind of line, most recently used first."""

    def __init__(self, head: str, field_of: Callable[[str], Field], *, closed: bool) -> None:
        """`head` is the pattern before the first cell; `closed` lines end with a bar after the last cell."""
        self.head = head
        self.field_of = field_of
        self.tail = r"\|\s*\Z" if closed else r"\s*\Z"
        self.layouts: list[Layout] = []
        self.seen: set[tuple[str, ...]] = set()

    def learn(self, keys: tuple[str, ...]) -> None:
        """Compile a layout when its keys occur for the second time."""
        if len(self.layouts) >= MAX_LAYOUTS or len(keys) > 80:
            return
        if keys not in self.seen:
            if len(self.seen) >= MAX_LAYOUTS * 4:
                self.seen.clear()
            self.seen.add(keys)
            return
        self.seen.discard(keys)
        body = ""
        for key in keys:
            pair = key.endswith(AVERAGE)
            body += rf"/{_VALUE}" if pair else rf"{body and '[|]'} *{re.escape(key)}:?{_VALUE}"
        first = re.compile(self.head).groups
        columns = Columns(range(first, first + len(keys)), [self.field_of(key) for key in keys])
        self.layouts.insert(0, Layout(re.compile(self.head + body + self.tail).match, columns))

    def prefer(self, index: int) -> None:
        """Move a layout that matched to the front."""
        self.layouts.insert(0, self.layouts.pop(index))


# Keys that a terminal breaks in the middle.
_LONG_KEYS = frozenset({
    "consumed samples", "consumed train samples", "elapsed time per iteration (ms)", "elapsed time per iteration (s)",
    "throughput per GPU (TFLOP/s/GPU)", "learning rate", "global batch size", "lm loss", "loss scale", "grad norm",
    "num zeros", "params norm", "number of skipped iterations", "number of nan iterations", "max allocated",
    "max reserved", "actual seqlen", "samples per second", "load_balancing_loss",
})  # fmt: skip


_IN_NUMBER = frozenset("0123456789.eE+-")


def continues(line: str, text: str) -> bool:
    """Return whether a text has cells of an iteration line, or the end of one, that `line` does not have."""
    keys = [" ".join(part.partition(":")[0].split()) for part in text.split("|")[:MAX_CELLS] if ":" in part]
    if any(f"{key}:" in line for key in keys):
        return False
    return any(len(key) > 3 and any(long.endswith(key) for long in _LONG_KEYS) for key in keys)


def joined(lines: list[str]) -> str:
    """Join the lines into which a terminal wrapped one line: a key is mended, other cells break at the width."""
    width = max((len(line) for line in lines[1:-1]), default=0)
    text = lines[0]
    for index, line in enumerate(lines[1:], 1):
        tail, head = text.rpartition("|")[2], line.partition("|")[0]
        key = head.partition(":")[0]
        if ":" not in tail and f"{tail.strip()} {key.strip()}" in _LONG_KEYS:
            text += " " + line.lstrip()
        elif ":" not in tail and f"{tail.lstrip()}{key.rstrip()}" in _LONG_KEYS:
            text += line
        else:
            is_full = index > 1 and len(lines[index - 1]) >= width and tail.strip() != ""
            is_number = ":" in tail and tail[-1:] in _IN_NUMBER and line[:1] in _IN_NUMBER
            text += line if is_full or is_number else f" {line}"
    return text


def split_cells(text: str) -> list[Pair]:
    """Read `key: value |` cells in any order; cells without a colon are ignored.

    A value may be a pair, `13100.0/13240.9` (current and average): the second one gets the key `... average`.
    """
    cells: list[Pair] = []
    for part in text.split("|")[:MAX_CELLS]:
        key, colon, value = part.partition(":")
        key = " ".join(key[-MAX_KEY * 2 :].split())[:MAX_KEY]
        value = value.strip()[:MAX_KEY]
        if not colon:
            spaced = _SPACED.fullmatch(key)
            if spaced:
                cells.append(cell(spaced[1], spaced[2]))
            elif key:
                cells.append(cell(key, ""))
            continue
        if not key:
            continue
        if value[-1:] in "B%" and _SIZES.fullmatch(value):
            cells += _sizes(key, value)
            continue
        current, slash, average = value.partition("/")
        both = [cell(key, current), cell(f"{key}{AVERAGE}", average)]
        if slash and all(part.value is not None for part in both):
            cells += both
        else:
            cells.append(_united(key, value) if value[-1:] == "S" else cell(key, value))
    return cells


def _sizes(key: str, value: str) -> list[Pair]:
    """Read `hip mem usage/free/total/usage_ratio: 100.1GB/91.9GB/192.0GB/52.1%` of Primus; the share repeats them."""
    first, *others = key.split("/")
    head = first.rpartition(" ")[0]
    names = [first, *(f"{head} {name}".strip() for name in others)]
    pairs = zip(names, value.split("/"), strict=False)
    sizes = [(name, text.removesuffix("GB")) for name, text in pairs if text.endswith("GB")]
    return [cell(f"{name}{SIZE}", text) for name, text in sizes]


def _united(key: str, value: str) -> Pair:
    """Read `approx flops per GPU: 112.9TFLOPS` of GPT-NeoX."""
    text = value.removesuffix("TFLOPS").strip()
    number = to_float(text)
    per_gpu = number is not None and text != value and key.endswith("per GPU")
    return cell("tflops", text) if per_gpu else cell(key, value)
