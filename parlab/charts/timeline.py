"""What every rank of a pipeline does when: one lane per rank, one or two schedules on one time axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from . import theme
from .format import Unit, quantity, significant, unit_for
from .theme import Drawing, Table

MAX_BARS = 24_000
"""More than these take a browser longer than a second."""
MAX_SHOWN_TRANSFERS = 10_000
"""With more than these, transfers are drawn when somebody asks for them in the legend."""


class Bar(NamedTuple):
    """Something that a rank or its link does, in seconds since the iteration began."""

    rank: int
    kind: str
    """A key of KINDS."""
    micro_batch: int | None
    begin_s: float
    end_s: float
    chunk: int = 0
    note: str = ""
    """Where a message goes, and when it is there."""


class Timeline(NamedTuple):
    """One iteration of one schedule, simulated or measured."""

    title: str
    iteration_s: float
    bars: Sequence[Bar]
    bubbles: Sequence[float]
    """By rank: the share of the iteration in which it waits."""
    held: Sequence[int] = ()
    """By rank: micro batches whose activations it keeps at most, where that is known."""

    @property
    def bubble(self) -> float:
        return sum(self.bubbles) / len(self.bubbles) if self.bubbles else 0.0


class Look(NamedTuple):
    """How a kind of bar is drawn: its name, colour, and place in the lane (0 is the middle)."""

    name: str
    colour: str
    place: float = 0.0
    height: float = 0.56


_LINK = 0.37
"""Below the passes: what leaves the rank."""
KINDS = {
    "forward": Look("forward", theme.SKY),
    "backward": Look("backward", theme.GREEN),
    "weight": Look("gradients of the weights", "#00523B"),
    "optimizer": Look("optimizer", theme.YELLOW),
    "activations": Look("activations on the link", theme.ORANGE, _LINK, 0.14),
    "gradients": Look("gradients on the link", theme.PURPLE, _LINK, 0.14),
    "wait-activations": Look("waiting for activations", theme.ORANGE, _LINK, 0.14),
    "wait-gradients": Look("waiting for gradients", theme.PURPLE, _LINK, 0.14),
    "send": Look("handing over to the link", theme.BLUE, _LINK, 0.14),
}
TRANSFERS = ("activations", "gradients", "wait-activations", "wait-gradients", "send")
WAITING = "waiting (bubble)"
_GAP = 1.25
"""Between two schedules, in lanes; the title stands there."""


def figure(timelines: Sequence[Timeline]) -> Drawing:
    """Draw the lanes of each schedule (y, rank 0 on top) over the time since its iteration began (x)."""
    drawn = [timeline for timeline in timelines if timeline.bars]
    if not drawn:
        return theme.nothing("No timeline: nothing says when the passes of an iteration began and ended.")
    kept, cut_s = _within_reach(drawn)
    unit = unit_for([max(timeline.iteration_s for timeline in drawn)], "s")
    tops = _tops(drawn)
    lanes = [(top, rank) for top, one in zip(tops, drawn, strict=True) for rank in range(len(one.bubbles))]
    drawing = go.Figure(
        layout=theme.layout(
            title="Timeline",
            subtitle=_subtitle(kept),
            x=f"Time since the iteration began ({unit.name})",
            y="Rank",
            barmode="overlay",
            dragmode="zoom",
            bargap=0,
            showlegend=True,
            xaxis={"rangemode": "tozero", "range": [0, 1.01 * max(one.iteration_s for one in drawn) / unit.factor]},
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
        found = [(top, bar) for top, bars in zip(tops, kept, strict=True) for bar in bars if bar.kind == kind]
        if found:
            drawing.add_trace(_bars(kind, found, unit))
    drawing.add_trace(_ends(drawn, tops, unit))
    return Drawing(drawing, _caption(drawn) + _cut(cut_s), _table(drawn))


def _subtitle(kept: Sequence[Sequence[Bar]]) -> str:
    kinds = {bar.kind for bars in kept for bar in bars}
    below = ["what leaves over its link (simulated)"] if kinds & set(TRANSFERS[:2]) else []
    below += ["what it waited for (measured)"] if kinds & set(TRANSFERS[2:]) else []
    return f"one lane per rank: its passes{', and below them ' + ' or '.join(below) if below else ''}; grey is waiting"


def _within_reach(drawn: Sequence[Timeline]) -> tuple[list[list[Bar]], float | None]:
    """Keep the bars that begin first, where there are more than a browser can draw; tell until when."""
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
            # What tells them apart stands first: phones cut.
            "text": theme.plain(f"{quantity(one.iteration_s, 's')}: {one.title}"),
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": -top + 0.45,
            "yanchor": "bottom",
            "showarrow": False,
        }
        for one, top in zip(drawn, tops, strict=True)
    ]


def _waiting(drawn: Sequence[Timeline], tops: Sequence[float], unit: Unit) -> go.Bar:
    """Draw the whole iteration of each rank behind its passes: what shows is waiting."""
    lanes = [
        (one, -(top + rank), rank) for one, top in zip(drawn, tops, strict=True) for rank in range(len(one.bubbles))
    ]
    texts = []
    for one, _, rank in lanes:
        held = f"<br>holds {one.held[rank]} micro batches at most" if one.held else ""
        share = significant(100 * one.bubbles[rank])
        texts.append(theme.plain(one.title) + f"<br>rank {rank} waits {share} % of the iteration{held}")
    return go.Bar(
        orientation="h",
        base=[0.0] * len(lanes),
        x=[one.iteration_s / unit.factor for one, _, _ in lanes],
        y=[y for _, y, _ in lanes],
        width=KINDS["forward"].height,
        name=WAITING,
        marker={"color": theme.GREY, "opacity": 0.28, "line": {"width": 0}},
        hovertext=texts,
        hoverinfo="text",
        textposition="none",
    )


def _bars(kind: str, found: Sequence[tuple[float, Bar]], unit: Unit) -> go.Bar:
    """Draw all bars of one kind as one trace; what a hover says is put together in the browser."""
    look, is_transfer = KINDS[kind], kind in TRANSFERS
    has_chunks = any(bar.chunk for _, bar in found)
    about = [
        [
            "" if bar.micro_batch is None else f"micro batch {bar.micro_batch}" + f", chunk {bar.chunk}" * has_chunks,
            bar.rank,
            round((bar.end_s - bar.begin_s) / unit.factor, 6),
            bar.note,
        ]
        for _, bar in found
    ]
    return go.Bar(
        orientation="h",
        base=[round(bar.begin_s / unit.factor, 6) for _, bar in found],
        x=[round((bar.end_s - bar.begin_s) / unit.factor, 6) for _, bar in found],
        y=[-(top + bar.rank) - look.place for top, bar in found],
        width=look.height,
        name=look.name,
        marker={"color": look.colour, "line": {"width": 0}},
        visible="legendonly" if is_transfer and len(found) > MAX_SHOWN_TRANSFERS else True,
        customdata=about,
        hovertemplate=(
            f"{look.name}, rank %{{customdata[1]}}<br>%{{customdata[0]}}%{{customdata[3]}}"
            f"<br>begins at %{{base:.5~r}} {unit.name}<br>takes %{{customdata[2]:.4~r}} {unit.name}<extra></extra>"
        ),
        textposition="none",
    )


def _ends(drawn: Sequence[Timeline], tops: Sequence[float], unit: Unit) -> go.Scatter:
    """Draw where each iteration ends."""
    x: list[float | None] = []
    y: list[float | None] = []
    for one, top in zip(drawn, tops, strict=True):
        x += [one.iteration_s / unit.factor] * 2 + [None]
        y += [-top + 0.45, -(top + len(one.bubbles) - 1) - 0.45, None]
    return go.Scatter(
        x=x,
        y=y,
        mode="lines",
        name="end of the iteration",
        line={"color": theme.GREY, "width": 1.5, "dash": "dot"},
        hoverinfo="skip",
    )


def _caption(drawn: Sequence[Timeline]) -> str:
    said = [
        f"{one.title} takes {quantity(one.iteration_s, 's')}; its ranks wait {significant(100 * one.bubble)} % of that"
        + (f" and hold up to {max(one.held)} micro batches" if one.held else "")
        for one in drawn
    ]
    if len(drawn) == 2 and min(one.iteration_s for one in drawn) > 0:
        fast, slow = sorted(drawn, key=lambda one: one.iteration_s)
        if slow.iteration_s > 1.0005 * fast.iteration_s:
            said.append(f"the slower one takes {significant(slow.iteration_s / fast.iteration_s)} times as long")
    return ". ".join(text[:1].upper() + text[1:] if text[:3] == "the" else text for text in said) + "."


def _cut(cut_s: float | None) -> str:
    if cut_s is None:
        return ""
    return f" Drawn up to {quantity(cut_s, 's')}, where it gets too much for a browser; the numbers have all of it."


def _table(drawn: Sequence[Timeline]) -> Table:
    rows = [
        [one.title, bar.rank, bar.kind, bar.micro_batch, bar.chunk, bar.begin_s, bar.end_s]
        for one in drawn
        for bar in one.bars
    ]
    return Table(["schedule", "rank", "kind", "micro_batch", "chunk", "begin_s", "end_s"], rows)
