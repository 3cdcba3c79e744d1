"""Bandwidth of collective operations against message size, in nccl-tests' units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from . import theme
from .format import quantity, significant
from .measures import Available
from .theme import Drawing, Style, Table

GIGA = 1e9
"""nccl-tests' GB/s are 10^9 bytes/s."""
MAX_FULL = 3
"""Of more series than this, only busbw is drawn at first; the legend shows the rest."""
MAX_TICKS = 16
SLOWER = 1.05
"""A first trial that took so much longer than the others is worth a word."""


class Message(NamedTuple):
    """What the trials of one message size gave."""

    run: int
    operation: str
    ranks: int | None
    size: int
    """Bytes, as nccl-tests count them."""
    algbw: float
    """Bytes per second: size over time."""
    busbw: float | None
    time_s: float | None = None
    """Mean of the trials that are not apart."""
    first_time_s: float | None = None
    wrong: int | None = None
    source: str = ""
    """File that it was read from."""
    elements: int | None = None
    """How many numbers the message holds."""
    kind: str = ""
    """Type of the elements."""
    redop: str = ""

    @property
    def first_algbw(self) -> float | None:
        """Bandwidth of the first trial, with its connections and buffers."""
        return self.size / self.first_time_s if self.first_time_s else None


Series = tuple[str, str]
"""Operation and number of ranks (with the file), which one line is about."""


TITLE = "Bandwidth"


def missing(available: Available) -> str:
    """Say why there are no bandwidths to draw; empty where there are."""
    if available.has_bandwidth:
        return ""
    return "needs a run that measures collective operations, or an imported file of nccl-tests or all_reduce_bench"


def figure(messages: Sequence[Message]) -> Drawing:
    """Draw busbw (solid), algbw (dashed) and the first trial (dotted) in GB/s over message size, both axes log."""
    if not messages:
        return theme.missing(TITLE, "no message size has been measured yet")
    lines: dict[Series, list[Message]] = {}
    for message in sorted(messages, key=lambda message: message.size):
        lines.setdefault(_series(message), []).append(message)
    sizes = sorted({message.size for message in messages})
    drawing = go.Figure(
        layout=theme.layout(
            title=TITLE,
            subtitle="solid: busbw, dashed: algbw, dotted: algbw of the first trial",
            x="Message size",
            y="Bandwidth (GB/s)",
            xaxis={"type": "log", "tickmode": "array", **_ticks(sizes)},
            yaxis={"type": "log", "tickformat": "~g", "dtick": 1, "minor": {"ticks": "outside", "ticklen": 2}},
        )
    )
    styles = theme.styles(list(lines))
    for series, members in lines.items():
        for trace in _traces(series, members, styles[series], len(lines) > MAX_FULL):
            drawing.add_trace(trace)
    return Drawing(drawing, caption(messages), table(messages))


def _series(message: Message) -> Series:
    ranks = f"{message.ranks} ranks" if message.ranks else "ranks not told"
    return message.operation, f"{ranks} ({message.source})" if message.source else ranks


def _ticks(sizes: Sequence[int]) -> dict[str, object]:
    every = -(-len(sizes) // MAX_TICKS)
    shown = sizes[::every]
    return {"tickvals": shown, "ticktext": [quantity(size, "B") for size in shown]}


def _traces(series: Series, members: Sequence[Message], style: Style, is_crowded: bool) -> list[go.Scatter]:
    name = theme.plain(", ".join(series))
    kinds: list[tuple[str, list[float | None], str, str]] = [
        ("busbw", [message.busbw for message in members], "solid", style.symbol),
        ("algbw", [message.algbw for message in members], "dash", style.symbol),
        ("first trial", [message.first_algbw for message in members], "dot", f"{style.symbol}-open"),
    ]
    return [
        go.Scatter(
            x=[message.size for message in members],
            y=[None if value is None else value / GIGA for value in values],
            name=f"{name}: {kind}",
            legendgroup=name,
            visible="legendonly" if is_crowded and kind != "busbw" else True,
            mode="lines+markers",
            line={"color": style.colour, "width": 1.5 if kind == "busbw" else 1, "dash": dash},
            marker={"symbol": symbol, "size": 7 if kind == "busbw" else 5},
            customdata=[[message.size, value] for message, value in zip(members, values, strict=True)],
            hovertemplate=f"{name}<br>%{{customdata[0]:,}} B<br>{kind} %{{customdata[1]}} B/s<extra></extra>",
        )
        for kind, values, dash, symbol in kinds
        if any(value is not None for value in values)
    ]


def caption(messages: Sequence[Message]) -> str:
    """Say the highest bus bandwidth, where it was reached, and what the first trial cost."""
    if not messages:
        return "Nothing measured yet."
    known = [(message.busbw, message) for message in messages if message.busbw is not None]
    if not known:
        best = max(messages, key=lambda message: message.algbw)
        return f"{quantity(best.algbw, 'B/s')} algbw at most."
    # The all-reduce is what people ask for; without one, whatever was fastest.
    asked = [item for item in known if item[1].operation == "all-reduce"] or known
    busbw, best = max(asked, key=lambda item: item[0])
    ranks = f" between {best.ranks} ranks" if best.ranks else ""
    said = f"{best.operation}{ranks} reaches a busbw of {gigabytes(busbw)} with {quantity(best.size, 'B')}"
    if best.first_time_s and best.time_s and best.first_time_s > SLOWER * best.time_s:
        said += f"; its first trial took {significant(best.first_time_s / best.time_s)} times as long"
    wrong = sum(message.wrong or 0 for message in messages)
    return said + (f". {wrong} numbers arrived WRONG: believe none of these." if wrong else ".")


def gigabytes(bytes_per_s: float) -> str:
    """Write a bandwidth in nccl-tests' unit, and in that of network cards: `13.5 GB/s (108 Gbit/s)`."""
    return f"{significant(bytes_per_s / GIGA)} GB/s ({significant(8 * bytes_per_s / GIGA)} Gbit/s)"


def table(messages: Sequence[Message]) -> Table:
    """List all numbers under nccl-tests' names, SI units."""
    header = [
        "run", "source", "operation", "ranks", "size_bytes", "count", "type", "redop",
        "time_s", "first_time_s", "algbw_bytes_per_s", "busbw_bytes_per_s", "wrong",
    ]  # fmt: skip
    rows = [
        [
            message.run, message.source, message.operation, message.ranks, message.size, message.elements, message.kind,
            message.redop, message.time_s, message.first_time_s, message.algbw, message.busbw, message.wrong,
        ]
        for message in messages
    ]  # fmt: skip
    return Table(header, rows)
