"""Slowdown of each schedule on each network, relative to the default network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.format import exact, quantity, significant
from parlab.charts.theme import Drawing, Table

from .heatmap import cell_axis, rectangles, shades

CALM, ALARM = "#F3F1EA", theme.VERMILLION
"""Colours of: as fast as on the default network; WORST times as slow or more."""
WORST = 2.0


class Slowdown(NamedTuple):
    """A cell: a schedule with a micro batch size on a network."""

    schedule: str
    micro_batch_size: int
    network: str
    ratio: float | None
    """Iteration time relative to the default network; None if unknown."""
    seconds: float | None = None


def figure(cells: Sequence[Slowdown], source: str) -> Drawing:
    """Draw the ratio as colour and text: networks down, schedules and micro batch sizes across."""
    if not any(cell.ratio for cell in cells):
        return theme.missing("Slowdown", "needs times of a schedule on the default network and on another one")
    columns = list(dict.fromkeys((cell.schedule, cell.micro_batch_size) for cell in cells))
    networks = list(dict.fromkeys(cell.network for cell in cells))
    places = [(columns.index((cell.schedule, cell.micro_batch_size)), networks.index(cell.network)) for cell in cells]
    located = [(place, cell) for place, cell in zip(places, cells, strict=True) if cell.ratio]
    ratios = [cell.ratio or 0.0 for _, cell in located]
    names = [f"{schedule}, micro batch {size}" for schedule, size in columns]
    drawing = go.Figure(
        go.Bar(
            **rectangles([place for place, _ in located]),
            text=[significant(ratio) for ratio in ratios],
            textfont={"color": "#1a1d21"},
            hovertext=[_hover(cell) for _, cell in located],
            customdata=ratios,
            marker={"color": shades(ratios, [(0.0, CALM), (1.0, ALARM)], low=1.0, high=WORST), "line": {"width": 0}},
        ),
        layout=theme.layout(
            title="Slowdown relative to the default network",
            subtitle=f"{source} iteration time / that of the same schedule and micro batch on the fastest network",
            x="Schedule and micro batch size (sequences)",
            y="Network",
            barmode="overlay",
            xaxis={**cell_axis(names), "autotickangles": [0, -45, -90]},
            yaxis={
                **cell_axis(networks),
                "title": {"standoff": 10},
                "range": [len(networks) - 0.5, -0.5],
                "showgrid": False,
            },
        ),
    )
    return Drawing(drawing, _slowest_caption(cells, source), _slowdowns_table(cells, source))


def _hover(cell: Slowdown) -> str:
    lines = [
        f"{cell.schedule}, micro batch {cell.micro_batch_size}",
        cell.network,
        f"{exact(round(cell.ratio or 0.0, 4))} times the iteration time on the default network",
    ]
    lines += [f"{quantity(cell.seconds, 's', 6)} per iteration"] if cell.seconds else []
    return "<br>".join(theme.plain(line) for line in lines)


def _slowest_caption(cells: Sequence[Slowdown], source: str) -> str:
    worst = max((cell for cell in cells if cell.ratio), key=lambda cell: cell.ratio or 0)
    return (
        f"{source.capitalize()}. Slowest: {worst.schedule} with micro batch {worst.micro_batch_size} on"
        f" {worst.network}, {significant(worst.ratio)} times as long as on the default network."
    )


def _slowdowns_table(cells: Sequence[Slowdown], source: str) -> Table:
    rows = [[source, *cell] for cell in cells]
    return Table(["source", "schedule", "micro_batch_size", "network", "slowdown", "iteration_s"], rows)
