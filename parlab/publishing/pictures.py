"""Figures and pages -> SVG, PNG and PDF, by a browser without a window."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import plotly

from parlab.charts.picture import picture_of

from .chromium import SCALE, Browser, Page

# It may run what lies beside Plotly, and fetch nothing.
_EASEL = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy"'
    " content=\"default-src 'none'; script-src file:; style-src 'unsafe-inline'; img-src data: blob:\">"
    '<script src="{plotly}"></script><body></body>'
)
_DRAW = """(async (figure) => {{
  const made = async (format, scale) => Plotly.toImage({{ data: figure.data, layout: figure.layout }},
    {{ format, width: figure.width, height: figure.height, scale }});
  return {{ svg: await made("svg", 1), png: await made("png", {scale}) }};
}})({figure})"""


class Drawn(NamedTuple):
    """A figure in both forms."""

    svg: bytes
    png: bytes
    width: int
    """Of the SVG; the PNG has twice as many pixels."""
    height: int


class Easel:
    """A page with Plotly that draws one figure after the other."""

    def __init__(self, browser: Browser) -> None:
        script = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
        self._page = Page(browser, _EASEL.format(plotly=script.as_uri()))

    def draw(self, figure: Mapping[str, Any]) -> Drawn:
        """Draw Plotly's JSON; raises NoPicture."""
        dressed = picture_of(figure)
        # Line ends of JSON texts are no line ends of JavaScript here: they travel as part of a JSON message.
        made = self._page.evaluate(_DRAW.format(figure=json.dumps(dressed._asdict()), scale=SCALE))
        return Drawn(_bytes(made["svg"]), _bytes(made["png"]), dressed.width, dressed.height)


def _bytes(url: str) -> bytes:
    head, _, data = url.partition(",")
    return base64.b64decode(data) if head.endswith(";base64") else unquote_to_bytes(data)


def page_png(browser: Browser, html: str, width: int) -> bytes:
    """Take a picture of a page."""
    return Page(browser, html).png(width)


def page_pdf(browser: Browser, html: str) -> bytes:
    """Print a page."""
    return Page(browser, html).pdf()
