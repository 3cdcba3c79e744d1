"""The shared style of all figures; the browser adds the colours of text and grid (static/js/figures/figures.js)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

# Palette of Okabe and Ito: distinguishable with any colour vision.
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8A8F98"
SEQUENCE = ["#8CBBDD", "#4A92C6", "#1F6AA8", "#0A4278"]
"""From low to high, as lines; on a dark page high is light."""

MEANING = {"gpipe": BLUE, "1f1b": VERMILLION}
"""Colours with the same meaning on every page; other series get them only if no other is free."""
FREE = [GREEN, PURPLE, ORANGE, SKY, YELLOW, GREY]
SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon", "triangle-down"]
DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"]
RANK_COLOURS = [BLUE, VERMILLION, GREEN, PURPLE, SKY, ORANGE, YELLOW, GREY]
MAX_RANKS = 8
"""More ranks than this are drawn as a range, since more lines cannot be told apart."""
OOM_COLOUR = ORANGE
HEIGHT = 360
FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"
RUNS = {"type": "category", "autotickangles": [0, -45, -90]}
"""An axis of runs; slanted names end at their tick, so that none extends beyond the plot."""
_MAX_NAMES, _MAX_NUMBERS = 12, 14
"""Numbers of runs with room for their names, and for their numbers, below an axis."""


class Table(NamedTuple):
    """The numbers of a figure, for its CSV: SI units, all digits."""

    header: list[str]
    rows: list[list[Any]]


class Drawing(NamedTuple):
    """A figure with its caption and its numbers; or the reason why there is nothing to draw."""

    figure: go.Figure | None
    caption: str
    table: Table
    empty: str | None = None
    is_thinned: bool = False
    """Whether the figure shows fewer points than its series have, so that zooming in loads more."""

    def to_json(self) -> str:
        """JSON for the browser: {"figure", "caption", "empty", "thinned"}."""
        figure = settled(self.figure).to_json() if self.figure is not None else "null"
        rest = {"caption": self.caption, "empty": self.empty, "thinned": self.is_thinned}
        return f'{{"figure":{figure},{json.dumps(rest, separators=(",", ":"))[1:]}'


_FLAT = 1e-9
"""Share of its value within which a series is constant."""
_WHOLE = [{"dtickrange": [None, 0.99], "value": "~g"}, {"dtickrange": [1, None], "value": ",d"}]
"""Format of whole numbers; between them the ticks have decimals, so that no two have the same text."""


def settled(figure: go.Figure) -> go.Figure:
    """Return the figure with axes that Plotly would choose badly: of a constant series, and of whole numbers.

    Plotly draws a constant 0.0001 on an axis from -1 to 1, and labels 10, 10.5, 11 as 10, 11, 11 where no decimals are
    wanted.
    """
    for name in [key for key in figure.layout if key.startswith(("xaxis", "yaxis"))]:
        axis = figure.layout[name]
        if axis.tickformat == "d":
            axis.tickformatstops = _WHOLE
        if name.startswith("yaxis") and axis.range is None and axis.type in (None, "linear", "-"):
            axis.range = _range_of_constant(figure, name.replace("axis", "", 1), axis.rangemode == "tozero")
    return figure


def _range_of_constant(figure: go.Figure, name: str, is_from_zero: bool) -> list[float] | None:
    """Return the range in whose middle a constant series lies; None for one that varies, and for bars."""
    traces = [trace for trace in figure.data if (getattr(trace, "yaxis", None) or "y") == name]
    if not traces or any(trace.type != "scatter" or trace.stackgroup for trace in traces):
        return None
    ends = [end for trace in traces for end in _extent(trace)]
    low, high = min(ends, default=math.nan), max(ends, default=math.nan)
    if not high - low <= _FLAT * max(abs(low), abs(high)):
        return None
    if is_from_zero and high >= 0:
        return [0.0, 2 * high or 1.0]
    half = 0.1 * abs(high) or 1.0
    return [low - half, high + half]


def _extent(trace: Any) -> list[float]:
    """Return the least and the greatest value that a trace reaches with its error bars; empty without values."""
    try:
        values = np.asarray([] if trace.y is None else trace.y, dtype=np.float64)
    except (TypeError, ValueError):  # names of categories
        return [0.0, 1.0]
    if not np.isfinite(values).any():
        return []
    up, down = (0.0 if part is None else float(np.nanmax(np.asarray(part, dtype=np.float64), initial=0.0))
                for part in (trace.error_y.array, trace.error_y.arrayminus))  # fmt: skip
    return [float(np.nanmin(values[np.isfinite(values)])) - down, float(np.nanmax(values[np.isfinite(values)])) + up]


def nothing(reason: str) -> Drawing:
    """Return a drawing without a figure, with the reason why there is none."""
    return Drawing(None, "", Table([], []), reason)


def missing(title: str, reason: str) -> Drawing:
    """Return a drawing without a figure; the reason reads `Memory per rank: no run has finished.`"""
    return nothing(f"{title}: {reason}.")


class Style(NamedTuple):
    """How a series is drawn; symbol and dash repeat the information of the colour."""

    colour: str
    symbol: str
    dash: str


def colours(names: Sequence[str]) -> dict[str, str]:
    """Assign each name its fixed colour, or the next free one."""
    chosen: dict[str, str] = {}
    for name in dict.fromkeys(names):
        taken = len([other for other in chosen if other not in MEANING])
        chosen[name] = MEANING.get(name) or FREE[taken % len(FREE)]
    return chosen


def styles(series: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], Style]:
    """Style series named by axis values: the first value sets the colour, the others symbol and dash.

    With one axis, colour and symbol both follow it, so that a black and white print is readable.
    """
    first = [names[0] if names else "" for names in series]
    palette = colours(first)
    order = list(palette)
    rest = list(dict.fromkeys(names[1:] for names in series))
    chosen = {}
    for names, name in zip(series, first, strict=True):
        other = rest.index(names[1:])
        shape = other if len(rest) > 1 else order.index(name)
        chosen[names] = Style(palette[name], SYMBOLS[shape % len(SYMBOLS)], DASHES[other % len(DASHES)])
    return chosen


def rank_colour(rank: int) -> str:
    return GREY if rank < 0 else RANK_COLOURS[rank % len(RANK_COLOURS)]


def rank_dash(rank: int) -> str:
    """Return the dash that tells a rank from those with the same colour."""
    return DASHES[rank // len(RANK_COLOURS) % len(DASHES)]


def layout(*, title: str, subtitle: str, x: str, y: str, **more: Any) -> dict[str, Any]:
    """Return the layout that all figures share; x and y are axis titles with units."""
    axis = {
        "showline": True,
        "linewidth": 1,
        "ticks": "outside",
        "ticklen": 4,
        "zeroline": False,
        "automargin": True,
        "separatethousands": True,
    }
    shared: dict[str, Any] = {
        "template": {},
        "title": {"text": title, "subtitle": {"text": subtitle}, "x": 0, "xanchor": "left", "xref": "paper"},
        "height": HEIGHT,
        "margin": {"l": 56, "r": 16, "t": 16, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12},
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "namelength": -1, "font": {"family": FONT, "size": 12}},
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "xaxis": {**axis, "title": {"text": x}, "showgrid": False},
        "yaxis": {**axis, "title": {"text": y}, "showgrid": True, "gridwidth": 1},
    }
    return _merged(shared, more)


def runs_axis(names: Sequence[str]) -> dict[str, Any]:
    """Return an axis of runs: names (`#7 gpipe 4`), for many runs only numbers, for very many a part of them."""
    if len(names) <= _MAX_NAMES:
        return {**RUNS, "categoryorder": "array", "categoryarray": list(names)}
    ticks = list(names)[:: -(-len(names) // _MAX_NUMBERS)]
    return {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": list(names),
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [name.partition(" ")[0] for name in ticks],
        "tickangle": 0,
    }


def agreement(values: Sequence[float], **more: Any) -> go.Scatter:
    """Return the dashed line on which both axes have the same value."""
    ends, line = [min(values), max(values)], {"color": GREY, "dash": "dash", "width": 1}
    return go.Scatter(x=ends, y=ends, name="agree", mode="lines", line=line, hoverinfo="skip", **more)


def faint(colour: str, opacity: float = 0.18) -> str:
    """Return a colour of the palette with this opacity, for bands and backgrounds."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def _merged(base: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in more.items():
        base[key] = _merged(dict(base[key]), value) if isinstance(value, Mapping) and key in base else value
    return base


def plain(text: str) -> str:
    """Escape a text so that Plotly does not read it as markup (<b>, <a href>)."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
