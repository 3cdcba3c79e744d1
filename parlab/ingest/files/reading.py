"""Step 2 of an import: each received file -> its reading: document, points of series and findings. No database."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from parlab.findings import document_findings
from parlab.formats import SCALARS, UNKNOWN, format_of, head_of, records
from parlab.formats.documents.documents import Collector, Counted, note_cut_lines
from parlab.formats.exports import event_files, histories
from parlab.formats.grammar.records import Record
from parlab.formats.learnt import learnt
from parlab.formats.schema import Document
from parlab.formats.source import Lines, open_text
from parlab.formats.tools import autotuning
from parlab.ingest.files.delivery import Delivery
from parlab.ingest.files.received import Received, Refused
from parlab.ingest.files.recording import Recorder, Recording
from parlab.ingest.files.requested_format import Wanted, formats
from parlab.ingest.files.tuner_files import read_tuner_files
from parlab.ingest.files.workspace import Workspace
from parlab.ingest.readings.results import PAGES, TUNER

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
    learnt: str = ""
    """Name and version of the learnt format; empty for parlab's own formats."""

    @property
    def is_page(self) -> bool:
        return self.document.format in PAGES


class _Open(NamedTuple):
    """An open file: its format, its records, and what is known of its lines after the last record."""

    format: str
    records: Iterator[Record]
    line_count: Callable[[], int]
    cut_lines: Mapping[int, str] = MappingProxyType({})


Progress = Callable[[float], None]
"""Called with the share of a delivery that was read, from 0 to 1, many times a second."""
_LINES_BETWEEN = 4_096


def read(
    delivery: Delivery, format: Wanted | None, workspace: Workspace, progress: Progress | None = None
) -> list[Reading]:
    """Read the files of a delivery, each in the given format or the one recognised from its content.

    Files of an archive that no reader recognises are left out. Raises Refused if no file can be read.
    """
    readings: list[Reading] = []
    refusals = list(delivery.refusals)
    total, done = sum(file.size for file in delivery.files) or 1, 0
    for file in delivery.files:
        report = part_of(progress, done / total, file.size / total) if progress else None
        done += file.size
        try:
            readings.append(_read_file(file, format, workspace, report))
        except Refused as refusal:
            refusals.append(str(refusal))
    if not readings and len(refusals) == 1:
        raise Refused(refusals[0])
    if not readings:
        raise Refused(f"{delivery.name} contains no file that can be imported: {refusals[-1]}")
    return readings


def part_of(progress: Progress, before: float, share: float) -> Progress:
    """Report the progress of one file or store as a part of the delivery."""
    return lambda part: progress(min(1.0, before + part * share))


def _followed(lines: Iterator[str], size: int, progress: Progress | None) -> Iterator[str]:
    """Pass lines on and report the share of the file that they are."""
    if progress is None:
        yield from lines
        return
    characters = 0
    for number, line in enumerate(lines):
        characters += len(line)
        if number % _LINES_BETWEEN == 0:
            progress(min(1.0, characters / max(size, 1)))
        yield line


def _read_file(
    received: Received, format: Wanted | None, workspace: Workspace, progress: Progress | None = None
) -> Reading:
    text = _as_utf8(received, workspace)
    title = ""
    with _opened(received, text, format, progress) as file:
        if file.format == UNKNOWN:
            raise Refused(
                f"the format of {received.name} is not recognised; specify the format, one of {', '.join(formats())}"
            )
        collector = Collector(received.name, file.format)
        recorder = Recorder(collector, workspace.points)
        named = histories.tagged(file.records, received.name if file.format in SCALARS else "")
        for record in named:
            if record.kind == "heading" and not title:
                title = str(record.data).strip()
            recorder.add(record)
        recorder.finish()
        document = collector.document(file.line_count())
        note_cut_lines(document, file.cut_lines)
    document.findings = document_findings(document)
    label = format.label if format else ""
    if label:
        document.notes.append(f"numbers of the learnt format {label}")
    reading = Reading(received, text, document, "", [], recorder.recordings, recorder.refused, label)
    return reading._replace(title=title, lines=_page_lines(text)) if reading.is_page else reading


@contextmanager
def _opened(received: Received, text: Path, format: Wanted | None, progress: Progress | None = None) -> Iterator[_Open]:
    if received.kind == "events" or (format and format.name == event_files.NAME):
        yield _Open(event_files.NAME, event_files.read(received.path), lambda: 0)
    elif received.kind == "tar":
        files = read_tuner_files(received.path)
        line_count = sum(content.count("\n") for content in files.values())
        yield _Open(TUNER, autotuning.read_results(files), lambda: line_count)
    else:
        with open_text(text) as stream:
            lines = Lines(stream)
            counted = Counted(lines)
            unread_lines = _followed(iter(counted), received.size, progress)
            head = [] if format else head_of(unread_lines)
            name = format.name if format else format_of(head)
            stream_records = (
                learnt.read(unread_lines, format.learnt)
                if format and format.learnt
                else records(chain(head, unread_lines), name)
            )
            yield _Open(name, stream_records, lambda: counted.count, lines.cut)


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
