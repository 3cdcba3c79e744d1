"""Cells of a line of any trainer: `key: value unit`, `key=value`, `key value` between bars, `36.58 ms`."""

from __future__ import annotations

import re
from typing import NamedTuple

from parlab.formats.metric_fields import RATES
from parlab.formats.quantities import UNITS, to_float

MAX_TEXT = 8_000
MAX_PAIRS = 200


class Pair(NamedTuple):
    """One cell as printed; the value is None if it is not a finite number."""

    key: str
    text: str
    unit: str
    value: float | None


_NUMBER = r"[+-]?(?:\d{1,3}(?:,\d{3}){1,6}(?![\d,])|\d{1,40}|(?=\.\d))(?:\.\d{0,40})?(?:[eE][+-]?\d{1,4})?"
_WORDS = "|".join(sorted((re.escape(unit) for unit in {*UNITS, *RATES} if unit != "%"), key=len, reverse=True))
_UNIT = rf"\s?(?:(?i:{_WORDS})(?![\w/])|%)|[A-Za-zµ][A-Za-z/]{{0,15}}(?![\w])"
_KEY = r"[A-Za-z_][\w./@-]{0,80}(?: [A-Za-z][\w./@-]{0,30}){0,4}(?:\s?\([^()|:=]{1,40}\))?"
_PAIR = re.compile(
    rf"(?<![\w./])['\"]?(?P<key>{_KEY})['\"]?\s{{0,4}}[:=]\s{{0,20}}(?P<value>{_NUMBER}|(?i:nan|[+-]?inf)\b)(?P<unit>{_UNIT})?"
    r"(?=[\s,;|)\]}(]|$)"
)
_SPACED = re.compile(
    rf"^\s*(?P<key>[A-Za-z][\w/]{{0,40}}(?: [A-Za-z][\w/]{{0,30}}){{0,3}})\s{{1,20}}"
    rf"(?P<value>{_NUMBER}|(?i:nan|[+-]?inf)\b)"
    rf"(?P<unit>{_UNIT})?\s*(?:\([^()]{{0,40}}\)?)?\s*$"
)
_BARE = re.compile(
    rf"^\s*\(?\s*(?P<value>{_NUMBER})\s?(?P<unit>(?i:{_WORDS})(?![\w/])|%)(?:\s+(?P<key>[\w ]{{1,40}}?))?\s*\)?\s*$"
)
_TIME = frozenset({"ns", "us", "ms", "s", "sec", "secs", "seconds"})


def pairs(text: str) -> list[Pair]:
    """Return the cells of a line, in its order; parts between bars may also be `lr 3e-4` or `36.58 ms`."""
    text = text[:MAX_TEXT]
    cells: list[Pair] = []
    for part in text.split("|") if "|" in text else _sentences(text):
        before = len(cells)
        for match in _PAIR.finditer(part):
            if ".py" not in match["key"]:
                cells.append(_pair(match["key"], match))
        if len(cells) == before and (cell := _single(part)) is not None:
            cells.append(cell)
        if len(cells) >= MAX_PAIRS:
            break
    return cells


def _sentences(text: str) -> list[str]:
    """Split a line without bars at commas that end a cell; a line of `key: value` pairs stays whole."""
    return text.split(", ") if ", " in text else [text]


def _single(part: str) -> Pair | None:
    """Read a part that is one cell without a colon: `lr 3.00e-04`, `36.58 ms`, `9.2% bf16 MFU`."""
    if len(part) > 120:
        return None
    match = _SPACED.match(part)
    if match:
        return _pair(match["key"], match)
    match = _BARE.match(part)
    if match is None:
        return None
    unit = match["unit"]
    if unit == "%" and not match["key"]:  # the share of the steps that are done
        return None
    key = match["key"] or ("step time" if unit.lower() in _TIME else unit)
    return _pair(key, match)


def _pair(key: str, match: re.Match[str]) -> Pair:
    text = match["value"]
    return Pair(" ".join(key.split()), text, (match["unit"] or "").strip(), to_float(text))
