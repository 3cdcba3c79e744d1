"""reStructuredText documents, read with docutils."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from docutils import nodes
from docutils.core import publish_doctree
from pydantic import TypeAdapter

from parlab.formats.documents.blocks import Block, Code, Heading, Text, parsed, records
from parlab.formats.documents.tables import table
from parlab.formats.grammar.records import Record, unread
from parlab.formats.grammar.sniff import Signs
from parlab.formats.schema import Image

SIGNS: Signs = (
    (re.compile(r"^\.\. [\w-]+::"), 40),
    (re.compile(r"^(?:={4,}|~{4,}|\^{4,})\s*$"), 4),
    (re.compile(r"^:\w[\w -]{0,40}:(?: |$)"), 3),
    (re.compile(r"^\+(?:[-=]{3,}\+)+\s*$"), 6),
    (re.compile(r"``[^`]{1,80}``"), 2),
)

_ADORNMENT = SIGNS[1][0]


def is_framed(head: Iterable[str]) -> bool:
    """Return whether the only signs are lines of `====`, as around the results of a benchmark."""
    others = [pattern for pattern, _ in SIGNS if pattern is not _ADORNMENT]
    return not any(pattern.search(line[:2000]) for line in head for pattern in others)


def has_titles(head: Iterable[str]) -> bool:
    """Return whether a line of `====` is as long as the text above it, as below a title."""
    rows = pairwise(line.rstrip() for line in head)
    return any(_ADORNMENT.match(below) and 0 < len(text) <= len(below) for text, below in rows)


# A document must not open files, include raw HTML, read this machine's docutils configuration or print.
# Titles that docutils moves to the head of the document lose their lines.
_SETTINGS: dict[str, Any] = {
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "doctitle_xform": False,
    "_disable_config": True,
    "report_level": 5,
    "halt_level": 5,
    "syntax_highlight": "none",
    "line_length_limit": 20_000,
    "warning_stream": False,
}

MAX_RST = 2**18
# docutils takes quadratic time in the number of markup characters of a paragraph: 30 ms for 500.
MAX_MARKS = 500
_MARK = re.compile(r"[*`|_\[\]]")
_LITERAL = re.compile(r"\.\. (?:code|code-block|sourcecode)::|.*(?<!\.\. )::\s*$")


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a reStructuredText document; yield sections, tables, logs, configurations, images and figures of prose."""
    return parsed(lines, _records, MAX_RST)


def _records(text: str) -> Iterator[Record]:
    dense = _dense(text)
    if dense:
        yield unread(dense, "not parsed as reStructuredText: a paragraph has too much markup", "")
        return
    try:
        blocks = parser.parse(text)
    except Exception as problem:
        # docutils is not hardened against damaged input and may raise anything; the text is reported as unread.
        yield unread(1, f"docutils could not parse the document: {_why(problem)}", text)
        return
    yield from records(blocks)


def document(text: str) -> list[Block]:
    """Return the blocks of a document; texts in cells of tables belong to the table."""
    source = text.split("\n")
    tree = publish_doctree(text.replace("\x00", "\ufffd"), settings_overrides=dict(_SETTINGS))
    return [block for node in tree.findall() for block in _blocks_of(node, source)]


_PLAIN = TypeAdapter(list[Block])


def plain_blocks(text: str) -> Any:
    """Return the blocks of a document as plain values, for `blocks_of`."""
    return _PLAIN.dump_python(document(text))


def blocks_of(plain: Any) -> list[Block]:
    """Return the blocks that `plain_blocks` has made plain."""
    return _PLAIN.validate_python(plain)


@dataclass
class Parser:
    """How documents are parsed: the server does it in a child process with limits."""

    parse: Callable[[str], list[Block]] = document


parser = Parser()


def _why(problem: Exception) -> str:
    return str(problem) if isinstance(problem, ValueError) and str(problem) else type(problem).__name__


def _dense(text: str) -> int | None:
    """Return the line of the first paragraph with too much markup for docutils, ignoring literal blocks."""
    marks = literal = 0
    margin = 0
    for number, row in enumerate(text.split("\n"), 1):
        stripped = row.lstrip()
        if not stripped:
            marks = 0
            continue
        indent = len(row) - len(stripped)
        if literal and indent > margin:
            continue
        literal = 0
        marks += len(_MARK.findall(row))
        if marks > MAX_MARKS:
            return number
        if _LITERAL.match(stripped):
            literal, margin = 1, indent
    return None


def _blocks_of(node: nodes.Node, source: list[str]) -> Iterator[Block]:
    if isinstance(node, nodes.title):
        if not isinstance(node.parent, nodes.table):
            yield Heading(_line(node), node.astext())
    elif isinstance(node, nodes.table):
        yield _block_of_table(node)
    elif isinstance(node, nodes.image):
        yield Image(line=_line(node), source=str(node.get("uri", "")), alt=str(node.get("alt", "")))
    elif isinstance(node, nodes.literal_block):
        rows = node.astext().split("\n")
        yield Code(_find(source, rows[0], _line(node), whole=True), [f"{row}\n" for row in rows])
    elif isinstance(node, nodes.paragraph) and not _inside(node, nodes.entry, nodes.system_message):
        rows = node.astext().split("\n")
        yield Text(_find(source, rows[0], _line(node)), [f"{row}\n" for row in rows], rows)


def _inside(node: nodes.Node, *kinds: type[nodes.Node]) -> bool:
    parent = node.parent
    while parent is not None:
        if isinstance(parent, kinds):
            return True
        parent = parent.parent
    return False


def _line(node: nodes.Node) -> int:
    """Return the line of a node, or of its nearest ancestor that has a line."""
    ancestor: nodes.Node | None = node
    while ancestor is not None:
        if ancestor.line:
            line: int = ancestor.line
            return line
        ancestor = ancestor.parent
    return 1


def _find(source: list[str], row: str, near: int, *, whole: bool = False) -> int:
    """Return the line on which a text starts; for some nodes docutils reports the end of the block."""
    target = row.strip()
    if not target:
        return near
    candidates: list[int] = [*range(near, min(near + 3, len(source)) + 1), *range(near - 1, max(near - 400, 0), -1)]
    for line in candidates:
        text = source[line - 1].strip() if 0 < line <= len(source) else ""
        if text == target or (not whole and target in text):
            return line
    return near


def _block_of_table(node: nodes.table) -> Block:
    header: list[list[str]] = []
    rows: list[list[str]] = []
    for row in node.findall(nodes.row):
        cells = [entry.astext() for entry in row.children if isinstance(entry, nodes.entry)]
        (header if isinstance(row.parent, nodes.thead) else rows).append(cells)
    title = next((child.astext() for child in node.children if isinstance(child, nodes.title)), None)
    return table(header, rows, line=_line(node), title=title)
