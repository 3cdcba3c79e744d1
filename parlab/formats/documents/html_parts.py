"""HTML within documents: tables and text. Read with the standard library's parser, which accepts damaged HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

from parlab.formats.documents.blocks import Block, Text
from parlab.formats.documents.tables import table

MAX_SPAN = 100
MAX_CELLS = 200_000
_SKIPPED = frozenset({"script", "style"})
# Elements that stand within a line of text.
_INLINE = frozenset({"a", "abbr", "b", "code", "del", "em", "font", "i", "img", "kbd", "s", "small", "span", "strong",
                     "sub", "sup", "u"})  # fmt: skip


# The parser takes quadratic time for comments without an end, and raises errors for damaged declarations.
_UNSHOWN = re.compile(r"<!--.*?(?:-->|\Z)|<[!?].*?(?:>|\Z)", re.DOTALL)


class _Row:
    """A row: its cells, and whether all of them are headings."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.cells: list[tuple[str, int, int]] = []
        """Text, columns and rows of each cell."""
        self.is_header = True


class _Parser(HTMLParser):
    """Collects the rows of the outer tables, and the lines of text beside them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[list[_Row]] = []
        self.text: dict[int, list[str]] = {}
        self.depth = self.skipped = self.count = 0
        self.spans = (1, 1)
        self.cell: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SKIPPED:
            self.skipped += 1
        elif tag == "table":
            self.depth += 1
            if self.depth == 1:
                self.tables.append([])
        elif self.depth != 1:
            if tag not in _INLINE:
                self.handle_data(" ")
        elif tag == "tr":
            self._end_cell()
            self.tables[-1].append(_Row(self.getpos()[0]))
        elif tag in ("td", "th"):
            self._end_cell()
            if not self.tables[-1]:
                self.tables[-1].append(_Row(self.getpos()[0]))
            self.tables[-1][-1].is_header &= tag == "th"
            spans = dict(attrs)
            self.spans = (_span(spans.get("colspan")), _span(spans.get("rowspan")))
            self.cell = []
        elif tag not in _INLINE:
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in _SKIPPED:
            self.skipped = max(0, self.skipped - 1)
        elif tag == "table" and self.depth:
            if self.depth == 1:
                self._end_cell()
            self.depth -= 1
        elif self.depth == 1 and tag in ("td", "th", "tr"):
            self._end_cell()

    def handle_data(self, data: str) -> None:
        if self.skipped:
            return
        if self.cell is not None:
            self.cell.append(data)
        elif not self.depth:
            first = self.getpos()[0]
            for place, row in enumerate(data.split("\n")):
                if row.strip():
                    self.text.setdefault(first + place, []).append(row)

    def _end_cell(self) -> None:
        if self.cell is None:
            return
        text, self.cell = " ".join("".join(self.cell).split()), None
        self.count += self.spans[0]
        if self.count <= MAX_CELLS:
            self.tables[-1][-1].cells.append((text, *self.spans))


def html_blocks(content: str, line: int) -> Iterator[Block]:
    """Yield the tables and the text of HTML that begins at a line of a document, in their order."""
    parser = _Parser()
    parser.feed(_UNSHOWN.sub(lambda match: "\n" * match[0].count("\n"), content))
    parser.close()
    blocks: list[tuple[int, Block]] = []
    for rows in parser.tables:
        grid = _grid(rows)
        heads = next((n for n, row in enumerate(rows) if not row.is_header), len(rows)) or 1
        if len(grid) > heads:
            at = line + rows[0].line - 1
            blocks.append((at, table(_header(grid[:heads]), grid[heads:], line=at)))
    for number, parts in parser.text.items():
        text = " ".join(" ".join(parts).split())
        blocks.append((line + number - 1, Text(line + number - 1, [f"{text}\n"], [text])))
    yield from (block for _, block in sorted(blocks, key=lambda pair: pair[0]))


def _header(rows: list[list[str]]) -> list[list[str]]:
    """Return rows of headings in which those that span several rows stand once."""
    above = [[], *rows[:-1]]
    return [
        ["" if n < len(upper) and upper[n] == text else text for n, text in enumerate(row)]
        for upper, row in zip(above, rows, strict=True)
    ]


def _span(text: str | None) -> int:
    return max(1, min(MAX_SPAN, int(text))) if text and text.isdecimal() and len(text) < 6 else 1


def _grid(rows: list[_Row]) -> list[list[str]]:
    """Return the texts of all places; a cell that spans several repeats in them."""
    spans: dict[int, tuple[str, int]] = {}
    grid: list[list[str]] = []
    size = 0
    for row in rows:
        own = [(text, deep) for text, columns, deep in row.cells for _ in range(columns)][::-1]
        texts: list[str] = []
        below: dict[int, tuple[str, int]] = {}
        while own or len(texts) <= max(spans, default=-1):
            at = len(texts)
            text, deep = spans.pop(at) if at in spans else own.pop() if own else ("", 1)
            texts.append(text)
            if deep > 1:
                below[at] = (text, deep - 1)
        spans = below
        grid.append(texts)
        size += len(texts)
        if size > MAX_CELLS:
            break
    return grid
