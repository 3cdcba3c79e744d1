"""Markdown documents (CommonMark with tables), read with markdown-it-py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

from parlab.formats.documents.blocks import Block, Code, Heading, Text, parsed, records
from parlab.formats.documents.html_parts import html_blocks
from parlab.formats.documents.tables import Align, table
from parlab.formats.grammar.records import Record, unread
from parlab.formats.grammar.sniff import Signs
from parlab.formats.schema import Image

SIGNS: Signs = (
    (re.compile(r"^#{2,6} +\S"), 40),
    (re.compile(r"^# +\[?[A-Z]"), 8),
    (re.compile(r"^\|? {0,4}:?-{2,}:? {0,4}\|[|: -]*-[|: -]*\s*$"), 8),
    (re.compile(r"^(?:```|~~~)"), 3),
    (re.compile(r"^!\[[^\]]{0,200}\]\("), 4),
    (re.compile(r"^ {0,3}[-*+] +\S"), 1),
)


def is_certain(head: Iterable[str]) -> bool:
    """Return whether there is any sign but list items, which logs have as well."""
    return any(pattern.search(line[:2000]) for line in head for pattern, _ in SIGNS[:-1])


# Parsing brackets and stars takes quadratic time; paragraphs of prose are shorter than this.
MAX_INLINE = 8_000
# Cells of all tables of a document: each takes 2 kB.
MAX_CELLS = 2**15
_DELIMITER = re.compile(r" {0,3}\|? *:?-+:? *\|[ :|-]*$")


class _Bounded:
    """Passes lines on, and empty ones in place of rows of tables beyond MAX_CELLS, which it counts."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = lines
        self.first = self.rows = 0

    def __iter__(self) -> Iterator[str]:
        cells = 0
        is_table = False
        for number, printed in enumerate(self._lines, 1):
            line = f"{printed[:-2]}\n" if printed.endswith("\r\n") else printed
            is_table = (is_table and not line.isspace()) or _DELIMITER.match(line[:200]) is not None
            if line[:1] == "|" or (is_table and "|" in line):
                cells += line.count("|") + (-1 if line[0] == "|" else 1)
                if cells > MAX_CELLS:
                    self.rows, self.first = self.rows + 1, self.first or number
                    yield "\n"
                    continue
            yield line


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a Markdown document; yield sections, tables, logs, configurations, images and figures of prose."""
    bounded = _Bounded(lines)
    yield from parsed(bounded, lambda text: records(_blocks(text)))
    if bounded.rows:
        yield unread(bounded.first, f"{bounded.rows} rows of tables beyond {MAX_CELLS} cells of a document", "")


def _short_inline(state: StateCore) -> None:
    """Parse the markup in texts up to MAX_INLINE; longer ones would take minutes and stay as they are."""
    for token in state.tokens:
        if token.type == "inline" and len(token.content) <= MAX_INLINE:
            token.children = []
            state.md.inline.parse(token.content, state.md, state.env, token.children)


_PARSER = MarkdownIt("commonmark").enable("table")
_PARSER.core.ruler.at("inline", _short_inline)
_BLOCKS = frozenset({"table_open", "paragraph_open", "heading_open", "fence", "code_block", "html_block"})


def _blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a document; a paragraph of pipe rows directly above a table begins its header."""
    source = text.split("\n")
    tokens = _PARSER.parse(text)
    held: Text | None = None
    for position, token in enumerate(tokens):
        if token.type not in _BLOCKS:
            continue
        begin, end = token.map or [0, 0]
        line = begin + 1
        above = _header_above(held, begin) if token.type == "table_open" else []
        if held is not None and not above:
            yield held
        held = None
        if token.type == "table_open":
            yield _block_of_table(tokens[position : _closing(tokens, position, "table_close")], line, above)
        elif token.type == "html_block":
            yield from html_blocks(token.content, line)
        elif token.type in ("fence", "code_block"):
            yield Code(line + (token.type == "fence"), token.content.splitlines(keepends=True))
        else:
            inline = tokens[position + 1]
            yield from _images(inline, line)
            if token.type == "heading_open":
                yield Heading(line, _plain(inline)[0].strip() if inline.content else "")
            else:
                held = Text(line, [f"{row}\n" for row in source[begin:end]], _plain(inline))
    if held is not None:
        yield held


def _closing(tokens: Sequence[Token], start: int, kind: str) -> int:
    return next((n for n in range(start, len(tokens)) if tokens[n].type == kind), len(tokens) - 1)


def _plain(inline: Token) -> list[str]:
    """Return the lines of an inline token without markup."""
    if not inline.children:
        return inline.content.split("\n")
    parts: list[str] = []
    for child in inline.children:
        if child.type in ("softbreak", "hardbreak"):
            parts.append("\n")
        elif child.type in ("text", "code_inline"):
            parts.append(child.content)
    return "".join(parts).split("\n")


def _images(inline: Token, line: int) -> Iterator[Image]:
    for child in inline.children or []:
        if child.type == "image":
            yield Image(line=line, source=str(child.attrs.get("src", "")), alt=child.content)
        elif child.type in ("softbreak", "hardbreak"):
            line += 1


def _header_above(pending: Text | None, begin: int) -> list[list[str]]:
    """Return the rows of a paragraph that ends where the table begins, or [] if a line is not a table row."""
    if pending is None or pending.line - 1 + len(pending.source) != begin:
        return []
    rows = [row.strip() for row in pending.source]
    if not all(row.startswith("|") and row.endswith("|") and len(row) > 1 for row in rows):
        return []
    return [[part.strip() for part in row.strip("|").split("|")] for row in rows]


def _block_of_table(tokens: Sequence[Token], line: int, above: Sequence[Sequence[str]]) -> Block:
    header: list[list[str]] = [list(row) for row in above]
    rows: list[list[str]] = []
    align: list[Align] = []
    part = header
    for position, token in enumerate(tokens):
        if token.type == "tbody_open":
            part = rows
        elif token.type == "tr_open":
            part.append([])
        elif token.type in ("th_open", "td_open"):
            part[-1].append(" ".join(_plain(tokens[position + 1])))
            if token.type == "th_open":
                align.append(_align(str(token.attrs.get("style", ""))))
    return table(header, rows, line=line, align=align)


def _align(style: str) -> Align:
    for side in ("left", "right", "center"):
        if side in style:
            return side
    return ""
