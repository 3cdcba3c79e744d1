"""Learn a format and read files with it: `python -m parlab.formats FILE --learn OUT.json`, `... --with IN.json`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from parlab.formats.documents.documents import Collector, Counted
from parlab.formats.learnt import learnt
from parlab.formats.schema import Document
from parlab.formats.source import Lines, open_text

# The options that choose this command.
OPTIONS = frozenset({"--learn", "--with"})


def table(format: learnt.Learnt) -> str:
    """Return the guess as a table of columns beside sample lines."""
    rows = [("key", "unit", "role", "quantity", "factor", "first value", "lines")]
    for column in format.columns:
        quantity = (column.name, f"{column.scale:g}") if column.role == "quantity" else ("", "")
        rows.append((column.key, column.unit, column.role, *quantity, column.sample, str(column.count)))
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    counter = format.counter or "the number after step, iter or iteration"
    return "\n".join([*lines, f"steps are counted by: {counter}", *(f"  {sample}" for sample in format.samples)])


def read_with(path: Path, format: learnt.Learnt) -> Document:
    """Read a file with a learnt format; the document is marked."""
    collector = Collector(str(path), f"{learnt.PREFIX}{format.name}")
    with open_text(path) as stream:
        lines = Counted(Lines(stream))
        for record in learnt.read(lines, format):
            collector.add(record)
    document = collector.document(lines.count)
    document.notes.append(f"numbers of the learnt format {format.name}")
    return document


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m parlab.formats", description=__doc__)
    parser.add_argument("file", type=Path)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--learn", type=Path, metavar="OUT.json", help="write the guessed format to this file")
    choice.add_argument("--with", type=Path, metavar="IN.json", dest="format", help="read the file with this format")
    options = parser.parse_args(arguments)
    try:
        if options.learn is not None:
            with open_text(options.file) as stream:
                format = learnt.learn(Lines(stream), options.learn.stem[:100])
            options.learn.write_text(format.model_dump_json(indent=1) + "\n")
            _write(table(format))
            return 0
        format = learnt.Learnt.model_validate_json(options.format.read_bytes())
        _write(read_with(options.file, format).model_dump_json(indent=1, exclude_defaults=True))
        return 0
    except ValidationError as problem:
        first = problem.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        sys.stderr.write(f"{options.format}: {place}: {first['msg']}; correct it or learn the format again\n")
    except (OSError, ValueError) as problem:
        sys.stderr.write(f"{problem}\n")
    return 2
