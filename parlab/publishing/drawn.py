"""A report as a page: parse the text, resolve its directives, render HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from html import escape
from typing import NamedTuple
from urllib.parse import quote

from django.template.loader import render_to_string
from django.templatetags.static import static
from django.urls import reverse
from django.utils.safestring import SafeString

from parlab.lab.models import Report, ReportVersion
from parlab.reports.blocks import Content, FigureBlock, PartBlock, PictureBlock
from parlab.reports.directives import Directive
from parlab.reports.document import Document, read
from parlab.reports.html import Pictures, html, marks_html
from parlab.reports.source import begins_with_heading

from .resolve import EVERY_RUN, Experiments, RunFilter, resolve, unknown_names

Address = Callable[[str], str]
"""Name of a file of the report (`figure-1.json`) -> its URL."""


class Page(NamedTuple):
    """A report ready for a template."""

    body: SafeString
    """Safe HTML: texts of users are sanitised by nh3, everything else is escaped."""
    has_title: bool
    """Whether the text begins with its own title."""
    has_figures: bool
    problem: str = ""
    """Reason why the text cannot be rendered."""
    unknown: int = 0
    """Names that do not exist; a text with one cannot be published."""


def live_page(
    report: Report, text: str, figure_url: str, loaded: Experiments | None = None, only: RunFilter = EVERY_RUN
) -> Page:
    """Render a report with current data; its figures are loaded from `figure_url?d=<directive>`.

    Texts of one page, such as the panels of a dashboard, share what is `loaded`.
    """
    try:
        document = read(text)
    except ValueError as problem:
        return Page(SafeString(""), False, False, str(problem))
    content = resolve(document, report=report, loaded=loaded, only=only)

    def figure(name: str, directive: Directive, block: FigureBlock) -> str:
        query = f"?d={quote(directive.source)}"
        # A directive keeps its element while the text around it changes, so that its figure is not drawn again.
        key = sha256(directive.source.encode()).hexdigest()[:12]
        return _figure(name, block, content, f"{figure_url}{query}", f"{figure_url}{query}&format=csv", f"live-{key}")

    return _page(document, content, Pictures(figure, lambda block: _picture(block, ""), _titled_part))


def frozen_page(version: ReportVersion, address: Address, *, pictures: Mapping[str, str] | None = None) -> Page:
    """Render a published version; figures in `pictures` (name -> URL) become images, the others are drawn by Plotly."""
    content = Content.model_validate(version.content)

    def figure(name: str, _directive: Directive, block: FigureBlock) -> str:
        if pictures and name in pictures:
            return _drawn(name, block, content, pictures[name])
        return _figure(name, block, content, address(f"{name}.json"), address(f"{name}.csv"), name)

    renderers = Pictures(figure, lambda block: _picture(block, address(f"picture-{block.sha256}")), _titled_part)
    return _page(read(version.text), content, renderers)


def _page(document: Document, content: Content, pictures: Pictures) -> Page:
    body = SafeString(html(document, content, pictures))
    return Page(
        body, begins_with_heading(document), bool(content.figures()), unknown=len(unknown_names(document, content))
    )


def _figure(name: str, block: FigureBlock, content: Content, url: str, numbers: str, key: str) -> str:
    marks = SafeString(marks_html(block.doubts, content))
    context = {"name": name, "title": block.title, "json": url, "csv": numbers, "key": key, "marks": marks}
    return render_to_string("reports/figure.html", context)


def _drawn(name: str, block: FigureBlock, content: Content, address: str) -> str:
    caption = f"{escape(block.caption)}{marks_html(block.doubts, content)}"
    return (
        f'<figure class="report-figure card" id="{name}"><img src="{escape(address)}" alt="{escape(block.title)}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _titled_part(block: PartBlock) -> str:
    return f'<p class="report-title">{escape(block.title)}</p>{part_html(block)}'


def part_html(block: PartBlock) -> str:
    """Render a part of a page, with the style sheets of the page."""
    sheets = "".join(f'<link rel="stylesheet" href="{static(f"css/{name}.css")}">' for name in block.sheets)
    return f'{sheets}<div class="page-part" role="group" aria-label="{escape(block.title)}">{block.html}</div>'


def _picture(block: PictureBlock, address: str) -> str:
    """Render a picture of the gallery; without an address, by its digest."""
    source = address or reverse("stored-picture", args=[block.sha256])
    width = block.shown_width or min(block.width, 1200)
    height = round(block.height * width / max(block.width, 1))
    caption = f"<figcaption>{escape(block.caption)}</figcaption>" if block.caption else ""
    return (
        f'<figure class="report-figure"><img src="{escape(source)}" alt="{escape(block.caption or "picture")}"'
        f' width="{width}" height="{height}">{caption}</figure>'
    )
