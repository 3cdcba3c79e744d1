"""Step 2 of an import: each received file -> its reading: document, points of series and findings. No database."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from parlab.findings import document_findings
from parlab.formats import FORMATS, UNKNOWN, autotuning, event_files, format_of, head_of, records
from parlab.formats.documents import Collector, Counted, note_cut_lines
from parlab.formats.records import Record
from parlab.formats.schema import Document
from parlab.formats.source import Lines, open_text
from parlab.ingest.delivery import Delivery
from parlab.ingest.received import Received, Refused
from parlab.ingest.recording import Recorder, Recording
from parlab.ingest.results import PAGES, TUNER
from parlab.ingest.tuner_files import read_tuner_files
from parlab.ingest.workspace import Workspace

_UTF_16_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_MAX_PAGE = 2 * 2**20


class Reading(NamedTuple):
    """What the readers make of one file."""

    received: Received
    text: Path
    """The file as UTF-8, so that lines can be located by byte offsets; the file itself unless it is UTF-16."""
    document: Document
    title: str
    """First heading of a page; empty for a log."""
    lines: Sequence[str]
    """Lines of a page; empty for a log."""
    recordings: dict[int, Recording]
    """Index of a segment -> its points, spooled in the workspace."""
    refused: Counter[str]
    """Reason -> number of values that remain in the text only."""

    @property
    def is_page(self) -> bool:
        return self.document.format in PAGES


class _Open(NamedTuple):
    """An open file: its format, its records, and what is known of its lines after the last record."""

    format: str
    records: Iterator[Record]
    line_count: Callable[[], int]
    cut_lines: Sequence[int] = ()


def formats() -> list[str]:
    """Return the valid values of `format`."""
    return sorted({*FORMATS, event_files.NAME})


def read(delivery: Delivery, format: str | None, workspace: Workspace) -> list[Reading]:
    """Read the files of a delivery, each in the given format or the one recognised from its content.

    Files of an archive that no reader recognises are left out. Raises Refused if no file can be read.
    """
    if format is not None and format not in formats():
        raise Refused(f"unknown format {format!r}; use one of {', '.join(formats())}, or omit it")
    readings: list[Reading] = []
    refusals = list(delivery.refusals)
    for file in delivery.files:
        try:
            readings.append(_read_file(file, format, workspace))
        except Refused as refusal:
            refusals.append(str(refusal))
    if not readings and len(refusals) == 1:
        raise Refused(refusals[0])
    if not readings:
        raise Refused(f"{delivery.name} contains no file that can be imported: {refusals[-1]}")
    return readings


def _read_file(received: Received, format: str | None, workspace: Workspace) -> Reading:
    text = _as_utf8(received, workspace)
    title = ""
    with _opened(received, text, format) as file:
        collector = Collector(received.name, file.format)
        recorder = Recorder(collector, workspace.points)
        for record in file.records:
            if record.kind == "heading" and not title:
                title = str(record.data).strip()
            recorder.add(record)
        recorder.finish()
        document = collector.document(file.line_count())
        note_cut_lines(document, file.cut_lines)
    if document.format == UNKNOWN:
        raise Refused(
            f"the format of {received.name} is not recognised; specify the format, one of {', '.join(formats())}"
        )
    document.findings = document_findings(document)
    reading = Reading(received, text, document, "", [], recorder.recordings, recorder.refused)
    return reading._replace(title=title, lines=_page_lines(text)) if reading.is_page else reading


@contextmanager
def _opened(received: Received, text: Path, format: str | None) -> Iterator[_Open]:
    """Open a file with the reader of its format."""
    if received.kind == "events" or format == event_files.NAME:
        try:
            events = event_files.read(received.path, received.name)
        except event_files.MissingPackageError as problem:
            raise Refused(str(problem)) from problem
        yield _Open(event_files.NAME, events, lambda: 0)
    elif received.kind == "tar":
        files = read_tuner_files(received.path)
        line_count = sum(content.count("\n") for content in files.values())
        yield _Open(TUNER, autotuning.read_results(files), lambda: line_count)
    else:
        with open_text(text) as stream:
            lines = Lines(stream)
            counted = Counted(lines)
            unread_lines = iter(counted)
            head = [] if format else head_of(unread_lines)
            name = format or format_of(head)
            yield _Open(name, records(chain(head, unread_lines), name), lambda: counted.count, lines.cut)


def _as_utf8(received: Received, workspace: Workspace) -> Path:
    """Return a file whose lines can be located by byte offsets: UTF-16 is rewritten as UTF-8."""
    with received.path.open("rb") as file:
        encoding = _UTF_16_MARKS.get(file.read(2))
    if encoding is None or received.kind != "text":
        return received.path
    path = workspace.new_path()
    with open_text(received.path) as source, path.open("x", encoding="utf-8", newline="") as target:
        while block := source.read(1 << 20):
            target.write(block)
    return path


def _page_lines(text: Path) -> list[str]:
    """Return the lines of a page; the readers refuse larger pages themselves."""
    with open_text(text) as file:
        return file.read(_MAX_PAGE).split("\n")
