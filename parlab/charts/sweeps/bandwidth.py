"""Bandwidth of collective operations against message size, in nccl-tests' units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.axes import log_ticks
from parlab.charts.format import DIGITS, printed_digits, quantity, significant
from parlab.charts.measures import Available
from parlab.charts.repeats import bars_over
from parlab.charts.theme import Drawing, Style, Table

GIGA = 1e9
"""nccl-tests' GB/s are 10^9 bytes/s."""
MAX_FULL = 3
"""With more series than this, only busbw is visible at first; the legend switches the rest on."""
MAX_TICKS = 16
SLOWER = 1.05
"""From this ratio on, the caption mentions that the first trial was slower."""


class Message(NamedTuple):
    """Results of the trials of a message size."""

    run: int
    operation: str
    ranks: int | None
    size: int
    """Bytes, as nccl-tests count them."""
    algbw: float
    """Bytes per second: size over time."""
    busbw: float | None
    time_s: float | None = None
    """Mean of the trials after the first."""
    first_time_s: float | None = None
    wrong: int | None = None
    source: str = ""
    """Name of the imported file."""
    elements: int | None = None
    """Number of elements of the message."""
    kind: str = ""
    """Type of the elements."""
    origin: str = ""
    """How the bandwidths of a file came about: printed or derived; empty for what parlab has measured."""
    redop: str = ""
    variant: str = ""
    """What else differs between the runs: `delay 5 ms`; runs of the same variant are repeats."""
    repeats: tuple[Message, ...] = ()
    """The messages of which this one is the mean; empty for a single run."""

    @property
    def first_algbw(self) -> float | None:
        """Bandwidth of the first trial, which also sets up connections and buffers."""
        return self.size / self.first_time_s if self.first_time_s else None


Series = tuple[str, str]
"""Operation and number of ranks (with the file) of a line."""


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
    for message in sorted(_pooled(messages), key=lambda message: message.size):
        lines.setdefault(_series(message), []).append(message)
    has_repeats = any(message.repeats for line in lines.values() for message in line)
    sizes = sorted({message.size for message in messages})
    drawing = go.Figure(
        layout=theme.layout(
            title=TITLE,
            subtitle="solid: busbw, dashed: algbw, dotted: algbw of the first trial"
            + "; mean of the repeats, bars over their range" * has_repeats,
            x="Message size",
            y="Bandwidth (GB/s)",
            xaxis={"type": "log", "tickmode": "array", **_ticks(sizes)},
            yaxis={"type": "log", "tickformat": "~g", **log_ticks(_drawn(lines.values()))},
        )
    )
    styles = theme.styles(list(lines))
    for series, members in lines.items():
        for trace in _traces(series, members, styles[series], len(lines) > MAX_FULL):
            drawing.add_trace(trace)
    return Drawing(drawing, caption(messages), table(messages))


def _drawn(lines: Iterable[Sequence[Message]]) -> list[float]:
    """Return the bandwidths of all lines, in GB/s."""
    values = (_value(message, kind) for line in lines for message in line for kind in ("busbw", "algbw", "first"))
    return [value / GIGA for value in values if value]


def _series(message: Message) -> Series:
    ranks = f"{message.ranks} ranks" if message.ranks else "unknown ranks"
    ranks = f"{ranks}, {message.variant}" if message.variant else ranks
    return message.operation, f"{ranks} ({message.source})" if message.source else ranks


def _pooled(messages: Sequence[Message]) -> list[Message]:
    """Pool the messages of repeats: means of the bandwidths of each size. Rows of files are no repeats."""
    groups: dict[tuple[Series, int], list[Message]] = {}
    for message in messages:
        groups.setdefault((_series(message), message.size), []).append(message)
    return [
        message
        for members in groups.values()
        for message in ([_mean(members)] if len({member.run for member in members}) > 1 else members)
    ]


def _mean(members: Sequence[Message]) -> Message:
    busbw = [member.busbw for member in members if member.busbw is not None]
    seconds = [member.time_s for member in members if member.time_s is not None]
    firsts = [member.first_time_s for member in members if member.first_time_s is not None]
    return members[0]._replace(
        algbw=fmean(member.algbw for member in members),
        busbw=fmean(busbw) if busbw else None,
        time_s=fmean(seconds) if seconds else None,
        first_time_s=fmean(firsts) if firsts else None,
        wrong=sum(member.wrong or 0 for member in members) if any(m.wrong is not None for m in members) else None,
        repeats=tuple(members),
    )


def _range(members: Sequence[Message], kind: str) -> dict[str, object] | None:
    """Return error bars over the range of the repeats of a bandwidth; None without repeats."""
    if not any(message.repeats for message in members):
        return None
    return bars_over(
        (
            (_value(message, kind) or 0.0) / GIGA,
            [value / GIGA for repeat in message.repeats if (value := _value(repeat, kind)) is not None],
        )
        for message in members
    )


def _value(message: Message, kind: str) -> float | None:
    return {"busbw": message.busbw, "algbw": message.algbw}.get(kind, message.first_algbw)


def _ticks(sizes: Sequence[int]) -> dict[str, object]:
    ticks = sizes[:: -(-len(sizes) // MAX_TICKS)]
    return {"tickvals": ticks, "ticktext": [quantity(size, "B") for size in ticks]}


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
            error_y=_range(members, kind) if kind == "busbw" else None,
            customdata=[[message.size, value] for message, value in zip(members, values, strict=True)],
            hovertemplate=f"{name}<br>%{{customdata[0]:,}} B<br>{kind} %{{customdata[1]}} B/s<extra></extra>",
        )
        for kind, values, dash, symbol in kinds
        if any(value is not None for value in values)
    ]


def caption(messages: Sequence[Message]) -> str:
    """State the highest bus bandwidth, where it was reached, and the cost of the first trial."""
    if not messages:
        return "Nothing has been measured yet."
    messages = _pooled(messages)
    with_busbw = [(message.busbw, message) for message in messages if message.busbw is not None]
    if not with_busbw:
        best = max(messages, key=lambda message: message.algbw)
        return f"Highest algbw: {quantity(best.algbw, 'B/s')}."
    # All-reduce is the operation of data parallelism; without one, the fastest operation.
    candidates = [item for item in with_busbw if item[1].operation == "all-reduce"] or with_busbw
    busbw, best = max(candidates, key=lambda item: item[0])
    ranks = f" between {best.ranks} ranks" if best.ranks else ""
    bandwidth = gigabytes(busbw, is_printed=bool(best.source))
    text = f"{best.operation}{ranks} reaches a busbw of {bandwidth} with {quantity(best.size, 'B')}"
    if best.first_time_s and best.time_s and best.first_time_s > SLOWER * best.time_s:
        text += f"; its first trial took {significant(best.first_time_s / best.time_s)} times as long"
    wrong = sum(message.wrong or 0 for message in messages)
    return text + (f". {wrong} elements had WRONG values: do not trust these numbers." if wrong else ".")


def gigabytes(bytes_per_s: float, *, is_printed: bool = False) -> str:
    """Write a bandwidth in the units of nccl-tests and of network cards: `13.5 GB/s (108 Gbit/s)`.

    A printed one keeps the digits of its file.
    """
    digits = printed_digits(bytes_per_s / GIGA) if is_printed else DIGITS
    return f"{significant(bytes_per_s / GIGA, digits)} GB/s ({significant(8 * bytes_per_s / GIGA)} Gbit/s)"


def table(messages: Sequence[Message]) -> Table:
    """Return all numbers with the names of nccl-tests, in SI units."""
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
    if any(message.origin for message in messages):
        header.append("kind")
        rows = [[*row, message.origin] for row, message in zip(rows, messages, strict=True)]
    return Table(header, rows)
