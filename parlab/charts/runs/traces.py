"""Time of traced ranks: what each does in a step, as one stacked bar per rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.format import exact_quantity, quantity, significant, unit_for
from parlab.charts.theme import Drawing, Table

TITLE = "Time by rank"
PARTS = {
    "compute": ("compute", theme.GREEN),
    "waiting": ("waiting for other ranks", theme.VERMILLION),
    "exposed": ("exposed communication", theme.ORANGE),
    "copies": ("memory copies", theme.PURPLE),
    "host": ("idle: host-bound", theme.GREY),
    "kernel": ("idle: kernel launched, not started", theme.SKY),
}
"""Part -> name and colour, in the order of the bars."""


class RankBar(NamedTuple):
    """The mean step of a rank, or its whole trace, in seconds by part."""

    rank: int
    parts: dict[str, float]

    @property
    def total_s(self) -> float:
        return sum(self.parts.values())


def figure(ranks: Sequence[RankBar]) -> Drawing:
    """Draw the parts of a step (x) of each rank (y), rank 0 on top."""
    if not ranks:
        return theme.missing(TITLE, "no trace was imported")
    unit = unit_for([max(bar.total_s for bar in ranks)], "s")
    labels = [f"rank {bar.rank}" for bar in ranks]
    drawing = go.Figure(
        layout=theme.layout(
            title=TITLE,
            subtitle="mean of the traced steps; communication and copies behind compute count as compute",
            x=f"Time ({unit.name})",
            y="",
            barmode="stack",
            showlegend=True,
            height=max(220, 140 + 26 * len(ranks)),
            yaxis={"type": "category", "categoryorder": "array", "categoryarray": labels[::-1], "showgrid": False},
            xaxis={"showgrid": True, "rangemode": "tozero"},
        )
    )
    for part, (name, colour) in PARTS.items():
        if any(bar.parts.get(part) for bar in ranks):
            values = [bar.parts.get(part, 0.0) for bar in ranks]
            drawing.add_trace(
                go.Bar(
                    orientation="h",
                    x=[value / unit.factor for value in values],
                    y=labels,
                    name=name,
                    marker={"color": colour},
                    hovertext=[
                        f"{label}: {name}<br>{exact_quantity(v, 's')}" for label, v in zip(labels, values, strict=True)
                    ],
                    hoverinfo="text",
                    textposition="none",
                )
            )
    rows = [[bar.rank, part, bar.parts.get(part, 0.0)] for bar in ranks for part in PARTS]
    return Drawing(drawing, _busiest_rank_caption(ranks), Table(["rank", "part", "seconds"], rows))


def _busiest_rank_caption(ranks: Sequence[RankBar]) -> str:
    busiest = max(ranks, key=lambda bar: bar.parts.get("compute", 0.0))
    share = 100 * busiest.parts.get("compute", 0.0) / busiest.total_s if busiest.total_s else 0.0
    return (
        f"Rank {busiest.rank} computes longest, {quantity(busiest.parts.get('compute', 0.0), 's')}:"
        f" {significant(share)} % of its time."
    )
