"""Blocks of a document in any markup -> records: logs within it, commands, configurations, figures."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from parlab.formats import joined
from parlab.formats.coverage.events import is_measurement
from parlab.formats.documents.plain_tables import table_at
from parlab.formats.documents.prose import figures
from parlab.formats.documents.tables import table
from parlab.formats.grammar.jsontext import loads
from parlab.formats.grammar.names import is_size
from parlab.formats.grammar.records import Record, unread
from parlab.formats.grammar.sniff import UNKNOWN, sniff
from parlab.formats.grammar.steplines import UNKNOWN_TRAINER
from parlab.formats.launch import command_arguments, flatten, is_command
from parlab.formats.logs.dialects import DIALECTS, is_readable
from parlab.formats.logs.registry import LOGS
from parlab.formats.others import renumber
from parlab.formats.schema import Config, Image, Table

# Documents are parsed as a whole, up to this size; the rest is reported as unread.
MAX_DOCUMENT = 2**20
_READERS = {**LOGS, UNKNOWN_TRAINER: DIALECTS[UNKNOWN_TRAINER]}
_SETTINGS = frozenset({"mode", "sharding_size", "ds_config", "zero_optimization"})


class Heading(NamedTuple):
    """A section's title."""

    line: int
    title: str


class Text(NamedTuple):
    """A paragraph or list item: its source lines, and its text without markup line by line."""

    line: int
    source: Sequence[str]
    plain: Sequence[str]


class Code(NamedTuple):
    """A literal block."""

    line: int
    source: Sequence[str]


Block = Heading | Text | Code | Table | Image


def parsed(
    lines: Iterable[str], parse: Callable[[str], Iterable[Record]], limit: int = MAX_DOCUMENT
) -> Iterator[Record]:
    """Yield the records of a document, which is parsed as a whole, and the number of lines beyond its limit."""
    parts: list[str] = []
    size = left = 0
    for line in lines:
        size += len(line)
        if left or size > limit:
            left += 1
        else:
            parts.append(line)
    yield from parse("".join(parts))
    if left:
        yield unread(len(parts) + 1, f"{left} lines beyond the size limit of a document", "")


def records(blocks: Iterable[Block]) -> Iterator[Record]:
    """Yield the records of the blocks of a document, in order."""
    section: str | None = None
    for block in blocks:
        if isinstance(block, Heading):
            section = block.title
            yield Record("heading", block.line, data=block.title)
        elif isinstance(block, Table | Image):
            block.section = section
            yield Record("table" if isinstance(block, Table) else "image", block.line, data=block)
        else:
            yield from _block_records(block, section)


def _block_records(block: Text | Code, section: str | None) -> Iterator[Record]:
    """Read a block of text: a configuration, a log, commands, or prose."""
    config = _json(block.source)
    if config is not None:
        yield Record("config", block.line, data=Config(line=block.line, section=section, data=config))
        if isinstance(config, dict):
            settings = dict(flatten(config))
            if any(is_size(last := name.rpartition(".")[2]) or last in _SETTINGS for name in settings):
                yield Record("launch", block.line, data=settings, opens=True)
        return
    name = sniff(block.source, LOGS)
    if name == UNKNOWN and isinstance(block, Code) and is_readable(block.source):
        name = UNKNOWN_TRAINER
    if name != UNKNOWN:
        for record in joined.read(block.source, name, _READERS):
            renumber(record, range(block.line, block.line + len(block.source)))
            yield record
        return
    plain = block.plain if isinstance(block, Text) else block.source
    tabled = range(0)
    for number, text in enumerate(plain, block.line):
        if isinstance(block, Code) and number not in tabled:
            tabled = yield from _table_of(block, number - block.line, section)
        if number in tabled:
            continue
        readings = _command(number, text) or (list(figures(number, text)) if isinstance(block, Text) else [])
        yield from readings
        if not readings and is_measurement(text):
            yield unread(number, UNNAMED, text)


def _table_of(block: Code, at: int, section: str | None) -> Generator[Record, None, range]:
    """Yield the table whose header is a line of a literal block, if there is one; return the lines of the document."""
    parts = table_at(block.source, at)
    if parts is None:
        return range(0)
    header, body, end = parts
    built = table([header], body, line=block.line + at)
    built.section = section
    yield Record("table", built.line, data=built)
    return range(block.line + at, block.line + end)


UNNAMED = "looks like a measurement, but names no quantity of a run"


def _command(line: int, text: str) -> list[Record]:
    arguments = command_arguments(text) if is_command(text) else {}
    return [Record("launch", line, data=arguments)] if arguments else []


def _json(source: Sequence[str]) -> object | None:
    """Parse a block as JSON if it looks like an object or a list of objects."""
    text = "".join(source).strip()
    if text[:1] not in ("{", "[") or text[-1:] not in ("}", "]"):
        return None
    try:
        data: object = loads(text)
    except ValueError:
        return None
    return data if isinstance(data, dict | list) else None
