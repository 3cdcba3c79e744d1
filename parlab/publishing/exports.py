"""Exports of a published version: Markdown, RST, HTML, LaTeX, CSV, PDF, or an archive of all."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import NamedTuple

from django.conf import settings
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from parlab.lab.models import PictureJob, ReportVersion, StoredFile
from parlab.reports.blocks import Content, FigureBlock, PartBlock, PictureBlock
from parlab.reports.directives import Directive
from parlab.reports.document import read
from parlab.reports.html import Pictures, html, marks_html, numbers_html
from parlab.reports.rst import rst
from parlab.reports.source import begins_with_heading, markdown_text, picture_name
from parlab.reports.tables import table_csv, table_latex

from .page_parts import cleaned

FORMATS = {
    "html": "HTML, one file",
    "pdf": "PDF",
    "md": "Markdown",
    "rst": "reStructuredText",
    "tex": "LaTeX tables",
    "zip": "All with figures and CSV",
}


class Export(NamedTuple):
    """A file to download, or the reason why it is not available."""

    name: str
    media_type: str
    data: bytes = b""
    problem: str = ""


class _Parts(NamedTuple):
    version: ReportVersion
    content: Content
    files: Mapping[str, bytes]
    """Pictures of the figures: `figure-1.svg`, `figure-1.png`, and `report.pdf`."""


def export(version: ReportVersion, ending: str) -> Export:
    """Return a version in one of FORMATS; `problem` is set for a PDF that is not available."""
    files = {entry.name: bytes(entry.file.data) for entry in version.files.select_related("file")}
    parts = _Parts(version, Content.model_validate(version.content), files)
    name = f"{version.report.slug}-v{version.number}"
    if ending == "pdf":
        data = files.get("report.pdf", b"")
        return Export(f"{name}.pdf", "application/pdf", data, "" if data else _no_pdf(version))
    if ending == "zip":
        return Export(f"{name}.zip", "application/zip", _archive(parts))
    write, media_type = _TEXTS[ending]
    return Export(f"{name}.{ending}", f"{media_type}; charset=utf-8", write(parts).encode())


def _no_pdf(version: ReportVersion) -> str:
    job = version.jobs.order_by("-pk").first()
    if job is None or job.state == PictureJob.State.DONE:
        return "This version has no PDF. Request the pictures again on its page."
    if job.state == PictureJob.State.FAILED:
        return f"The PDF of this version is not available: {job.problem}"
    return "The PDF is being created. Try again in a moment."


def _markdown(parts: _Parts) -> str:
    document = read(parts.version.text)
    return markdown_text(document, parts.content, title=parts.version.title, with_pictures=_has_pictures(parts))


def _rst(parts: _Parts) -> str:
    return rst(read(parts.version.text), parts.content, title=parts.version.title, with_pictures=_has_pictures(parts))


def _has_pictures(parts: _Parts) -> bool:
    return all(f"{name}.png" in parts.files for name, _ in parts.content.figures())


def _latex(parts: _Parts) -> str:
    messages = [finding.message for finding in parts.content.findings]
    head = f"% Tables of {parts.version.title!r}, version {parts.version.number}. Needs \\usepackage{{booktabs}}.\n"
    tables = (table_latex(block, label=name, findings=messages) for name, block in parts.content.tables())
    return head + "\n" + "\n".join(tables)


def _html(parts: _Parts) -> str:
    return page_html(parts.version, parts.content, parts.files)


def page_html(version: ReportVersion, content: Content, files: Mapping[str, bytes]) -> str:
    """Return a version as a self-contained HTML file: embedded pictures, no scripts."""

    def figure(name: str, _directive: Directive, block: FigureBlock) -> str:
        caption = f"<figcaption>{escape(block.caption)}{marks_html(block.doubts, content)}</figcaption>"
        title = escape(block.title)
        if (data := files.get(f"{name}.svg")) is not None:
            inner = f'<img src="{data_url(data, "image/svg+xml")}" alt="{title}">'
        else:
            inner = f'<p class="report-title">{title}</p>{numbers_html(block.numbers)}'
        return f'<figure class="report-figure card" id="{name}">{inner}{caption}</figure>'

    stored_files = {file.sha256: file for file in StoredFile.objects.filter(sha256__in=_picture_digests(content))}

    def picture(block: PictureBlock) -> str:
        file = stored_files.get(block.sha256)
        caption = f"<figcaption>{escape(block.caption)}</figcaption>" if block.caption else ""
        if file is None:
            return f'<p class="muted">This picture was deleted: {escape(block.caption)}</p>'
        width = block.shown_width or block.width
        source = data_url(bytes(file.data), file.media_type)
        alternative = escape(block.caption or "picture")
        return (
            f'<figure class="report-figure"><img src="{source}" alt="{alternative}" width="{width}">{caption}</figure>'
        )

    def part(block: PartBlock) -> str:
        title = f'<p class="report-title">{escape(block.title)}</p>'
        return f'<div class="page-part report-figure">{title}{cleaned(block.html, with_links=False)}</div>'

    document = read(version.text)
    sheets = {name: None for block in content.in_order() if isinstance(block, PartBlock) for name in block.sheets}
    context = {
        "version": version,
        "body": SafeString(html(document, content, Pictures(figure, picture, part))),
        "has_title": begins_with_heading(document),
        "style": SafeString(style(*sheets)),
    }
    return render_to_string("reports/alone.html", context)


def _picture_digests(content: Content) -> list[str]:
    return [block.sha256 for block in content.blocks.values() if isinstance(block, PictureBlock)]


def data_url(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


@cache
def style(*more: str) -> str:
    """Return the style sheets of the site, and those of pages that it shows parts of, for a report in a file."""
    folder = Path(settings.SHIPPED_DIR) / "static" / "css"
    names = ("tokens.css", "face.css", "site.css", "engines.css", "reports.css", *(f"{sheet}.css" for sheet in more))
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def _archive(parts: _Parts) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for ending, (write, _) in _TEXTS.items():
            archive.writestr(f"report.{ending}", write(parts))
        if "report.pdf" in parts.files:
            archive.writestr("report.pdf", parts.files["report.pdf"])
        for name, data in parts.files.items():
            if name.startswith("figure-"):
                archive.writestr(f"figures/{name}", data)
        for name, figure in parts.content.figures():
            archive.writestr(f"figures/{name}.csv", table_csv(figure.numbers))
        for name, table in parts.content.tables():
            archive.writestr(f"tables/{name}.csv", table_csv(table.numbers))
        pictures = {block.sha256: block for block in parts.content.blocks.values() if isinstance(block, PictureBlock)}
        for stored in StoredFile.objects.filter(sha256__in=pictures):
            archive.writestr(f"figures/{picture_name(pictures[stored.sha256])}", bytes(stored.data))
    return stream.getvalue()


_TEXTS: dict[str, tuple[Callable[[_Parts], str], str]] = {
    "md": (_markdown, "text/markdown"),
    "rst": (_rst, "text/x-rst"),
    "html": (_html, "text/html"),
    "tex": (_latex, "application/x-tex"),
}
