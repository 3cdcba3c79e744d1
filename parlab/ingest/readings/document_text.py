"""The prose of a document, around its tables and logs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from parlab.findings.tables import line_of
from parlab.formats.schema import Document, Table

MAX_NOTES = 100_000
_ARGUMENTS = re.compile(r"^\s*-{5,} (end of )?arguments -{5,}")
_FENCE = re.compile(r"^\s*(```|~~~)")
_DIRECTIVE = re.compile(r"^\.\. (code-block|code|image|figure|list-table|csv-table|table)::")
_BORDER = re.compile(r"^\s*(?:\+[-=+]{3,}|={2,}(?: +={2,})+)\s*$")
_IMAGE = re.compile(r"^\s*!\[[^\]]*\]\([^)]*\)\s*$")
_HEADING = re.compile(r"^#{1,6} |^[=\-~^\"'*+]{4,}\s*$")
# Longer lines are output or commands, not prose.
_LONG = 1_000
_LOG = re.compile(r"^\s*(?:time \(ms\) \||iteration +\d+/)")


def notes_of(lines: Sequence[str], document: Document) -> str:
    """Return the prose of a document, without tables, argument dumps, listings and pictures."""
    tables = {number for table in document.tables for number in _rows(table, lines)}
    prose: list[str] = []
    dump = fence = directive = False
    for number, line in enumerate(lines, 1):
        text = line.rstrip()
        if match := _ARGUMENTS.match(text):
            dump = match[1] is None
            continue
        if _FENCE.match(text):
            fence = not fence
            continue
        if directive and (not text or text[0].isspace()):
            continue
        directive = bool(_DIRECTIVE.match(text))
        if dump or fence or directive or _IMAGE.match(text) or _LOG.match(text) or len(text) > _LONG:
            continue
        if number not in tables and (text or (prose and prose[-1])):
            prose.append(text)
    notes = "\n".join(prose).strip()
    return notes if len(notes) <= MAX_NOTES else f"{notes[:MAX_NOTES]}\n\n(The text continues in the imported file.)"


def _rows(table: Table, lines: Sequence[str]) -> Iterator[int]:
    """Yield the line numbers of a table: of a pipe table by its rows, of others by the block around its line."""
    if table.align:
        yield from range(table.line - len(table.header) + 1, line_of(table, len(table.rows)))
        return
    around = range(max(0, table.line - 1), min(len(lines), table.line + 2 * len(table.rows) + 20))
    begin = next((n for n in around if _BORDER.match(lines[n])), None)
    if begin is None:
        return
    while begin > 0 and lines[begin - 1].strip() and not lines[begin - 1].lstrip().startswith(".."):
        begin -= 1
    for number in range(begin, len(lines)):
        if not lines[number].strip():
            return
        yield number + 1


def text_above(lines: Sequence[str], line: int) -> str:
    """Return the text between a line and the heading above it, at most 40 lines."""
    texts: list[str] = []
    for text in reversed(lines[max(0, line - 40) : max(0, line - 1)]):
        texts.append(text.strip())
        if text.startswith("#"):
            break
    return " ".join(reversed(texts))


def text_from(lines: Sequence[str], line: int) -> str:
    """Return the text from a line to the end of its paragraph or list."""
    texts: list[str] = []
    for text in lines[max(0, line - 1) : line + 12]:
        if not text.strip() or (texts and _HEADING.match(text)):
            break
        texts.append(text.strip().removeprefix("- ").removeprefix("* "))
    return " ".join(texts)[:500]
