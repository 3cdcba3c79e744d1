"""reStructuredText documents, read with docutils."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from typing import Any

from docutils import nodes
from docutils.core import publish_doctree

from parlab.formats.documents.blocks import Block, Code, Heading, Text, records, take
from parlab.formats.documents.rst_parts import Part, parts
from parlab.formats.documents.tables import table
from parlab.formats.grammar.records import Record, unread
from parlab.formats.grammar.sniff import Signs
from parlab.formats.schema import Image, Table

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
# Begins the comment in the place of plain parts.
_PLACE = "plain parts from "
# docutils takes quadratic time in the number of markup characters of a paragraph: 30 ms for 500.
MAX_MARKS = 500
_MARK = re.compile(r"[*`|_\[\]]")
_LITERAL = re.compile(r"\.\. (?:code|code-block|sourcecode)::|.*(?<!\.\. )::\s*$")


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a reStructuredText document; yield sections, tables, logs, configurations, images and figures of prose."""
    text, count, left = take(lines, MAX_RST)
    dense = _dense(text)
    if dense:
        yield unread(dense, "not parsed as reStructuredText: a paragraph has too much markup", "")
        return
    try:
        plain = _plain(text)
        blocks = parser.parse(text) if plain is None else plain
    except Exception as problem:
        # docutils is not hardened against damaged input and may raise anything; the text is reported as unread.
        yield unread(1, f"docutils could not parse the document: {_why(problem)}", text)
        return
    yield from records(blocks)
    if left:
        yield unread(count + 1, f"{left} lines beyond the size limit of a document", "")


def document(text: str) -> Iterator[Block]:
    """Return the blocks of a document: plain parts at once, the others as docutils parses them."""
    source = text.split("\n")
    divided = _divided(text)
    if divided is None:
        return _blocks(_tree(text), source)
    if (plain := _plain(text)) is not None:
        return plain
    left = list(source)
    runs = _plain_runs(divided)
    for first, run in _runs(divided):
        left[first : run[-1].end] = [f".. {_PLACE}{first}", *[""] * (run[-1].end - first - 1)]
    return _with_plain(_tree("\n".join(left)), source, runs)


def plain_blocks(text: str) -> list[tuple[str, Any]]:
    """Return the blocks of a document as plain values, for `blocks_of`."""
    return [
        (type(block).__name__, block.model_dump() if isinstance(block, Table | Image) else list(block))
        for block in document(text)
    ]


def blocks_of(plain: Iterable[tuple[str, Any]]) -> list[Block]:
    """Return the blocks that `plain_blocks` has made plain."""
    kinds: dict[str, Callable[[Any], Block]] = {
        "Heading": lambda row: Heading(*row),
        "Text": lambda row: Text(*row),
        "Code": lambda row: Code(*row),
        "Table": Table.model_validate,
        "Image": Image.model_validate,
    }
    return [kinds[kind](row) for kind, row in plain]


@dataclass
class Parser:
    """How documents are parsed that need docutils: the server does it in a child process with limits."""

    parse: Callable[[str], Iterable[Block]] = document


parser = Parser()


def _why(problem: Exception) -> str:
    return str(problem) if isinstance(problem, ValueError) and str(problem) else type(problem).__name__


def _divided(text: str) -> Sequence[Part] | None:
    return None if _PLACE in text else parts(text.split("\n"))


def _plain(text: str) -> Iterator[Block] | None:
    """Return the blocks of a document of plain parts alone, without docutils; None for another one."""
    divided = _divided(text)
    if divided is None or any(part.blocks is None for part in divided):
        return None
    return chain.from_iterable(chain.from_iterable(_plain_runs(divided).values()))


def _plain_runs(divided: Sequence[Part]) -> dict[int, list[Sequence[Block]]]:
    return {first: [part.blocks or () for part in run] for first, run in _runs(divided)}


def _runs(divided: Sequence[Part]) -> Iterator[tuple[int, list[Part]]]:
    """Yield the runs of plain parts, each with the place of its first line."""
    for is_plain, group in groupby(divided, key=lambda part: part.blocks is not None):
        run = list(group)
        if is_plain:
            yield run[0].begin, run


def _with_plain(
    tree: nodes.document, source: list[str], runs: Mapping[int, Sequence[Sequence[Block]]]
) -> Iterator[Block]:
    """Yield the blocks of a tree, and those of a run of plain parts in the place of its comment."""
    for node in tree.findall():
        if isinstance(node, nodes.comment) and node.astext().startswith(_PLACE):
            yield from chain.from_iterable(runs[int(node.astext().removeprefix(_PLACE))])
        else:
            yield from _blocks_of(node, source)


def _tree(text: str) -> nodes.document:
    return publish_doctree(text.replace("\x00", "\ufffd"), settings_overrides=dict(_SETTINGS))


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


def _blocks(tree: nodes.document, source: list[str]) -> Iterator[Block]:
    """Yield the blocks of a tree; texts in table cells belong to the table."""
    for node in tree.findall():
        yield from _blocks_of(node, source)


def _blocks_of(node: nodes.Node, source: list[str]) -> Iterator[Block]:
    if isinstance(node, nodes.title | nodes.subtitle):
        if not isinstance(node.parent, nodes.table):
            yield Heading(_line_of_title(node, source), node.astext())
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


def _line_of_title(node: nodes.title | nodes.subtitle, source: list[str]) -> int:
    """Return the line below a title; docutils forgets that of a subtitle, which follows the title of the document."""
    line = _line(node)
    if not isinstance(node, nodes.subtitle) or node.line:
        return line
    first = next((_line(child) for child in node.parent.children if isinstance(child, nodes.title)), line)
    rows = (number for number in range(first, len(source)) if source[number].strip() == node.astext())
    return next(rows, line - 2) + 2


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
