"""Downloads of pages and API: stored files, pictures, parts of published reports, imported files, traces.

What a person uploaded may only be displayed: its answer permits neither scripts nor requests.
"""

from __future__ import annotations

import json
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.utils.http import content_disposition_header

from parlab.ingest.trace_lanes import exported, traced_ranks
from parlab.lab.models import ReportVersion, Run, Snapshot, Source, StoredFile
from parlab.lab.selectors.sources import source_stream
from parlab.publishing.exports import FORMATS, Export, export
from parlab.reports.blocks import Content, FigureBlock
from parlab.reports.tables import table_csv

HARMLESS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
            "X-Content-Type-Options": "nosniff"}  # fmt: skip
UNSTYLED = {**HARMLESS, "Content-Security-Policy": "default-src 'none'; sandbox"}
_GZIP = 31
_BLOCK_BYTES = 64 << 10


def csv_file(numbers: Any, name: str) -> HttpResponse:
    return HttpResponse(
        table_csv(numbers),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def stored_file(file: StoredFile, download: str = "") -> HttpResponse:
    """Send a stored file. It never changes, so browsers may cache it."""
    response = HttpResponse(bytes(file.data), content_type=file.media_type)
    for name, value in HARMLESS.items():
        response.headers[name] = value
    response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
    if download:
        is_page = file.media_type == "application/pdf"
        response.headers["Content-Disposition"] = content_disposition_header(is_page, download) or "attachment"
    return response


def version_file(version: ReportVersion, name: str) -> HttpResponse:
    """Send a part of a version: data, numbers or picture of a figure, a table, or the whole report in a format."""
    stem, _, ending = name.replace("\0", "").rpartition(".")
    content = Content.model_validate(version.content)
    stored = version.files.select_related("file").filter(name=name.replace("\0", "")).first()
    if stored is not None:
        return stored_file(stored.file, download=f"{version.report.slug}-v{version.number}-{name}")
    figures, tables = dict(content.figures()), dict(content.tables())
    if ending == "json" and stem in figures:
        block: FigureBlock = figures[stem]
        answer = {"figure": block.figure, "caption": block.caption, "empty": None}
        return HttpResponse(json.dumps(answer), content_type="application/json")
    if ending == "csv" and stem in (figures | tables):
        return csv_file((figures | tables)[stem].numbers, f"{version.report.slug}-v{version.number}-{name}")
    if stem == "report" and ending in FORMATS:
        return _export(export(version, ending))
    raise Http404(f"version {version.number} has no {name}")


def _export(exported: Export) -> HttpResponse:
    if exported.problem:
        return HttpResponse(exported.problem, status=409, content_type="text/plain; charset=utf-8")
    response = HttpResponse(exported.data, content_type=exported.media_type)
    response.headers["Content-Disposition"] = content_disposition_header(True, exported.name) or "attachment"
    for name, value in HARMLESS.items():
        response.headers[name] = value
    return response


def picture_response(picture: Snapshot) -> HttpResponse:
    stored = get_object_or_404(StoredFile, sha256=picture.content.get("sha256", ""))
    response = stored_file(stored)
    name = f"{picture.experiment.slug}-{picture.digest[:12]}.{stored.media_type.partition('/')[2]}"
    response.headers["Content-Disposition"] = content_disposition_header(True, name) or "attachment"
    return response


def source_download(source: Source) -> StreamingHttpResponse:
    """Send the original file as plain text."""
    response = StreamingHttpResponse(source_stream(source.pk), content_type="text/plain; charset=utf-8")
    for name, value in UNSTYLED.items():
        response.headers[name] = value
    response.headers["Content-Length"] = str(source.size)
    response.headers["Content-Disposition"] = content_disposition_header(True, safe_name(source.name)) or "attachment"
    return response


def trace_download(run: Run) -> StreamingHttpResponse:
    """Send a Chrome trace of all ranks on one clock, packed."""
    answer = StreamingHttpResponse(_packed(exported(traced_ranks(run))), content_type="application/gzip")
    answer["Content-Disposition"] = f'attachment; filename="{run.experiment.slug}-run-{run.number}-trace.json.gz"'
    return answer


def _packed(lines: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    block = bytearray()
    for line in lines:
        block += line
        if len(block) >= _BLOCK_BYTES:
            yield packer.compress(bytes(block))
            block.clear()
    yield packer.compress(bytes(block)) + packer.flush()


def safe_name(name: str) -> str:
    """Return a safe file name without directories and control characters."""
    plain = "".join("_" if unicodedata.category(char)[0] == "C" or char in '/\\:"' else char for char in name)
    return plain.strip(". ")[:150] or "file.txt"
