"""Figures and pages -> SVG, PNG and PDF, drawn by a headless browser."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import plotly

from parlab.charts.picture import picture_of

from .chromium import SCALE, Browser, Page

# The page may load Plotly from its file and nothing else.
_EASEL = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy"'
    " content=\"default-src 'none'; script-src file:; style-src 'unsafe-inline'; img-src data: blob:\">"
    '<script src="{plotly}"></script><body></body>'
)
_DRAW = """async ({ figure, scale }) => {
  const image = async (format, scale) => Plotly.toImage({ data: figure.data, layout: figure.layout },
    { format, width: figure.width, height: figure.height, scale });
  return { svg: await image("svg", 1), png: await image("png", scale) };
}"""


class Drawn(NamedTuple):
    """A figure as SVG and PNG."""

    svg: bytes
    png: bytes
    width: int
    """Width of the SVG in pixels; the PNG is SCALE times as wide."""
    height: int


class Easel:
    """A page with Plotly that draws figures one after the other."""

    def __init__(self, browser: Browser) -> None:
        script = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
        self._page = Page(browser, _EASEL.format(plotly=script.as_uri()))

    def draw(self, figure: Mapping[str, Any]) -> Drawn:
        """Return the pictures of a figure in Plotly's JSON; raises NoPicture."""
        dressed = picture_of(figure)
        images = self._page.evaluate(_DRAW, {"figure": dressed._asdict(), "scale": SCALE})
        return Drawn(_data_of(images["svg"]), _data_of(images["png"]), dressed.width, dressed.height)


def _data_of(url: str) -> bytes:
    head, _, data = url.partition(",")
    return base64.b64decode(data) if head.endswith(";base64") else unquote_to_bytes(data)


def page_png(browser: Browser, html: str, width: int) -> bytes:
    """Return a screenshot of a page `width` CSS pixels wide."""
    return Page(browser, html).png(width)


def page_pdf(browser: Browser, html: str) -> bytes:
    """Return a page printed on A4."""
    return Page(browser, html).pdf()
