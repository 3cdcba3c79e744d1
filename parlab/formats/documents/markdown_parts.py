"""Division of a Markdown document: plain blocks, whose extent is certain from their lines, and all other parts.

Plain are headings, fences, paragraphs and tables at the margin; they are most of a document, and markdown-it-py takes
most of its time to find where they end. Lists, quotations, HTML and everything ambiguous are other parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

_HEADING = re.compile(r"#{1,6} +([^#\s](?:[^#]*[^#\s])?) *\Z")
_FENCE = re.compile(r"(`{3,})[^`]*\Z|(~{3,})")
_DELIMITER = re.compile(r"\|(?: *:?-+:? *\|)+ *\Z")
_MARKER = re.compile(r"(?:[-+*]|\d{1,9}[.)]) +(?=\S)")
_RULE = re.compile(r" {0,3}([-*_])(?: *\1){2,} *\Z")
# First characters of a line that begins or continues a paragraph, and nothing else.
_TEXT_LINE = re.compile(
    r"(?!\d{1,9}[.)](?: |\Z)|```|\*(?!\*[A-Za-z0-9]))"
    r"[A-Za-z0-9(\"'$%@&/,;.?!^{}`*\[\\\x80-\U0010ffff]"
)
# Whitespace that Python, CommonMark and the eye treat differently, and NUL.
_ODD = re.compile(r"[\0\t\x0b-\x1f\x7f\x85\xa0\u1680\u180e\u2000-\u200d\u2028\u2029\u202f\u205f\u2060\u3000\ufeff]")
_ANY_FENCE = re.compile(r"```|~~~")
# HTML that a blank line does not end.
_LONG_HTML = re.compile(r"(?i)<!--|<\?|<![a-z]|<(?:script|pre|style|textarea)\b")


class Part(NamedTuple):
    """Consecutive lines, from `begin` up to but without `end`, counted from 0."""

    kind: Literal["heading", "fence", "paragraph", "table", "other"]
    begin: int
    end: int
    title: str = ""


def parts(rows: Sequence[str]) -> list[Part] | None:
    """Divide the lines of a document; None if its parts depend on each other.

    They do if they may define links by reference, which every other part may use.
    """
    divided: list[Part] = []
    at = 0
    while at < len(rows):
        if not rows[at].strip(" \t"):
            at += 1
            continue
        part = _plain(rows, at) or Part("other", at, _end_of_other(rows, at))
        if part.kind == "other" and any("]:" in row for row in rows[part.begin : part.end]):
            return None
        divided.append(part)
        at = part.end
    return divided


def _plain(rows: Sequence[str], at: int) -> Part | None:
    row = rows[at]
    if row[0] == "#":
        match = None if _ODD.search(row) else _HEADING.match(row)
        return Part("heading", at, at + 1, match[1]) if match else None
    if row[0] in "`~" and (opening := _FENCE.match(row)):
        end = _end_of_fence(rows, at, opening[1] or opening[2])
        return Part("fence", at, end) if end else None
    if row[0] == "|":
        return _table(rows, at)
    return None if row[0] == "[" else _paragraph(rows, at)


def _end_of_fence(rows: Sequence[str], at: int, marks: str) -> int | None:
    """Return the line after the closing fence; None if there is none."""
    closing = re.compile(rf" {{0,3}}{re.escape(marks)}{re.escape(marks[0])}*[ \t]*\Z")
    for number in range(at + 1, len(rows)):
        if marks[0] in rows[number] and closing.match(rows[number]):
            return number + 1
    return None


def _table(rows: Sequence[str], at: int) -> Part | None:
    """Return a table whose rows begin with a pipe, up to an empty line."""
    if at + 1 >= len(rows) or not _DELIMITER.match(rows[at + 1]):
        return None
    end = at
    while end < len(rows) and rows[end].strip(" \t"):
        if rows[end][0] != "|" or "\\" in rows[end] or _ODD.search(rows[end]):
            return None
        end += 1
    width = len(cells(rows[at]))
    # markdown-it-py completes short rows, up to a limit.
    is_regular = width == len(cells(rows[at + 1])) and (end - at) * width < 2**16
    return Part("table", at, end) if is_regular else None


def cells(row: str) -> list[str]:
    """Return the cells of a row without escaped pipes."""
    texts = row.strip(" ").split("|")
    return [text.strip(" ") for text in texts[not texts[0] : len(texts) - (not texts[-1])]]


def _paragraph(rows: Sequence[str], at: int) -> Part | None:
    end = at
    while end < len(rows) and rows[end].strip(" \t"):
        row = rows[end]
        if end > at and (_HEADING.match(row) or _FENCE.match(row)) and not _ODD.search(row):
            break
        if not _TEXT_LINE.match(row) or _ODD.search(row):
            return None
        end += 1
    return Part("paragraph", at, end)


def _end_of_other(rows: Sequence[str], at: int) -> int:
    """Return a line at which nothing continues what came before: at the margin below an empty line, or the end."""
    is_list = False
    end = at
    while end < len(rows):
        row = rows[end]
        is_empty = not row.strip(" \t")
        if _LONG_HTML.search(row):
            return len(rows)
        is_list = is_list or bool(not is_empty and _MARKER.match(row.lstrip(" \t>")))
        below_empty = end > at and not rows[end - 1].strip(" \t")
        if below_empty and row[:1].strip(" \t") and not (is_list and _MARKER.match(row)):
            break
        end += 1
    return end if _closes_fences(rows[at:end]) else len(rows)


def _closes_fences(rows: Sequence[str]) -> bool:
    """Return whether fences in these lines end with them: there are none, or they are in items of a list."""
    if not any(_ANY_FENCE.search(row) for row in rows):
        return True
    markers = [match.end() for row in rows if (match := _MARKER.match(row))]
    margin = " " * max(markers, default=0)
    return bool(markers) and all(
        not row.strip(" ") or row.startswith(margin) or (_MARKER.match(row) and not _RULE.match(row)) for row in rows
    )
