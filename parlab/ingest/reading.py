"""A file of ours -> what the readers make of it, with all that is to be stored waiting on disk. No database."""

from __future__ import annotations

import codecs
import io
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple

from parlab.findings import document_findings
from parlab.formats import FORMATS, UNKNOWN, autotuning, event_files, format_of, head_of, records
from parlab.formats.documents import Collector, Counted
from parlab.formats.records import Record
from parlab.formats.schema import Document, UnreadLine
from parlab.formats.source import MAX_LINE, Lines, open_text
from parlab.ingest.packing import Packed, line_offsets, pack
from parlab.ingest.received import Received, Refused
from parlab.ingest.recording import Recorder, Recording
from parlab.ingest.results import PAGES, TUNER, WHOLE, Result, results_in

MAX_TUNER_FILE = 2**20
_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
Beside = Callable[[str], bytes | None]
"""Returns the picture that a document refers to, or None where it does not lie beside it."""


class Reading(NamedTuple):
    """All of one file."""

    received: Received
    document: Document
    title: str
    """First heading of a page; empty for a log."""
    lines: list[str]
    """Lines of a page; empty for a log."""
    results: list[Result]
    recordings: dict[int, Recording]
    """Index of a segment -> its points."""
    logs: dict[int, Packed]
    """Index of a segment -> its part of the text."""
    raw: Packed
    refused: Counter[str]


def formats() -> list[str]:
    """Names that `format` may have."""
    return sorted({*FORMATS, event_files.NAME})


def read(received: Received, format: str | None, work: Path, stack: ExitStack) -> Reading:
    """Read a file; what is to be stored waits in files of `work`, open until `stack` closes.

    Raises Refused for what no reader knows.
    """
    if format is not None and format not in formats():
        raise Refused(f"format {format!r} is unknown; use one of {', '.join(formats())}, or leave it out")
    spool: IO[bytes] = stack.enter_context((work / "points").open("x+b"))
    pieces: IO[bytes] = stack.enter_context((work / "pieces").open("x+b"))
    text = _as_utf8(received, work)
    collector = Collector(received.name, format or "")
    recorder = Recorder(collector, spool)
    title = ""
    stream, count = _records(received, text, format, collector, stack)
    for record in stream:
        if record.kind == "heading" and not title:
            title = str(record.data).strip()
        recorder.add(record)
    recorder.finish()
    document = collector.document(count())
    if document.format == UNKNOWN:
        raise Refused(
            f"{received.name} is in no format that parlab reads; name the format, one of {', '.join(formats())}"
        )
    document.findings = document_findings(document)
    is_page = document.format in PAGES
    lines = _lines(text) if is_page else []
    results = results_in(document, lines, recorder.recordings)
    raw = pack(received.path, 0, received.size, pieces)
    logs = {} if received.kind in ("events", "tar") else _logs(text, results, is_page, raw, received, pieces)
    return Reading(
        received, document, title if is_page else "", lines, results, recorder.recordings, logs, raw, recorder.refused
    )


def _records(
    received: Received, text: Path, format: str | None, collector: Collector, stack: ExitStack
) -> tuple[Iterator[Record], Callable[[], int]]:
    """Open a file with its reader; sets the collector's format. Returns the records and how to count the lines."""
    if received.kind == "events" or format == event_files.NAME:
        collector.result.format = event_files.NAME
        return event_files.read(received.path), lambda: 0
    if received.kind == "tar":
        files = tuner_files(received.path)
        collector.result.format = TUNER
        return autotuning.read_results(files), lambda: sum(content.count("\n") for content in files.values())
    lines = Lines(stack.enter_context(open_text(text)))
    counted = Counted(lines)
    stream = iter(counted)
    if format is None:
        head = head_of(stream)
        format, stream = format_of(head), chain(head, stream)
    collector.result.format = format
    return chain(records(stream, format), _cut_lines(lines, collector)), lambda: counted.count


def _cut_lines(lines: Lines, collector: Collector) -> Iterator[Record]:
    """Note lines that were too long, once all are read; a generator, because that is not before the end."""
    reason = f"the line is longer than {MAX_LINE} characters; the rest of it was left out"
    unread = collector.result.unread
    unread.lines += len(lines.cut)
    unread.examples += [UnreadLine(line=number, reason=reason, text="") for number in lines.cut]
    yield from ()


def _as_utf8(received: Received, work: Path) -> Path:
    """Give text whose lines can be found by their bytes: UTF-16 is written again as UTF-8."""
    with received.path.open("rb") as file:
        encoding = _MARKS.get(file.read(2))
    if encoding is None or received.kind != "text":
        return received.path
    path = work / "utf-8"
    with open_text(received.path) as source, path.open("x", encoding="utf-8", newline="") as target:
        while block := source.read(1 << 20):
            target.write(block)
    return path


def _lines(text: Path) -> list[str]:
    """Read the lines of a page; the readers refuse larger ones themselves."""
    with open_text(text) as file:
        return file.read(2 * 2**20).split("\n")


def _logs(
    text: Path, results: list[Result], is_page: bool, raw: Packed, received: Received, pieces: IO[bytes]
) -> dict[int, Packed]:
    """Pack the text of each launch. What stands between the launches of a log belongs to the one before it."""
    launches = sorted(
        (r.lines[0], r.lines[1], r.segment) for r in results if r.segment is not None and r.lines is not None
    )
    if not launches:
        return {WHOLE: raw} if any(r.segment == WHOLE for r in results) and text == received.path else {}
    begins = [first if is_page or n else 1 for n, (first, _, _) in enumerate(launches)]
    # Line numbers are far below this one, which stands for the end of the file.
    after = [*(first for first, _, _ in launches[1:]), 2**62]
    ends = [last + 1 if is_page else after[n] for n, (_, last, _) in enumerate(launches)]
    offsets = line_offsets(text, [*begins, *ends])
    logs = {}
    for begin, end, (_, _, segment) in zip(begins, ends, launches, strict=True):
        whole = text == received.path and offsets[begin] == 0 and offsets[end] == received.size
        if segment is not None:
            logs[segment] = raw if whole else pack(text, offsets[begin], offsets[end], pieces)
    return logs


def tuner_files(path: Path) -> dict[str, str]:
    """Read a packed results directory of DeepSpeed's tuner: relative path -> text."""
    files: dict[str, str] = {}
    with tarfile.open(path, "r:") as archive:
        for entry in archive:
            source = archive.extractfile(entry) if entry.isreg() else None
            if source is not None and autotuning.wanted(entry.name):
                files[entry.name] = source.read(MAX_TUNER_FILE).decode("utf-8", "replace")
    return files


def pack_tuner_files(files: Mapping[str, Path], target: Path) -> None:
    """Pack the files of a results directory as one: the same files give the same bytes, wherever they lay."""
    with tarfile.open(target, "x:", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            data = files[name].read_bytes()[:MAX_TUNER_FILE]
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
