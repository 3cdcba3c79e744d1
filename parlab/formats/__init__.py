"""Readers for the output of other trainers: text -> records -> one Document per file. No Django, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from parlab.formats import joined
from parlab.formats.completion import completed
from parlab.formats.documents import configuration, markdown, rst, text_tables
from parlab.formats.documents.documents import Collector, Counted
from parlab.formats.exports import histories
from parlab.formats.grammar.records import Record, unread
from parlab.formats.grammar.sniff import HEAD_CHARACTERS, UNKNOWN, sniff
from parlab.formats.logs import dialects
from parlab.formats.logs.registry import LOGS, Reader
from parlab.formats.schema import Document
from parlab.formats.tools import autotuning

__all__ = ["FORMATS", "UNKNOWN", "Document", "Reader", "Record", "format_of", "read_document", "records"]

# Name -> reader module: the logs, and the documents that may contain them.
FORMATS: dict[str, Reader] = {
    **LOGS,
    "deepspeed-autotuning": autotuning,
    "configuration": configuration,
    "markdown": markdown,
    "rst": rst,
    "tables": text_tables,
    "pairs": dialects.DIALECTS["pairs"],
}


# Formats of downloaded scalars, whose tag only the name of the file has.
SCALARS = frozenset({"csv", "tensorboard-json"})
# Formats whose lines are records; the others are read as a whole.
WATCHED = frozenset({*LOGS, "pairs"})


def head_of(lines: Iterator[str]) -> list[str]:
    """Return the first lines, which are used to detect the format."""
    head: list[str] = []
    size = 0
    for line in islice(lines, 20_000):
        head.append(line)
        size += len(line)
        if size >= HEAD_CHARACTERS:
            break
    return head


def format_of(head: list[str]) -> str:
    """Return the format of a text by its first lines.

    If none is recognised, it is `tables` with a table of results, and `pairs` if lines are steps.
    """
    name = sniff(head, FORMATS)
    is_framed = name == "rst" and rst.is_framed(head)
    if is_framed and not rst.has_titles(head):
        name = UNKNOWN
    is_doubtful = name == UNKNOWN or is_framed or (name == "markdown" and not markdown.is_certain(head))
    if name == UNKNOWN and text_tables.is_readable(head):
        return "tables"
    return "pairs" if is_doubtful and dialects.is_readable(head) else name


def records(lines: Iterable[str], format: str | None = None) -> Iterator[Record]:
    """Read lines as records; the format is detected unless `format` names it.

    Raises ValueError for a format that is not in FORMATS, and nothing for the content of the lines.
    """
    if format is not None and format not in FORMATS and format != UNKNOWN:
        raise ValueError(f"unknown format {format!r}; use one of {', '.join(sorted(FORMATS))}")
    if format is None:
        stream = iter(lines)
        head = head_of(stream)
        format, lines = format_of(head), chain(head, stream)
    if format == UNKNOWN:
        return _unknown(lines)
    read = joined.read(lines, format, FORMATS) if format in WATCHED else FORMATS[format].read(lines)
    return completed(read)


def _unknown(lines: Iterable[str]) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        if not line.isspace():
            yield unread(number, "unknown format", line)


def read_document(lines: Iterable[str], *, file: str, format: str | None = None) -> Document:
    """Read lines into one Document: segments, tables, figures, and lines that could not be read.

    Raises ValueError for a format that is not in FORMATS, and nothing for the content of the lines.
    """
    counted = Counted(lines)
    stream = iter(counted)
    if format is None:
        head = head_of(stream)
        format, stream = format_of(head), chain(head, stream)
    collector = Collector(file, format)
    for record in histories.tagged(records(stream, format), file if format in SCALARS else ""):
        collector.add(record)
    return collector.document(counted.count)
