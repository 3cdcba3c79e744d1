"""Files and directories on disk -> Documents."""

from __future__ import annotations

from pathlib import Path

from parlab.formats import read_document
from parlab.formats.documents.documents import Collector, note_cut_lines
from parlab.formats.exports import event_files, event_records
from parlab.formats.schema import Document
from parlab.formats.source import Lines, open_text
from parlab.formats.tools import autotuning

MAX_FILES = 10_000
MAX_TUNER_FILE = 2**20


def read_file(path: Path, format: str | None = None) -> Document:
    """Read one file into a Document. Raises OSError for a file that cannot be opened."""
    if is_event_file(path, format):
        return _read_event_file(path)
    with open_text(path) as stream:
        lines = Lines(stream)
        document = read_document(lines, file=str(path), format=format)
    note_cut_lines(document, lines.cut)
    return document


def is_event_file(path: Path, format: str | None) -> bool:
    """Return whether to read a file as a TensorBoard event file, the only binary format, unless `format` decides."""
    if format is not None:
        return format == event_files.NAME
    with path.open("rb") as file:
        return event_records.is_event_file(file.read(event_records.MARK_WITHIN))


def _read_event_file(path: Path) -> Document:
    """Read a TensorBoard event file into a Document; its lines are its events."""
    collector = Collector(str(path), event_files.NAME)
    last_line = 0
    for record in event_files.read(path):
        collector.add(record)
        last_line = max(last_line, record.line)
    return collector.document(last_line)


def read_results_directory(directory: Path) -> Document | None:
    """Read a results directory of DeepSpeed's autotuner as one document; return None for any other directory."""
    if not autotuning.is_results(entry.name for entry in directory.iterdir()):
        return None
    texts: dict[str, str] = {}
    for path in sorted(directory.rglob("*"))[:MAX_FILES]:
        name = path.relative_to(directory).as_posix()
        if path.is_file() and autotuning.wanted(name):
            with open_text(path) as stream:
                texts[name] = stream.read(MAX_TUNER_FILE)
    collector = Collector(str(directory), "deepspeed-autotuning")
    for record in autotuning.read_results(texts):
        collector.add(record)
    return collector.document(sum(text.count("\n") for text in texts.values()))
