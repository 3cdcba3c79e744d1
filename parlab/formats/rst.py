"""reStructuredText documents, read with docutils."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from docutils import nodes
from docutils.core import publish_doctree

from parlab.formats.blocks import Block, Code, Heading, Text, records, take
from parlab.formats.records import Record, unread
from parlab.formats.schema import Image
from parlab.formats.sniff import Signs
from parlab.formats.tables import table

SIGNS: Signs = (
    (re.compile(r"^\.\. [\w-]+::"), 40),
    (re.compile(r"^(?:={4,}|~{4,}|\^{4,})\s*$"), 4),
    (re.compile(r"^:\w[\w -]{0,40}:(?: |$)"), 3),
    (re.compile(r"^\+(?:[-=]{3,}\+)+\s*$"), 6),
    (re.compile(r"``[^`]{1,80}``"), 2),
)

# A document must not open files, include raw HTML, read the configuration of the machine or print.
_SETTINGS: dict[str, Any] = {
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "_disable_config": True,
    "report_level": 5,
    "halt_level": 5,
    "syntax_highlight": "none",
    "line_length_limit": 20_000,
    "warning_stream": False,
}

MAX_RST = 2**18
# docutils takes quadratic time in the marks of one paragraph: 500 take 30 ms.
MAX_MARKS = 500
_MARK = re.compile(r"[*`|_\[\]]")
_LITERAL = re.compile(r"\.\. (?:code|code-block|sourcecode)::|.*(?<!\.\. )::\s*$")


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a reStructuredText document: sections, tables, logs and configurations in it, images, figures in prose."""
    text, count, left = take(lines, MAX_RST)
    dense = _dense(text)
    if dense:
        yield unread(dense, "no reStructuredText: a paragraph with too much markup", "")
        return
    try:
        tree = publish_doctree(text.replace("\x00", "\ufffd"), settings_overrides=dict(_SETTINGS))
    except Exception as problem:
        # docutils may raise any exception for damaged input; the text is then counted as unread.
        yield unread(1, f"no reStructuredText after all: {type(problem).__name__}", text)
        return
    yield from records(_blocks(tree, text.split("\n")))
    if left:
        yield unread(count + 1, f"{left} lines behind the end of what is read of a document", "")


def _dense(text: str) -> int | None:
    """Return the line of the first paragraph that docutils would parse too slowly, except literal blocks."""
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


def _blocks(tree: nodes.document, source: list[str]) -> Iterator[Block]:
    """Walk the tree; texts of a table's cells belong to the table."""
    for node in tree.findall():
        if isinstance(node, nodes.title | nodes.subtitle):
            if not isinstance(node.parent, nodes.table):
                yield Heading(_line(node), node.astext())
        elif isinstance(node, nodes.table):
            yield _table(node)
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
    """Return the line of a node, or of the closest node around it that has one."""
    around: nodes.Node | None = node
    while around is not None:
        if around.line:
            line: int = around.line
            return line
        around = around.parent
    return 1


def _find(source: list[str], row: str, near: int, *, whole: bool = False) -> int:
    """Return the first line of a text; for some nodes docutils gives the end of the block."""
    wanted = row.strip()
    if not wanted:
        return near
    candidates: list[int] = [*range(near, min(near + 3, len(source)) + 1), *range(near - 1, max(near - 400, 0), -1)]
    for line in candidates:
        there = source[line - 1].strip() if 0 < line <= len(source) else ""
        if there == wanted or (not whole and wanted in there):
            return line
    return near


def _table(node: nodes.table) -> Block:
    header: list[list[str]] = []
    rows: list[list[str]] = []
    for row in node.findall(nodes.row):
        cells = [entry.astext() for entry in row.children if isinstance(entry, nodes.entry)]
        (header if isinstance(row.parent, nodes.thead) else rows).append(cells)
    title = next((child.astext() for child in node.children if isinstance(child, nodes.title)), None)
    return table(header, rows, line=_line(node), title=title)
