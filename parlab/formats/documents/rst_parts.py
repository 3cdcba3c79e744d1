"""Division of a reStructuredText document: plain sections, paragraphs and simple tables, and everything else.

docutils parses what is left, with a comment in the place of each run of plain parts; see rst.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from parlab.formats.documents.blocks import Block, Heading, Text
from parlab.formats.documents.tables import table

MAX_ROW = 20_000
_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1*\Z")
_BORDER = re.compile(r"=+(?: +=+)+\Z")
_ENUMERATOR = re.compile(r"\(?(?:[A-Za-z]|\d+|[ivxlcdmIVXLCDM]+|#)[.)](?: |\Z)")
_BEGIN = re.compile(r"[A-Za-z0-9]|[~<>$(\"'][A-Za-z0-9]")
# Literals and emphasis in one line, in whose place nothing else can be meant.
_SPAN = re.compile(
    r"(?<![^\s(])``([^`\s)](?:[^`\n]*[^`\s\\])?)``(?=[\s.,;:)]|\Z)"
    r"|(?<![^\s(])\*\*([A-Za-z0-9](?:[^*`\\|_\n]*[A-Za-z0-9.:%])?)\*\*(?=[\s.,;)]|\Z)"
)
_WITHIN_WORD = re.compile(r"(?<=[A-Za-z0-9])_(?=[A-Za-z0-9])")
_MARKUP = re.compile(r"[*`_|\\]")
# Splits lines, or means something else, for docutils.
_ODD = re.compile(r"[\0\r\t\x0b-\x1f\x7f\x85\xa0\u1680\u2000-\u200f\u2028\u2029\u202f\u205f\u3000\ufeff]")
# What the rest of a document may say about its other parts: references, fields, titles, and most directives.
_SHARED = re.compile(
    r"[A-Za-z0-9`'\"\]]__?(?![A-Za-z0-9_])|^ *:[^:\s][^:]*:(?: |\Z)|\|[^|\s]|\]_|^ *__ "
    r"|^ *\.\. (?!(?:code|code-block|sourcecode|image|figure|list-table|table|csv-table|note|warning|tip|math)::)\S"
)


class Part(NamedTuple):
    """Consecutive lines, from `begin` up to but without `end`, counted from 0; their blocks if they are plain."""

    begin: int
    end: int
    blocks: Sequence[Block] | None


class _Divider:
    """Divides a document, and follows the levels of its sections."""

    def __init__(self, rows: Sequence[str]) -> None:
        self.rows = [row.rstrip(" ") for row in rows]
        self.styles: list[str] = []
        self.level = 0

    def parts(self) -> list[Part] | None:
        """Return the parts; None if one of them may change what another one is."""
        divided: list[Part] = []
        at = 0
        while at < len(self.rows):
            if not self.rows[at]:
                at += 1
                continue
            end = next((number for number in range(at, len(self.rows)) if not self.rows[number]), len(self.rows))
            after = next((row for row in self.rows[end:] if row), "") if end < len(self.rows) else ""
            blocks = None if after.startswith(" ") else self._plain(at, end)
            # Below `::`, a comment would be quoted text.
            is_open = self.rows[end - 1].endswith("::") and not after.startswith(" ")
            if blocks is None and (is_open or not self._is_alone(at, end)):
                return None
            divided.append(Part(at, end, blocks))
            at = end
        return divided

    def _is_alone(self, begin: int, end: int) -> bool:
        """Return whether lines that are left to docutils have nothing to do with other parts."""
        rows = self.rows[begin:end]
        return not any(_is_line(row) or _SHARED.search(row) or len(row) > MAX_ROW for row in rows)

    def _plain(self, begin: int, end: int) -> list[Block] | None:
        rows = self.rows[begin:end]
        if any(len(row) > MAX_ROW for row in rows):
            return None
        if _BORDER.match(rows[0]):
            return self._table(begin, rows)
        blocks: list[Block] = []
        titled = self._title(begin, rows)
        if titled:
            blocks.append(titled)
            begin += 2
            rows = rows[2:]
        if rows:
            lines = _paragraph(rows)
            if lines is None:
                return None
            blocks.append(Text(begin + 1, [f"{line}\n" for line in lines], lines))
        return blocks

    def _title(self, begin: int, rows: Sequence[str]) -> Heading | None:
        """Return the title that a chunk begins with, if it is underlined and at most one level below the last one."""
        if len(rows) < 2 or not _ADORNMENT.match(rows[1]) or len(rows[1]) < max(len(rows[0]), 4):
            return None
        title = rows[0] if rows[0].isascii() and _begins_text(rows[0]) and not _is_marked(rows[0]) else None
        style = rows[1][0]
        level = self.styles.index(style) + 1 if style in self.styles else len(self.styles) + 1
        if title is None or level > self.level + 1:
            return None
        if level > len(self.styles):
            self.styles.append(style)
        self.level = level
        return Heading(begin + 2, title)

    def _table(self, begin: int, rows: Sequence[str]) -> list[Block] | None:
        borders = [number for number, row in enumerate(rows) if row == rows[0]]
        if borders[-1] != len(rows) - 1 or len(borders) not in (2, 3) or borders[1] == 1:
            return None
        places = [match.span() for match in re.finditer("=+", rows[0])]
        read = [_cells(row, places) for number, row in enumerate(rows) if number not in borders]
        cells = [row for row in read if row is not None]
        if len(cells) < len(read) or (len(borders) == 3 and borders[1] == borders[2] - 1):
            return None
        headers = borders[1] - 1 if len(borders) == 3 else 0
        return [table(cells[:headers], cells[headers:], line=begin + 1)]


def parts(rows: Sequence[str]) -> list[Part] | None:
    """Divide the lines of a document; None if its parts depend on each other."""
    return None if any(_ODD.search(row) for row in rows) else _Divider(rows).parts()


def _is_line(row: str) -> bool:
    """Return whether a row belongs to a title, or is a border of a table, which may have empty lines."""
    return _ADORNMENT.match(row) is not None or _BORDER.match(row) is not None


def _begins_text(row: str) -> bool:
    return _BEGIN.match(row) is not None and not _ENUMERATOR.match(row)


def _paragraph(rows: Sequence[str]) -> list[str] | None:
    if not _begins_text(rows[0]) or any(row[0] == " " or _is_line(row) or "::" in row for row in rows):
        return None
    text = _inline("\n".join(rows))
    return None if text is None else text.split("\n")


def _is_marked(text: str) -> bool:
    return _MARKUP.search(_WITHIN_WORD.sub("", text)) is not None


def _inline(text: str) -> str | None:
    """Return a text without markup; None if only docutils can tell what is markup."""
    if not _MARKUP.search(text):
        return text
    return None if _is_marked(_SPAN.sub(".", text)) else _SPAN.sub(lambda match: match[1] or match[2], text)


def _cells(row: str, places: Sequence[tuple[int, int]]) -> list[str] | None:
    """Return the cells of a row; None for a row that spans columns, continues another one, or has structure."""
    if not row.isascii():
        return None
    ends = [*(begin for begin, _ in places[1:]), len(row)]
    texts = []
    for (begin, end), following in zip(places, ends, strict=True):
        text = row[begin:following] if following == len(row) else row[begin:end]
        if following != ends[-1] and row[end:following].strip():
            return None
        stripped = text.strip()
        content = _inline(stripped)
        if content is None or "::" in content or (stripped and not _begins_text(stripped)):
            return None
        texts.append(content)
    return texts if texts[0] else None
