"""Read logs and documents without a server: `python -m parlab.formats FILE|DIR... [--json] [--records]`.

The readers are in parlab.formats, the rules in parlab.findings; this command applies both.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from parlab.findings import document_findings
from parlab.formats import FORMATS, Document, records
from parlab.formats.exports import event_files
from parlab.formats.files import MAX_FILES, is_event_file, read_file, read_results_directory
from parlab.formats.grammar.records import Record
from parlab.formats.schema import Segment
from parlab.formats.source import Lines, open_text
from parlab.formats.tools import autotuning


class Refused(Exception):
    """An argument cannot be read; the message says why."""


def files_of(paths: Sequence[str]) -> Iterator[Path]:
    """Yield the files that the arguments name, and the files of directories in the order of their names."""
    for name in paths:
        path = Path(name)
        if path.is_dir():
            files = [file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith(".")]
            if not files:
                raise Refused(f"directory {name} contains no files; choose one that contains logs")
            yield from files[:MAX_FILES]
        elif path.exists():
            yield path
        else:
            raise Refused(f"{name} does not exist; check the path")


def as_json(record: Record) -> bytes:
    """Return one record as a JSON object without empty fields."""
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
    """Yield the lines of a short summary of a document."""
    yield f"{document.file}: {document.format}, {document.lines} lines"
    for note in document.notes:
        yield f"  note: {note}"
    for segment in document.segments:
        yield f"  {_launch_summary(segment)}"
    parts = [f"{len(document.tables)} tables", f"{sum(map(len, document.figures.values()))} figures"]
    parts += [f"{len(document.images)} images", f"{document.unread.lines} lines unread"]
    yield "  " + ", ".join(parts)
    for finding in document.findings:
        lines = ", ".join(str(line) for line in finding.lines)
        yield f"  {finding.severity}{f', line {lines}' if lines else ''}: {finding.message} [{finding.rule}]"
    for example in document.unread.examples[:3]:
        yield f"    line {example.line}: {example.reason}: {example.text[:80]}"


def shown(value: float) -> str:
    """Write a number with the digits that the log prints, up to 7; four digits of a computed one."""
    text = f"{value:.7g}"
    return text if float(text) == float(f"{value:.12g}") else f"{value:.4g}"


def _launch_summary(segment: Segment) -> str:
    where = f"{segment.section}: " if segment.section else ""
    figures = [f"{segment.records} iterations"]
    if segment.step_time_s:
        figures.append(f"median {shown(segment.step_time_s.median)} s")
    if segment.samples_per_s:
        figures.append(f"{shown(segment.samples_per_s)} samples/s")
    if segment.tokens_per_s:
        figures.append(f"{shown(segment.tokens_per_s)} tokens/s")
    elif rate := segment.metrics.get("tokens_per_s_per_gpu"):
        figures.append(f"{shown(rate.median)} tokens/s per GPU")
    if segment.tflops_per_gpu:
        figures.append(f"{shown(segment.tflops_per_gpu)} TFLOP/s per GPU")
    if segment.gpu_mem_max_bytes:
        figures.append(f"{segment.gpu_mem_max_bytes / 2**30:.2f} GiB")
    return where + ", ".join([*figures, segment.end.state])


def show(path: Path, options: argparse.Namespace) -> None:
    """Print one file in the form that the options select."""
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
    """Print one document with its findings."""
    document.findings = document_findings(document)
    out = sys.stdout.buffer
    if options.json:
        out.write(orjson.dumps(document.model_dump()) + b"\n")
    else:
        out.write(("\n".join(summary(document)) + "\n").encode(errors="replace"))


def main(argv: Sequence[str] | None = None) -> int:
    """Read and print files; return exit code 2 with a message on stderr if a file cannot be read."""
    names = sorted([*FORMATS, event_files.NAME])
    parser = argparse.ArgumentParser(
        prog="python -m parlab.formats", description="Read logs and documents of training runs."
    )
    parser.add_argument("paths", nargs="+", metavar="FILE|DIR")
    parser.add_argument("--json", action="store_true", help="print one JSON object per file")
    parser.add_argument("--records", action="store_true", help="print one JSON object per record")
    parser.add_argument(
        "--format", choices=names, metavar="NAME", help=f"do not detect the format; one of {', '.join(names)}"
    )
    options = parser.parse_args(argv)
    try:
        for name in options.paths:
            results = read_results_directory(Path(name)) if Path(name).is_dir() and not options.records else None
            if results is not None:
                put(results, options)
            for path in files_of([name]):
                if results is None or not autotuning.wanted(path.relative_to(name).as_posix()):
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
