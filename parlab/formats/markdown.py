"""Markdown documents (CommonMark with tables), read with markdown-it-py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

from parlab.formats.blocks import Block, Code, Heading, Text, records, take
from parlab.formats.records import Record, unread
from parlab.formats.schema import Image
from parlab.formats.sniff import Signs
from parlab.formats.tables import Align, table

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
# A text without these is text only; most cells of tables are.
_MARKUP = re.compile(r"[\\`*_\[\]!<&\n\0]")


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a Markdown document; yield sections, tables, logs, configurations, images and figures of prose."""
    text, count, left = take(lines)
    yield from records(_blocks(_parse(text), text.split("\n")))
    if left:
        yield unread(count + 1, f"{left} lines beyond the size limit of a document", "")


def _parse(text: str) -> list[Token]:
    """Parse blocks, and the markup in the text of each block up to MAX_INLINE; longer texts would take minutes."""
    whole = MarkdownIt("commonmark").enable("table")
    env: dict[str, object] = {}
    tokens = MarkdownIt("commonmark").enable("table").disable("inline").parse(text, env)
    for token in tokens:
        if token.type == "inline":
            if not _MARKUP.search(token.content):
                token.children = [Token("text", "", 0, content=token.content)]
            elif len(token.content) <= MAX_INLINE:
                token.children = whole.parseInline(token.content, env)[0].children
            else:
                rows = [Token("text", "", 0, content=row) for row in token.content.split("\n")]
                breaks = [Token("softbreak", "br", 0) for _ in rows]
                token.children = [part for pair in zip(rows, breaks, strict=True) for part in pair][:-1]
    return tokens


def _blocks(tokens: Sequence[Token], source: Sequence[str]) -> Iterator[Block]:
    """Yield the blocks of tokens; a paragraph of pipe rows directly above a table is the first part of its header."""
    position = 0
    pending: Text | None = None
    while position < len(tokens):
        token = tokens[position]
        begin, end = token.map or [0, 0]
        block: Block | None = None
        if token.type == "table_open":
            stop = _closing(tokens, position, "table_close")
            above = _header_above(pending, begin)
            if above:
                pending = None
            if pending:
                yield from _paragraph_blocks(pending)
                pending = None
            yield _block_of_table(tokens[position:stop], begin + 1, above)
            position = stop
        elif token.type in ("paragraph_open", "heading_open"):
            inline = tokens[position + 1]
            if pending:
                yield from _paragraph_blocks(pending)
                pending = None
            if token.type == "heading_open":
                block = Heading(begin + 1, _plain(inline)[0].strip() if inline.content else "")
            else:
                pending = Text(begin + 1, [f"{row}\n" for row in source[begin:end]], _plain(inline))
            yield from _images(inline, begin + 1)
            position += 1
        elif token.type in ("fence", "code_block"):
            first = begin + 2 if token.type == "fence" else begin + 1
            block = Code(first, token.content.splitlines(keepends=True))
        if block is not None:
            if pending and not isinstance(block, Heading):
                yield from _paragraph_blocks(pending)
                pending = None
            yield block
        position += 1
    if pending:
        yield from _paragraph_blocks(pending)


def _paragraph_blocks(pending: Text) -> Iterator[Block]:
    yield pending


def _closing(tokens: Sequence[Token], start: int, kind: str) -> int:
    return next((n for n in range(start, len(tokens)) if tokens[n].type == kind), len(tokens) - 1)


def _plain(inline: Token) -> list[str]:
    """Return the lines of an inline token without markup."""
    parts: list[str] = []
    for child in inline.children or []:
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
    body = False
    for position, token in enumerate(tokens):
        if token.type == "tbody_open":
            body = True
        elif token.type == "tr_open":
            (rows if body else header).append([])
        elif token.type in ("th_open", "td_open"):
            (rows if body else header)[-1].append(" ".join(_plain(tokens[position + 1])))
            if token.type == "th_open":
                align.append(_align(str(token.attrs.get("style", ""))))
    return table(header, rows, line=line, align=align)


def _align(style: str) -> Align:
    for side in ("left", "right", "center"):
        if side in style:
            return side
    return ""
