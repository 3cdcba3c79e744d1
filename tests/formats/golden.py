"""Golden cases: `<format>/<case>.log` and what is read from it; `python -m tests.formats.golden` writes the latter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from parlab.formats import Document, Record
from parlab.formats.documents.documents import Collector
from parlab.formats.files import read_file
from parlab.formats.source import Lines, open_text
from parlab.formats.spans import Text

HERE = Path(__file__).parent


def cases() -> list[Path]:
    """Return every input file, with or without a golden file."""
    # Python compiles the tests into __pycache__ while several processes collect them, with files for a moment there.
    files = [path for path in HERE.glob("*/*") if path.is_file() and path.parent.name != "__pycache__"]
    return sorted(path for path in files if path.suffix not in (".json", ".py")) + sorted(HERE.glob("*/*.case.json"))


def golden(case: Path) -> Path:
    return case.with_name(case.name.partition(".")[0] + ".json")


class Reading(NamedTuple):
    """What is read from a sample, for all that tests hold of it."""

    document: Document
    records: list[Record]
    text: Text
    """The lines, and which of their numbers are read."""


def read(path: Path) -> Reading:
    """Read a sample once: its document, the records of which it is made, and their places in the text."""
    records: list[Record] = []
    add = Collector.add
    with open_text(path) as stream:
        text = Text(Lines(stream))

    def kept(self: Collector, record: Record) -> None:
        records.append(record)
        text.place(record)
        add(self, record)

    with patch.object(Collector, "add", kept):
        return Reading(read_file(path), records, text)


def content(document: Document, case: Path) -> str:
    """Return the content of the golden file of a case."""
    result = document.model_dump(exclude_defaults=True) | {"file": case.name}
    return json.dumps(result, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for case in cases():
        golden(case).write_text(content(read_file(case), case))
