"""A figure as a picture of its own: the colours and headings of the page become part of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

# The light values of static/css/tokens.css: pictures are for paper and other pages.
_TEXT, _MUTED, _LINE, _SURFACE = "#1a1d21", "#5c6470", "#dcdfe4", "#ffffff"
WIDTH, HEIGHT = 960, 440
_LEGEND_ROW = 21


class PictureOf(NamedTuple):
    """What to draw and how large, in pixels."""

    data: list[Any]
    layout: dict[str, Any]
    width: int
    height: int


def picture_of(figure: Mapping[str, Any]) -> PictureOf:
    """Lay out a figure (Plotly's JSON) for paper."""
    layout = dict(figure.get("layout") or {})
    data = list(figure.get("data") or [])
    top = 84 + _legend_rows(data, layout) * _LEGEND_ROW
    height = max(HEIGHT, int(layout.get("height") or 0) + 80) + max(0, top - 105)
    axis = {
        "color": _MUTED,
        "linecolor": _LINE,
        "tickcolor": _LINE,
        "gridcolor": _LINE,
        "title": {"font": {"color": _MUTED}},
    }
    axes = {name: _merged(layout[name] or {}, axis) for name in layout if name.startswith(("xaxis", "yaxis"))}
    printed = _merged(
        layout,
        {
            "font": {"color": _TEXT},
            "paper_bgcolor": _SURFACE,
            "plot_bgcolor": _SURFACE,
            "title": {"y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 16}},
            "margin": {"t": top, "l": 64, "r": 24, "b": 56},
            "legend": {"font": {"color": _TEXT}},
            "width": WIDTH,
            "height": height,
            **axes,
        },
    )
    return PictureOf(data, printed, WIDTH, height)


def _legend_rows(data: list[Any], layout: Mapping[str, Any]) -> int:
    names = [str(trace.get("name") or "") for trace in data if trace.get("showlegend", True) and trace.get("name")]
    if not names or layout.get("showlegend") is False:
        return 0
    in_row = max(1, (WIDTH - 100) // (max(map(len, names)) * 7 + 60))
    return math.ceil(len(names) / in_row)


def _merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in more.items():
        current = merged.get(key)
        if isinstance(value, Mapping) and isinstance(current, Mapping):
            merged[key] = _merged(current, value)
        else:
            merged[key] = value
    return merged
