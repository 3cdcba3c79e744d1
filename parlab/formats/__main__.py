"""python -m parlab.formats FILE|DIR... [--json] [--records] [--format NAME]."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from parlab.findings import document_findings
from parlab.formats import FORMATS, Document, autotuning, event_files, read_document, records
from parlab.formats.documents import Collector
from parlab.formats.records import Record
from parlab.formats.schema import Segment, UnreadLine
from parlab.formats.source import MAX_LINE, Lines, open_text

MAX_FILES = 10_000
MAX_TUNER_FILE = 2**20


class Refused(Exception):
    """What the command was given cannot be read; the message says so in plain words."""


def files_of(paths: Sequence[str]) -> Iterator[Path]:
    """Yield the files that the arguments name; directories are walked in order of names."""
    for name in paths:
        path = Path(name)
        if path.is_dir():
            found = [file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith(".")]
            if not found:
                raise Refused(f"{name} is a directory without files; name one that holds logs")
            yield from found[:MAX_FILES]
        elif path.exists():
            yield path
        else:
            raise Refused(f"{name} does not exist; check the path")


def results_of(directory: Path) -> Document | None:
    """Read a results directory of DeepSpeed's tuner as one document; None for any other directory."""
    if not autotuning.is_results(entry.name for entry in directory.iterdir()):
        return None
    files: dict[str, str] = {}
    for path in sorted(directory.rglob("*"))[:MAX_FILES]:
        name = path.relative_to(directory).as_posix()
        if path.is_file() and autotuning.wanted(name):
            with open_text(path) as stream:
                files[name] = stream.read(MAX_TUNER_FILE)
    collector = Collector(str(directory), "deepspeed-autotuning")
    for record in autotuning.read_results(files):
        collector.add(record)
    return collector.document(sum(text.count("\n") for text in files.values()))


def is_event_file(path: Path, format: str | None) -> bool:
    """Tell a TensorBoard event file, the one format that is no text, unless another format is asked for."""
    if format is not None:
        return format == event_files.NAME
    with path.open("rb") as file:
        return event_files.is_event_file(file.read(event_files.MARK_WITHIN))


def read_event_file(path: Path) -> Document:
    """Read a TensorBoard event file into a Document; its lines are its events."""
    collector = Collector(str(path), event_files.NAME)
    last = 0
    for record in event_files.read(path):
        collector.add(record)
        last = max(last, record.line)
    return collector.document(last)


def read_file(path: Path, format: str | None = None) -> Document:
    """Read one file into a Document. Raises OSError for a file that cannot be opened."""
    if is_event_file(path, format):
        return read_event_file(path)
    with open_text(path) as stream:
        lines = Lines(stream)
        document = read_document(lines, file=str(path), format=format)
    for number in lines.cut:
        reason = f"the line is longer than {MAX_LINE} characters; the rest of it was left out"
        document.unread.lines += 1
        document.unread.examples.append(UnreadLine(line=number, reason=reason, text=""))
    return document


def as_json(record: Record) -> bytes:
    """Write one record as a JSON object, without what is empty."""
    parts: dict[str, object] = {"kind": record.kind, "line": record.line, "iteration": record.iteration}
    parts |= {"rank": record.rank, "time": record.time, "values": record.values, "low": record.low}
    parts["printed"] = {cell.key: [cell.value, cell.unit] for cell in record.printed()}
    data = record.data
    if data is not None:
        parts["data"] = data._asdict() if hasattr(data, "_asdict") else data
    return orjson.dumps({name: value for name, value in parts.items() if value not in (None, {})}, default=_plain)


def _plain(value: object) -> object:
    return value.model_dump() if hasattr(value, "model_dump") else str(value)


def summary(document: Document) -> Iterator[str]:
    """Say in a few lines what a file holds."""
    yield f"{document.file}: {document.format}, {document.lines} lines"
    for segment in document.segments:
        yield f"  {_launch(segment)}"
    parts = [f"{len(document.tables)} tables", f"{sum(map(len, document.figures.values()))} figures"]
    parts += [f"{len(document.images)} images", f"{document.unread.lines} lines unread"]
    yield "  " + ", ".join(parts)
    for finding in document.findings:
        lines = ", ".join(str(line) for line in finding.lines)
        yield f"  {finding.severity}{f', line {lines}' if lines else ''}: {finding.message} [{finding.rule}]"
    for example in document.unread.examples[:3]:
        yield f"    line {example.line}: {example.reason}: {example.text[:80]}"


def _launch(segment: Segment) -> str:
    where = f"{segment.section}: " if segment.section else ""
    words = [f"{segment.records} iterations"]
    if segment.step_time_s:
        words.append(f"median {segment.step_time_s.median:.4g} s")
    if segment.samples_per_s:
        words.append(f"{segment.samples_per_s:.4g} samples/s")
    if segment.gpu_mem_max_bytes:
        words.append(f"{segment.gpu_mem_max_bytes / 2**30:.2f} GiB")
    return where + ", ".join([*words, segment.end.state])


def show(path: Path, options: argparse.Namespace) -> None:
    """Print one file as it was asked for."""
    out = sys.stdout.buffer
    if options.records and is_event_file(path, options.format):
        for record in event_files.read(path):
            out.write(as_json(record) + b"\n")
        return
    if options.records:
        with open_text(path) as stream:
            for record in records(Lines(stream), options.format):
                out.write(as_json(record) + b"\n")
        return
    put(read_file(path, options.format), options)


def put(document: Document, options: argparse.Namespace) -> None:
    """Print one document with its findings; the readers know nothing of them."""
    document.findings = document_findings(document)
    out = sys.stdout.buffer
    if options.json:
        out.write(orjson.dumps(document.model_dump()) + b"\n")
    else:
        out.write(("\n".join(summary(document)) + "\n").encode(errors="replace"))


def main(argv: Sequence[str] | None = None) -> int:
    """Read files; exit code 2 with a sentence for what cannot be read."""
    names = sorted([*FORMATS, event_files.NAME])
    parser = argparse.ArgumentParser(prog="python -m parlab.formats", description="Read what trainers print.")
    parser.add_argument("paths", nargs="+", metavar="FILE|DIR")
    parser.add_argument("--json", action="store_true", help="print one JSON object per file")
    parser.add_argument("--records", action="store_true", help="print one JSON object per record")
    parser.add_argument("--format", choices=names, metavar="NAME", help=f"do not guess; one of {', '.join(names)}")
    options = parser.parse_args(argv)
    try:
        for name in options.paths:
            whole = results_of(Path(name)) if Path(name).is_dir() and not options.records else None
            if whole is not None:
                put(whole, options)
            for path in files_of([name]):
                if whole is None or not autotuning.wanted(path.relative_to(name).as_posix()):
                    show(path, options)
        sys.stdout.flush()
    except Refused as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as problem:
        sys.stderr.write(f"{problem.filename} cannot be read: {problem.strerror}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
