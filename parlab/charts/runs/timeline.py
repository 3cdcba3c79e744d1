"""Timeline of a pipeline: one lane per rank, one or two schedules on the same time axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.format import Unit, quantity, significant, unit_for
from parlab.charts.theme import Drawing, Table

MAX_BARS = 24_000
"""More bars take a browser longer than a second."""
MAX_SHOWN_TRANSFERS = 10_000
"""With more, transfers are hidden until they are selected in the legend."""


class Bar(NamedTuple):
    """An operation of a rank or its link, in seconds since the start of the iteration."""

    rank: int
    kind: str
    """A key of KINDS."""
    micro_batch: int | None
    begin_s: float
    end_s: float
    chunk: int = 0
    note: str = ""
    """Destination and arrival of a message."""


class Timeline(NamedTuple):
    """One iteration of one schedule, simulated or measured."""

    title: str
    iteration_s: float
    bars: Sequence[Bar]
    bubbles: Sequence[float]
    """By rank: share of the iteration spent waiting."""
    held: Sequence[int] = ()
    """By rank: highest number of micro batches with stored activations, if known."""

    @property
    def bubble(self) -> float:
        return sum(self.bubbles) / len(self.bubbles) if self.bubbles else 0.0


class Look(NamedTuple):
    """How a kind of bar is drawn: name, colour, and place in the lane (0 is the middle)."""

    name: str
    colour: str
    place: float = 0.0
    height: float = 0.56


_LINK = 0.37
"""Place of the link, below the passes."""
KINDS = {
    "forward": Look("forward", theme.SKY),
    "backward": Look("backward", theme.GREEN),
    "weight": Look("weight gradients", "#00523B"),
    "optimizer": Look("optimizer", theme.YELLOW),
    "activations": Look("activations on the link", theme.ORANGE, _LINK, 0.14),
    "gradients": Look("gradients on the link", theme.PURPLE, _LINK, 0.14),
    "wait-activations": Look("waiting for activations", theme.ORANGE, _LINK, 0.14),
    "wait-gradients": Look("waiting for gradients", theme.PURPLE, _LINK, 0.14),
    "send": Look("sending", theme.BLUE, _LINK, 0.14),
}
TRANSFERS = ("activations", "gradients", "wait-activations", "wait-gradients", "send")
WAITING = "waiting (bubble)"
_GAP = 1.25
"""Lanes between two schedules, with the title."""


def figure(timelines: Sequence[Timeline]) -> Drawing:
    """Draw the lanes of each schedule (y, rank 0 on top) over the time since the start of its iteration (x)."""
    drawn = [timeline for timeline in timelines if timeline.bars]
    if not drawn:
        return theme.missing("Timeline", "needs the begin and end times of the passes of an iteration")
    bars_drawn, cut_s = _first_bars(drawn)
    longest_s = max(timeline.iteration_s for timeline in drawn)
    unit = unit_for([longest_s], "s")
    tops = _tops(drawn)
    lanes = [(top, rank) for top, timeline in zip(tops, drawn, strict=True) for rank in range(len(timeline.bubbles))]
    drawing = go.Figure(
        layout=theme.layout(
            title="Timeline",
            subtitle=_subtitle(bars_drawn),
            x=f"Time since the start of the iteration ({unit.name})",
            y="Rank",
            barmode="overlay",
            dragmode="zoom",
            bargap=0,
            showlegend=True,
            xaxis={
                "rangemode": "tozero",
                "range": [0, 1.01 * max(timeline.iteration_s for timeline in drawn) / unit.factor],
            },
            yaxis={
                "tickvals": [-(top + rank) for top, rank in lanes],
                "ticktext": [str(rank) for _, rank in lanes],
                "range": [-(lanes[-1][0] + lanes[-1][1]) - 0.6, 0.5 if len(drawn) == 1 else 1.0],
                "showgrid": False,
                "fixedrange": True,
            },
            annotations=_titles(drawn, tops) if len(drawn) > 1 else [],
        )
    )
    drawing.add_trace(_waiting(drawn, tops, unit))
    for kind in KINDS:
        placed = [(top, bar) for top, bars in zip(tops, bars_drawn, strict=True) for bar in bars if bar.kind == kind]
        if placed:
            drawing.add_trace(_bars(kind, placed, unit))
    drawing.add_trace(_ends(drawn, tops, unit))
    return Drawing(drawing, _bubble_caption(drawn) + _cut(cut_s), _operations_table(drawn))


def _subtitle(bars_drawn: Sequence[Sequence[Bar]]) -> str:
    kinds = {bar.kind for bars in bars_drawn for bar in bars}
    below = ["simulated transfers of its link"] if kinds & set(TRANSFERS[:2]) else []
    below += ["measured waiting times"] if kinds & set(TRANSFERS[2:]) else []
    return f"one lane per rank: its passes{', below them ' + ' or '.join(below) if below else ''}; grey is waiting"


def _first_bars(drawn: Sequence[Timeline]) -> tuple[list[list[Bar]], float | None]:
    """Return the first MAX_BARS bars, and the time from which bars are omitted."""
    everything = sorted(bar.begin_s for timeline in drawn for bar in timeline.bars)
    if len(everything) <= MAX_BARS:
        return [list(timeline.bars) for timeline in drawn], None
    cut_s = everything[MAX_BARS]
    return [[bar for bar in timeline.bars if bar.begin_s < cut_s] for timeline in drawn], cut_s


def _tops(drawn: Sequence[Timeline]) -> list[float]:
    """Return the lane of rank 0 of each schedule, counted downwards."""
    tops, lane = [], 0.0
    for timeline in drawn:
        tops.append(lane)
        lane += len(timeline.bubbles) + _GAP
    return tops


def _titles(drawn: Sequence[Timeline], tops: Sequence[float]) -> list[dict[str, object]]:
    return [
        {
            # The time comes first, since phones cut the rest.
            "text": theme.plain(f"{quantity(timeline.iteration_s, 's')}: {timeline.title}"),
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": -top + 0.45,
            "yanchor": "bottom",
            "showarrow": False,
        }
        for timeline, top in zip(drawn, tops, strict=True)
    ]


def _waiting(drawn: Sequence[Timeline], tops: Sequence[float], unit: Unit) -> go.Bar:
    """Draw the whole iteration of each rank behind its passes, so that gaps appear as waiting."""
    lanes = [
        (timeline, -(top + rank), rank)
        for timeline, top in zip(drawn, tops, strict=True)
        for rank in range(len(timeline.bubbles))
    ]
    texts = []
    for timeline, _, rank in lanes:
        held = f"<br>stores up to {timeline.held[rank]} micro batches" if timeline.held else ""
        share = significant(100 * timeline.bubbles[rank])
        texts.append(theme.plain(timeline.title) + f"<br>rank {rank} waits {share} % of the iteration{held}")
    return go.Bar(
        orientation="h",
        base=[0.0] * len(lanes),
        x=[timeline.iteration_s / unit.factor for timeline, _, _ in lanes],
        y=[y for _, y, _ in lanes],
        width=KINDS["forward"].height,
        name=WAITING,
        marker={"color": theme.GREY, "opacity": 0.28, "line": {"width": 0}},
        hovertext=texts,
        hoverinfo="text",
        textposition="none",
    )


def _bars(kind: str, placed: Sequence[tuple[float, Bar]], unit: Unit) -> go.Bar:
    """Draw all bars of a kind as one trace; the browser composes the hover texts."""
    look, is_transfer = KINDS[kind], kind in TRANSFERS
    has_chunks = any(bar.chunk for _, bar in placed)
    about = [
        [
            "" if bar.micro_batch is None else f"micro batch {bar.micro_batch}" + f", chunk {bar.chunk}" * has_chunks,
            bar.rank,
            round((bar.end_s - bar.begin_s) / unit.factor, 6),
            bar.note,
        ]
        for _, bar in placed
    ]
    return go.Bar(
        orientation="h",
        base=[round(bar.begin_s / unit.factor, 6) for _, bar in placed],
        x=[round((bar.end_s - bar.begin_s) / unit.factor, 6) for _, bar in placed],
        y=[-(top + bar.rank) - look.place for top, bar in placed],
        width=look.height,
        name=look.name,
        marker={"color": look.colour, "line": {"width": 0}},
        visible="legendonly" if is_transfer and len(placed) > MAX_SHOWN_TRANSFERS else True,
        customdata=about,
        hovertemplate=(
            f"{look.name}, rank %{{customdata[1]}}<br>%{{customdata[0]}}%{{customdata[3]}}"
            f"<br>starts at %{{base:.5~r}} {unit.name}<br>takes %{{customdata[2]:.4~r}} {unit.name}<extra></extra>"
        ),
        textposition="none",
    )


def _ends(drawn: Sequence[Timeline], tops: Sequence[float], unit: Unit) -> go.Scatter:
    """Draw where each iteration ends."""
    x: list[float | None] = []
    y: list[float | None] = []
    for timeline, top in zip(drawn, tops, strict=True):
        x += [timeline.iteration_s / unit.factor] * 2 + [None]
        y += [-top + 0.45, -(top + len(timeline.bubbles) - 1) - 0.45, None]
    return go.Scatter(
        x=x,
        y=y,
        mode="lines",
        name="end of the iteration",
        line={"color": theme.GREY, "width": 1.5, "dash": "dot"},
        hoverinfo="skip",
    )


def _bubble_caption(drawn: Sequence[Timeline]) -> str:
    sentences = [
        f"{timeline.title} takes {quantity(timeline.iteration_s, 's')};"
        f" its ranks wait {significant(100 * timeline.bubble)} % of it"
        + (f" and store up to {max(timeline.held)} micro batches" if timeline.held else "")
        for timeline in drawn
    ]
    if len(drawn) == 2 and min(timeline.iteration_s for timeline in drawn) > 0:
        fast, slow = sorted(drawn, key=lambda timeline: timeline.iteration_s)
        if slow.iteration_s > 1.0005 * fast.iteration_s:
            ratio = significant(slow.iteration_s / fast.iteration_s)
            sentences.append(f"the slower schedule takes {ratio} times as long")
    return ". ".join(text[:1].upper() + text[1:] if text[:3] == "the" else text for text in sentences) + "."


def _cut(cut_s: float | None) -> str:
    if cut_s is None:
        return ""
    return f" Drawn up to {quantity(cut_s, 's')}, the limit of a browser; the CSV contains all bars."


def _operations_table(drawn: Sequence[Timeline]) -> Table:
    rows = [
        [timeline.title, bar.rank, bar.kind, bar.micro_batch, bar.chunk, bar.begin_s, bar.end_s]
        for timeline in drawn
        for bar in timeline.bars
    ]
    return Table(["schedule", "rank", "kind", "micro_batch", "chunk", "begin_s", "end_s"], rows)
