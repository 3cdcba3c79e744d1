"""Several figures with the same horizontal axis as one: panels above each other that share zoom and hover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from . import theme
from .labels import LINE_END
from .theme import Drawing, Table

GAP = 0.06
"""Space between two panels, as a share of the height."""
PANEL_HEIGHT = 200
"""Height of one of several panels in pixels."""
SPIKE = {
    "showspikes": True, "spikemode": "across", "spikesnap": "hovered data", "spikethickness": 1, "spikedash": "dot",
    "spikecolor": theme.GREY,
}  # fmt: skip
"""A vertical line through all panels at the hovered position."""


def compared_by_hover(drawing: Drawing, position: str = "") -> Drawing:
    """Show all lines at the hovered position in one label, instead of the nearest point; `position` is its heading."""
    if drawing.figure is not None:
        layout = drawing.figure.layout
        axis = {**SPIKE, "unifiedhovertitle": {"text": position or "%{x}"}}
        # One update: each costs Plotly milliseconds.
        layout.update(
            {name: axis for name in layout if name.startswith("xaxis")}
            | {"hovermode": "x unified", "hoversubplots": "axis", "hoverdistance": -1}
        )
    return drawing


def stacked(drawings: Sequence[Drawing], title: str, subtitle: str, position: str = "") -> Drawing:
    """Draw figures of the same lines above each other; those without data are named in the caption.

    Lines keep the names at their ends if those of all panels have them; else there is one legend for all.
    """
    drawn = [drawing for drawing in drawings if drawing.figure is not None]
    if len(drawings) == 1 or not drawn:
        return compared_by_hover(drawings[0], position)
    first = drawn[0].figure
    figure = go.Figure(layout=first.layout if first is not None else None)
    height = (1 - GAP * (len(drawn) - 1)) / len(drawn)
    legend: set[str] = set()
    names: list[dict[str, Any]] = []
    for place, drawing in enumerate(drawn):
        if drawing.figure is None:
            continue
        name = "" if place == 0 else str(place + 1)
        top = 1 - place * (height + GAP)
        axis: dict[str, Any] = {**drawing.figure.layout.yaxis.to_plotly_json(), "domain": [max(0.0, top - height), top]}
        figure.update_layout({f"yaxis{name}": axis})
        names += [{**label.to_plotly_json(), "yref": f"y{name}"} for label in _line_ends(drawing.figure)]
        for trace in drawing.figure.data:
            is_listed = trace.showlegend is not False and trace.name not in legend
            trace.update(yaxis=f"y{name}", legendgroup=trace.legendgroup or trace.name, showlegend=is_listed)
            legend.add(trace.name)
            figure.add_trace(trace)
    figure.update_layout(
        title={"text": title, "subtitle": {"text": subtitle}},
        height=theme.HEIGHT + PANEL_HEIGHT * (len(drawn) - 1),
        xaxis={"anchor": f"y{len(drawn)}" if len(drawn) > 1 else "y"},
        meta={"panels": len(drawn)},
        showlegend=len(legend) > 1,
    )
    _name_lines(figure, drawn, names)
    captions = dict.fromkeys(text for drawing in drawings if (text := drawing.caption or drawing.empty))
    combined = Drawing(figure, " ".join(captions), _table(drawn), is_thinned=any(d.is_thinned for d in drawn))
    return compared_by_hover(combined, position)


def _line_ends(figure: go.Figure) -> list[Any]:
    return [label for label in figure.layout.annotations if label.name == LINE_END]


def _name_lines(figure: go.Figure, drawn: Sequence[Drawing], names: Sequence[dict[str, Any]]) -> None:
    """Name the lines at their ends if each panel with several lines does; else leave it to the legend."""
    figures = [drawing.figure for drawing in drawn if drawing.figure is not None]
    others = [label for label in figure.layout.annotations if label.name != LINE_END]
    is_named = all(
        _line_ends(each) or sum(trace.showlegend is not False for trace in each.data) < 2 for each in figures
    )
    if names and is_named:
        right = max(each.layout.margin.r or 0 for each in figures)
        figure.layout.annotations = [*others, *names]
        figure.update_layout(showlegend=False, margin={"r": right})
    else:
        figure.layout.annotations = others
        figure.update_layout(margin={"r": 16})


def _table(drawn: Sequence[Drawing]) -> Table:
    """Join tables whose last column is the value: one row per point, with the name of its series."""
    names = list(dict.fromkeys(name for drawing in drawn for name in drawing.table.header[:-1]))
    rows = []
    for header, points in (drawing.table for drawing in drawn):
        # Only series of files have a kind.
        places = [header.index(name) if name in header else None for name in names]
        rows += [[header[-1], *("" if at is None else row[at] for at in places), row[-1]] for row in points]
    return Table(["series", *names, "value"], rows)
