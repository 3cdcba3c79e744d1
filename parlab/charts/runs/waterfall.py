"""Waterfall of a step: from the time at the peak FLOP/s to the measured step time, and the difference of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.format import MINUS, Unit, exact_quantity, quantity, significant, unit_for
from parlab.charts.theme import Drawing, Table

TITLE = "Where the time goes"
DIFFERENCE = "Difference of the terms"
KINDS = {
    "computed": ("computed", theme.SKY),
    "derived": ("measured minus computed", theme.BLUE),
    "measured": ("measured", theme.GREEN),
    "remainder": ("unexplained", theme.GREY),
}
"""Kind of a term -> name in the legend, and colour."""
NEGATIVE = "/"


class Bar(NamedTuple):
    key: str
    title: str
    seconds: float
    kind: str
    """A key of KINDS."""
    basis: str
    is_useful: bool = False
    """Whether it is what a step is for, and not a loss."""


class Column(NamedTuple):
    title: str
    total_s: float
    bars: Sequence[Bar]


class Delta(NamedTuple):
    """A term in two waterfalls, in seconds."""

    title: str
    from_s: float
    to_s: float


_TOTAL = "Step"


def figure(columns: Sequence[Column]) -> Drawing:
    """Draw each term as a bar that starts where the one above ends (x: time), one row per term (y).

    The second waterfall is drawn below the first in each row, lighter.
    """
    drawn = [column for column in columns if column.bars]
    if not drawn:
        return theme.missing(TITLE, "needs a measured step time")
    unit = unit_for([max(column.total_s for column in drawn)], "s")
    rows = [*_merged_titles(drawn), _TOTAL]
    drawing = go.Figure(
        layout=theme.layout(
            title=TITLE,
            subtitle=_subtitle(drawn),
            x=f"Time of a step ({unit.name})",
            y="",
            barmode="overlay",
            showlegend=True,
            height=120 + 30 * len(rows),
            yaxis={
                "tickvals": [-place for place in range(len(rows))],
                "ticktext": [theme.plain(row) for row in rows],
                "range": [-len(rows) + 0.4, 0.6],
                "showgrid": False,
                "fixedrange": True,
            },
            xaxis={"rangemode": "tozero", "showgrid": True},
        )
    )
    named: set[str] = set()
    for place, column in enumerate(drawn):
        for trace in _bars(column, place, len(drawn), rows, unit):
            trace.showlegend = trace.showlegend is not False and trace.legendgroup not in named
            named.add(trace.legendgroup)
            drawing.add_trace(trace)
    return Drawing(drawing, _losses_caption(drawn), _terms_table(drawn))


def _merged_titles(drawn: Sequence[Column]) -> list[str]:
    """Return the titles of all columns in their order; one that only a later column has follows its predecessor."""
    titles: list[str] = []
    for column in drawn:
        place = 0
        for bar in column.bars:
            if bar.title in titles:
                place = titles.index(bar.title) + 1
            else:
                titles.insert(place, bar.title)
                place += 1
    return titles


def _subtitle(drawn: Sequence[Column]) -> str:
    if len(drawn) == 1:
        return "each bar starts where the one above ends; the last is the whole step"
    return f"upper bars: {drawn[0].title}; lower, lighter bars: {drawn[1].title}"


def _bars(column: Column, place: int, count: int, rows: Sequence[str], unit: Unit) -> list[go.Bar]:
    width = 0.62 if count == 1 else 0.36
    shift = 0.0 if count == 1 else (0.2 if place == 0 else -0.2)
    ends, reached = [], 0.0
    for bar in column.bars:
        ends.append((bar, reached))
        reached += bar.seconds
    traces = []
    for kind, (name, colour) in KINDS.items():
        members = [(bar, begin) for bar, begin in ends if bar.kind == kind]
        if not members:
            continue
        traces.append(
            go.Bar(
                orientation="h",
                name=name,
                legendgroup=kind,
                base=[begin / unit.factor for _, begin in members],
                x=[bar.seconds / unit.factor for bar, _ in members],
                y=[shift - rows.index(bar.title) for bar, _ in members],
                width=width,
                marker={
                    "color": colour,
                    "opacity": 1.0 if place == 0 else 0.55,
                    "pattern": {"shape": [NEGATIVE if bar.seconds < 0 else "" for bar, _ in members]},
                },
                hovertext=[_hover(bar, column) for bar, _ in members],
                hoverinfo="text",
                textposition="none",
            )
        )
    traces.append(
        go.Bar(
            orientation="h",
            name="step",
            showlegend=False,
            x=[column.total_s / unit.factor],
            y=[shift - rows.index(_TOTAL)],
            width=width,
            marker={"color": theme.ORANGE, "opacity": 1.0 if place == 0 else 0.55},
            hovertext=[f"{theme.plain(column.title)}<br>{exact_quantity(column.total_s, 's')}"],
            hoverinfo="text",
            textposition="none",
        )
    )
    return traces


def _hover(bar: Bar, column: Column) -> str:
    share = significant(100 * bar.seconds / column.total_s) if column.total_s else "0"
    lines = [
        f"{column.title}: {bar.title}",
        f"{exact_quantity(bar.seconds, 's')}, {share} % of the step",
        f"{KINDS[bar.kind][0]}: {bar.basis}",
    ]
    return "<br>".join(theme.plain(line) for line in lines)


def _losses_caption(drawn: Sequence[Column]) -> str:
    sentences = []
    for column in drawn:
        losses = [bar for bar in column.bars if not bar.is_useful and bar.seconds > 0]
        largest = max(losses, key=lambda bar: bar.seconds, default=None)
        if largest is not None and column.total_s:
            share = significant(100 * largest.seconds / column.total_s)
            sentences.append(
                f"{column.title}: {quantity(column.total_s, 's')} per step; the largest loss is"
                f" {largest.title.lower()}, {quantity(largest.seconds, 's')} ({share} %)."
            )
    return " ".join(sentences)


def _terms_table(drawn: Sequence[Column]) -> Table:
    rows = [
        [column.title, bar.key, bar.title, bar.seconds, bar.seconds / column.total_s if column.total_s else None,
         bar.kind, bar.basis]
        for column in drawn
        for bar in column.bars
    ]  # fmt: skip
    return Table(["waterfall", "term", "title", "seconds", "share", "kind", "basis"], rows)


def difference_figure(deltas: Sequence[Delta], titles: tuple[str, str]) -> Drawing:
    """Draw by how much each term (y) of the second step is longer (right) or shorter (left) than in the first (x)."""
    changed = [delta for delta in deltas if delta.to_s != delta.from_s]
    if not changed:
        return theme.missing(DIFFERENCE, "both steps have the same terms")
    unit = unit_for([max(abs(delta.to_s - delta.from_s) for delta in changed)], "s")
    ordered = sorted(changed, key=lambda delta: abs(delta.to_s - delta.from_s))
    values = [delta.to_s - delta.from_s for delta in ordered]
    drawing = go.Figure(
        layout=theme.layout(
            title=DIFFERENCE,
            subtitle=f"{titles[1]} minus {titles[0]}",
            x=f"Change ({unit.name})",
            y="",
            height=110 + 28 * len(ordered),
            yaxis={"showgrid": False, "fixedrange": True},
            xaxis={"showgrid": True, "zeroline": True},
        )
    )
    drawing.add_trace(
        go.Bar(
            orientation="h",
            x=[value / unit.factor for value in values],
            y=[delta.title for delta in ordered],
            marker={
                "color": [theme.VERMILLION if value > 0 else theme.GREEN for value in values],
                "pattern": {"shape": ["" if value > 0 else NEGATIVE for value in values]},
            },
            hovertext=[
                theme.plain(delta.title)
                + f"<br>{exact_quantity(delta.from_s, 's')} to {exact_quantity(delta.to_s, 's')}"
                for delta in ordered
            ],
            hoverinfo="text",
            textposition="none",
            showlegend=False,
        )
    )
    whole_s = sum(delta.to_s - delta.from_s for delta in deltas)
    most = ordered[-1]
    direction = "longer" if whole_s > 0 else "shorter"
    change_s = most.to_s - most.from_s
    caption = (
        f"The step of {titles[1]} is {quantity(abs(whole_s), 's')} {direction} than that of {titles[0]};"
        f" the largest change is {most.title.lower()}, {'+' if change_s > 0 else MINUS}{quantity(abs(change_s), 's')}."
    )
    rows = [[delta.title, delta.from_s, delta.to_s, delta.to_s - delta.from_s] for delta in deltas]
    return Drawing(drawing, caption, Table(["term", "first_s", "second_s", "change_s"], rows))
