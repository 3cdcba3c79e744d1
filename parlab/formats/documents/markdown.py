"""Markdown documents (CommonMark with tables), read with markdown-it-py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from parlab.formats.documents.blocks import Block, Code, Heading, Text, records, take
from parlab.formats.documents.html_parts import html_blocks
from parlab.formats.documents.markdown_parts import Part, cells, parts
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
# A text without these is text only; most cells of tables are.
_MARKUP = re.compile(r"[\\`*_\[\]!<&\n\0]")


# Emphasis and code without markup in them, in whose place nothing else can be meant.
_WORDS = r"(?:[^`*\\_\[\]<&!\n]|(?<=[A-Za-z0-9])_(?=[A-Za-z0-9]))*"
_SPAN = re.compile(
    r"(?<!`)`([^`\s](?:[^`\n]*[^`\s])?)`(?!`)"
    rf"|(?<![^\s(])\*\*((?=[A-Za-z0-9]){_WORDS}(?:[A-Za-z0-9]\*\*(?=[\s.,;:)]|\Z)|[^\s*`\\_\[\]<&!]\*\*(?=\s|\Z)))"
)
# Marks that are no markup where they stand; brackets are none without a link.
_UNMARKED = re.compile(
    r"(?<=[A-Za-z0-9])_(?=[A-Za-z0-9])|(?<= )\*(?= )|!(?!\[)|&(?![#A-Za-z])|<(?![A-Za-z/!?])|[\[\]\n]"
)
_LINK = re.compile(r"\]\s*[\[(:]|!\[")


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
    text, count, left = take(bounded)
    yield from records(_document(text))
    if bounded.rows:
        yield unread(bounded.first, f"{bounded.rows} rows of tables beyond {MAX_CELLS} cells of a document", "")
    if left:
        yield unread(count + 1, f"{left} lines beyond the size limit of a document", "")


def _document(text: str) -> Iterator[Block]:
    """Yield the blocks of a document: plain parts at once, the others as markdown-it-py parses them."""
    source = text.split("\n")
    divided = None if "\r" in text or "\0" in text else parts(source)
    if divided is None:
        yield from _blocks(_parse(text), source)
        return
    for part in divided:
        rows = source[part.begin : part.end]
        if part.kind == "heading":
            yield from _heading(part)
        elif part.kind == "fence":
            content = "".join([f"{row}\n" for row in rows[1:-1]])
            yield Code(part.begin + 2, content.splitlines(keepends=True))
        elif part.kind == "paragraph":
            yield from _paragraph(part, rows)
        elif part.kind == "table":
            header = cells(rows[0])
            body = [[_cell(text) for text in cells(row)[: len(header)]] for row in rows[2:]]
            align = [_ALIGNS[text[0] == ":", text[-1] == ":"] for text in cells(rows[1])]
            yield table([[_cell(text) for text in header]], body, line=part.begin + 1, align=align)
        else:
            end = "\n" if part.end < len(source) else ""
            yield from _blocks(_parse("\n".join(rows) + end), rows, part.begin)


def _heading(part: Part) -> Iterator[Block]:
    unmarked = _unmarked(part.title)
    if unmarked is not None:
        yield Heading(part.begin + 1, unmarked[0].strip())
        return
    inline = _inline(part.title)
    yield from _images(inline, part.begin + 1)
    yield Heading(part.begin + 1, _plain(inline)[0].strip())


def _paragraph(part: Part, rows: Sequence[str]) -> Iterator[Block]:
    content = "\n".join(rows).strip(" ")
    unmarked = _unmarked(content)
    if unmarked is None:
        inline = _inline(content)
        unmarked = _plain(inline)
        yield from _images(inline, part.begin + 1)
    yield Text(part.begin + 1, [f"{row}\n" for row in rows], unmarked)


def _cell(content: str) -> str:
    if not _MARKUP.search(content):
        return content
    unmarked = _unmarked(content)
    return " ".join(_plain(_inline(content)) if unmarked is None else unmarked)


def _unmarked(content: str) -> list[str] | None:
    """Return the lines of a text without markup; None if only the library can tell what is markup."""
    if len(content) > MAX_INLINE or _LINK.search(content):
        return None
    text = content
    if "`" in content or "**" in content:
        if _MARKUP.search(_UNMARKED.sub("", _SPAN.sub(".", content))):
            return None
        text = _SPAN.sub(_inside, content)
    elif _MARKUP.search(_UNMARKED.sub("", content)):
        return None
    return [row.strip(" ") for row in text.split("\n")]


def _inside(match: re.Match[str]) -> str:
    return match[1] or match[2][:-2]


@cache
def _parser(*, has_inline: bool) -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table")
    return parser if has_inline else parser.disable("inline")


def _inline(content: str, env: dict[str, object] | None = None) -> Token:
    """Parse the markup of a text up to MAX_INLINE; longer texts would take minutes."""
    inline = Token("inline", "", 0, content=content)
    if not _MARKUP.search(content):
        inline.children = [Token("text", "", 0, content=content)]
    elif len(content) <= MAX_INLINE:
        inline.children = _parser(has_inline=True).parseInline(content, {} if env is None else env)[0].children
    else:
        rows = [Token("text", "", 0, content=row) for row in content.split("\n")]
        breaks = [Token("softbreak", "br", 0) for _ in rows]
        inline.children = [part for pair in zip(rows, breaks, strict=True) for part in pair][:-1]
    return inline


def _parse(text: str) -> list[Token]:
    """Parse blocks, and the markup in the text of each block."""
    env: dict[str, object] = {}
    tokens = _parser(has_inline=False).parse(text, env)
    for token in tokens:
        if token.type == "inline":
            token.children = _inline(token.content, env).children
    return tokens


_BLOCKS = frozenset({"table_open", "paragraph_open", "heading_open", "fence", "code_block", "html_block"})


def _blocks(tokens: Sequence[Token], source: Sequence[str], before: int = 0) -> Iterator[Block]:
    """Yield the blocks of tokens, which begin after so many lines of the document.

    A paragraph of pipe rows directly above a table is the first part of its header.
    """
    held: Text | None = None
    for position, token in enumerate(tokens):
        if token.type not in _BLOCKS:
            continue
        begin, end = token.map or [0, 0]
        line = before + begin + 1
        above = _header_above(held, begin + before) if token.type == "table_open" else []
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


# Whether a delimiter begins and ends with a colon -> the side.
_ALIGNS: dict[tuple[bool, bool], Align] = {
    (False, False): "",
    (True, False): "left",
    (False, True): "right",
    (True, True): "center",
}


def _align(style: str) -> Align:
    for side in ("left", "right", "center"):
        if side in style:
            return side
    return ""
