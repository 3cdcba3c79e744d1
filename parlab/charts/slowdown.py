"""How much slower each schedule is on each network than on the default one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from . import theme
from .format import exact, quantity, significant
from .theme import Drawing, Table

TIMES = "\N{MULTIPLICATION SIGN}"
CALM, ALARM = "#F3F1EA", theme.VERMILLION
"""As fast as on the default network; twice as slow or worse."""
WORST = 2.0


class Slowdown(NamedTuple):
    """One cell: a schedule with a micro batch size on a network."""

    schedule: str
    micro_batch_size: int
    network: str
    ratio: float | None
    """Iteration over that on the default network; None where it is not known."""
    seconds: float | None = None


def figure(cells: Sequence[Slowdown], source: str) -> Drawing:
    """Draw the ratio as colour and text: networks down, schedules and micro batch sizes across."""
    if not any(cell.ratio for cell in cells):
        return theme.nothing("No slowdown: no schedule is known on the default network and on another one.")
    columns = list(dict.fromkeys((cell.schedule, cell.micro_batch_size) for cell in cells))
    networks = list(dict.fromkeys(cell.network for cell in cells))
    by_place = {(cell.network, cell.schedule, cell.micro_batch_size): cell for cell in cells}
    grid = [[by_place.get((network, *column)) for column in columns] for network in networks]
    ratios = [[cell.ratio if cell else None for cell in row] for row in grid]
    drawing = go.Figure(
        go.Heatmap(
            x=[[theme.plain(schedule) for schedule, _ in columns], [f"micro batch {size}" for _, size in columns]],
            y=[theme.plain(network) for network in networks],
            z=ratios,
            zmin=1.0,
            zmax=WORST,
            colorscale=[[0, CALM], [1, ALARM]],
            text=[[f"{significant(ratio)} {TIMES}" if ratio else "" for ratio in row] for row in ratios],
            texttemplate="%{text}",
            textfont={"color": "#1a1d21"},
            hovertext=[[_hover(cell) for cell in row] for row in grid],
            hoverinfo="text",
            hoverongaps=False,
            xgap=2,
            ygap=2,
            showscale=False,  # each cell says its number
        ),
        layout=theme.layout(
            title="Slowdown against the default network",
            subtitle=f"{source} iteration over that of the same schedule and micro batch on the fastest network",
            x="Schedule and micro batch size (sequences)",
            y="Network",
            yaxis={"title": {"standoff": 10}, "autorange": "reversed", "showgrid": False, "type": "category"},
            xaxis={"showgrid": False},
        ),
    )
    return Drawing(drawing, _caption(cells, source), _table(cells, source))


def _hover(cell: Slowdown | None) -> str:
    if cell is None or cell.ratio is None:
        return ""
    lines = [
        f"{cell.schedule}, micro batch {cell.micro_batch_size}",
        cell.network,
        f"{exact(round(cell.ratio, 4))} times the default network's iteration",
    ]
    lines += [f"{quantity(cell.seconds, 's', 6)} an iteration"] if cell.seconds else []
    return "<br>".join(theme.plain(line) for line in lines)


def _caption(cells: Sequence[Slowdown], source: str) -> str:
    worst = max((cell for cell in cells if cell.ratio), key=lambda cell: cell.ratio or 0)
    return (
        f"{source.capitalize()}. Slowest: {worst.schedule} with micro batch {worst.micro_batch_size} on"
        f" {worst.network}, {significant(worst.ratio)} times as long as on the default network."
    )


def _table(cells: Sequence[Slowdown], source: str) -> Table:
    rows = [[source, *cell] for cell in cells]
    return Table(["source", "schedule", "micro_batch_size", "network", "slowdown", "iteration_s"], rows)
