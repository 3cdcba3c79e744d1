"""Comparison of runs of any experiments: their curves in one figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.format import unit_for
from parlab.charts.runs.curves import Curve, rounded
from parlab.charts.theme import Drawing, Table

MAX_LEGEND = 20
"""A legend of more lines would be larger than the figure; hovering names them."""
OVER = {"steps": "Step", "time": "Time since the first point (s)", "tokens": "Tokens"}
"""Choice of the horizontal axis -> its title."""
SUBTITLE = "one line per run: its slowest rank, or the one with most memory"
PALETTE = [theme.BLUE, theme.VERMILLION, theme.GREEN, theme.PURPLE, theme.ORANGE, theme.SKY, theme.GREY, theme.YELLOW]


class Line(NamedTuple):
    """A run in a figure of several."""

    name: str
    curve: Curve
    start: float | None = None
    """Time of the first point of the whole series, if the curve is a part of it."""
    tokens_per_step: float | None = None
    band: tuple[Sequence[float], Sequence[float]] | None = None
    """Smallest and largest values at the points of a mean of several runs."""
    rank: int | None = None
    """The rank, where all ranks of a run are drawn."""
    kind: str = ""
    """How the values of a file came about: printed, smoothed or others; empty for what parlab has measured."""


Key = int | tuple[int, int]
"""A line: the place of its run among the runs, or that place and the rank."""


class ComparedSeries(NamedTuple):
    """A series for the comparison of runs."""

    title: str
    unit: str
    metrics: tuple[str, ...]
    """Names of stored metrics; the first that a run has is used."""


LOSSES = ("loss", "lm_loss", "train/loss", "train_loss", "training_loss")
"""Names of the series that is the loss of a training: of each run the first that it has."""
CURVES = {
    "step-time": ComparedSeries("Step time", "s", ("step_time_s",)),
    "loss": ComparedSeries("Loss", "", LOSSES),
    "memory": ComparedSeries("Memory", "B", ("memory_bytes", "gpu_mem_bytes")),
    "samples": ComparedSeries("Throughput", "samples/s", ("samples_per_s",)),
    "tflops": ComparedSeries("Compute per GPU", "TFLOP/s", ("tflops_per_gpu",)),
    "utilisation": ComparedSeries("GPU utilisation", "%", ("gpu_util_pct",)),
}


def style(place: int) -> theme.Style:
    """Style the run at a place: colour, then symbol and dash, so that twenty runs can be told apart."""
    return theme.Style(
        PALETTE[place % len(PALETTE)],
        theme.SYMBOLS[place % len(theme.SYMBOLS)],
        theme.DASHES[(place // len(PALETTE)) % len(theme.DASHES)],
    )


def _line_style(key: Key) -> theme.Style:
    """Style a line: the run sets the colour and symbol, its rank the dash."""
    if isinstance(key, int):
        return style(key)
    return style(key[0])._replace(dash=theme.DASHES[key[1] % len(theme.DASHES)])


def _drawable(lines: Mapping[Key, Line], over: str) -> dict[Key, Line]:
    """Return the lines that have points and a position on the axis."""
    return {
        key: line
        for key, line in lines.items()
        if len(line.curve.values) and (over != "tokens" or line.tokens_per_step)
    }


def curves(
    kind: str,
    lines: Mapping[Key, Line],
    *,
    over: str = "steps",
    is_log: bool = False,
    middle: Sequence[float] = (),
    compared: ComparedSeries | None = None,
) -> Drawing:
    """Draw one curve per run, or one per rank, against an axis of OVER.

    `compared` is the series where `kind` names none of CURVES; `middle` are the medians of the whole curves if these
    are parts of them, since both share an axis.
    """
    compared = compared or CURVES[kind]
    present = _drawable(lines, over)
    if not present:
        sizes = " and a number of tokens per step" if over == "tokens" else ""
        return theme.missing(compared.title, f"none of these runs has this series{sizes}")
    unit = unit_for(middle or [v for line in present.values() for v in line.curve.values], compared.unit)
    factor, name = (unit.factor, unit.name) if compared.unit in ("s", "B", "samples/s") else (1.0, compared.unit)
    drawing = go.Figure(
        layout=theme.layout(
            title=compared.title,
            subtitle=SUBTITLE if all(isinstance(key, int) for key in present) else "one line per rank of each run",
            x=OVER[over],
            y=f"{compared.title} ({name})" if name else compared.title,
            yaxis={"type": "log"} if is_log else {} if kind == "loss" else {"rangemode": "tozero"},
        )
    )
    for key, line in present.items():
        look = _line_style(key)
        x = _positions(line, over)
        if line.band is not None:
            _add_band(drawing, x, line, look.colour, factor)
        drawing.add_trace(
            go.Scatter(
                x=x,
                y=rounded(line.curve.values, factor),
                name=theme.plain(line.name),
                mode="lines+markers" if len(line.curve.values) <= 60 else "lines",
                line={"color": look.colour, "dash": look.dash, "width": 1.5},
                marker={"symbol": look.symbol, "size": 5},
                hovertemplate=f"%{{y}} {name}<extra>{theme.plain(line.name)}</extra>",
            )
        )
    drawing.update_layout(showlegend=len(present) <= MAX_LEGEND)
    return Drawing(
        drawing,
        _how_many({_place(key) for key in present}, {_place(key) for key in lines}),
        _table(kind.replace("-", "_"), present.values()),
    )


def _table(name: str, lines: Iterable[Line]) -> Table:
    """Return all points; the last column has the values, and the one before it the kinds of those that files state."""
    lines = list(lines)
    has_kinds = any(line.kind for line in lines)
    rows = [
        [line.name, int(step), float(time), *([line.kind] if has_kinds else []), float(value)]
        for line in lines
        for step, time, value in zip(line.curve.steps, line.curve.times, line.curve.values, strict=True)
    ]
    return Table(["run", "step", "unix_time_s", *(["kind"] if has_kinds else []), name], rows)


def _place(key: Key) -> int:
    return key if isinstance(key, int) else key[0]


def _how_many(present: set[int], everyone: set[int]) -> str:
    absent = len(everyone) - len(present)
    if absent:
        return f"{absent} of {len(everyone)} runs {'does' if absent == 1 else 'do'} not have this series."
    return f"{len(present)} runs."


def _positions(line: Line, over: str) -> list[float]:
    if over == "time":
        start = float(line.curve.times[0]) if line.start is None else line.start
        return [round(float(time) - start, 3) for time in line.curve.times]
    factor = (line.tokens_per_step or 0) if over == "tokens" else 1
    return [int(step) * factor for step in line.curve.steps]


def _add_band(drawing: go.Figure, x: Sequence[float], line: Line, colour: str, factor: float) -> None:
    """Fill the range between the smallest and the largest value."""
    for place, values in enumerate(line.band or ()):
        drawing.add_trace(
            go.Scatter(
                x=x,
                y=rounded(values, factor),
                mode="lines",
                line={"width": 0, "color": colour},
                fill="tonexty" if place else None,
                fillcolor=theme.faint(colour),
                hoverinfo="skip",
                showlegend=False,
                legendgroup=theme.plain(line.name),
            )
        )
