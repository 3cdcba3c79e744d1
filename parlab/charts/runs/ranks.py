"""Ranks over steps: a heat map of up to 1,024 ranks, and the slowest rank and node over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from parlab.charts import theme
from parlab.charts.format import Unit, quantity, significant, unit_for
from parlab.charts.theme import Drawing, Table

TITLE = "Ranks over steps"
MAX_ROWS = 128
MAX_CELLS = 5_120
"""Cells that a browser draws at once, and that fit into 200 kB."""
MAX_COLUMNS = 160
NOTEWORTHY = 0.05
"""Below this share above the median, ranks count as equally fast: step times vary as much between steps."""
_TICKS = 12
# Light to dark: readable in greyscale, in both themes and with any colour vision.
_SCALE = [[0.0, "#DCE3EA"], [0.35, "#F6C98B"], [0.7, theme.VERMILLION], [1.0, "#6B1F00"]]

Values = NDArray[np.float64]


class Ranks(NamedTuple):
    """The ranks of a figure and the nodes that have them."""

    numbers: Sequence[int]
    node_ranks: Sequence[int]
    """Number of the node, by rank."""
    node_names: Sequence[str]
    """By number of the node."""

    def place(self, row: int) -> str:
        """Name the rank of a row, and its node if there are several."""
        node = f" on node {self.node_names[self.node_ranks[row]]}" if len(self.node_names) > 1 else ""
        return f"rank {self.numbers[row]}{node}"


class Cells(NamedTuple):
    """A measure in seconds: one row per rank, one column per bin of steps; NaN: not measured."""

    title: str
    """Of the measure: `Step time`."""
    ranks: Ranks
    first_step: int
    width: int
    """Steps per column."""
    means: Values
    peaks: Values
    unit: Unit | None = None
    note: str = ""
    """One more sentence of the caption."""


def columns_for(rows: int, is_whole: bool = False) -> int:
    """Return how many columns a heat map of so many rows has at most."""
    return 2_000_000 // max(rows, 1) if is_whole else max(1, min(MAX_COLUMNS, MAX_CELLS // min(max(rows, 1), MAX_ROWS)))


def figure(cells: Cells, sentence: str = "") -> Drawing:
    """Draw the measure of each rank (y) over the steps (x) as colour; of ranks that share a row the slowest counts."""
    if not np.isfinite(cells.means).any():
        return theme.missing(TITLE, "needs the step times of at least two ranks")
    rows = _grouped(cells)
    unit = cells.unit or unit_for([float(np.nanmedian(cells.means))], "s")
    values = rows.values / unit.factor
    low, high = (float(end) for end in np.nanpercentile(values, [2, 99]))
    drawing = go.Figure(
        layout=theme.layout(
            title=f"{cells.title} by rank and step",
            subtitle=_subtitle(cells, rows, unit, low, high),
            x="Step",
            y="Rank",
            barmode="overlay",
            bargap=0,
            showlegend=False,
            dragmode="zoom",
            xaxis={"range": [cells.first_step - 0.5, cells.first_step + cells.width * cells.means.shape[1] - 0.5]},
            yaxis={**_rank_axis(cells, rows), "showgrid": False, "fixedrange": True},
            coloraxis={"colorscale": _SCALE, "cmin": low, "cmax": max(high, low * 1.001 or 1.0), "showscale": False},
        )
    )
    drawing.update_xaxes(tickformat="d", **({"dtick": 1} if cells.means.shape[1] * cells.width <= 12 else {}))
    for number in range(len(values)):
        drawing.add_trace(_row(cells, rows, number, values[number], unit))
    caption = " ".join(filter(None, [sentence, cells.note]))
    return Drawing(drawing, caption, Table([], []), is_thinned=cells.width > 1)


def numbers(cells: Cells) -> Table:
    """Return the cells as rows of a CSV, in seconds."""
    rows = []
    for row, column in zip(*np.nonzero(np.isfinite(cells.means)), strict=True):
        first = cells.first_step + int(column) * cells.width
        node = cells.ranks.node_names[cells.ranks.node_ranks[row]] if cells.ranks.node_names else ""
        mean, peak = float(cells.means[row, column]), float(cells.peaks[row, column])
        rows.append([cells.ranks.numbers[row], node, first, first + cells.width - 1, mean, peak])
    return Table(["rank", "node", "first_step", "last_step", "mean_s", "max_s"], rows)


class _Rows(NamedTuple):
    """Rows of the figure: single ranks, or neighbouring ranks of which the slowest one counts in each cell."""

    size: int
    """Ranks per row."""
    values: Values
    slowest: NDArray[np.int64]
    """Row of the slowest rank in `Cells`, by cell."""
    peaks: Values


def _grouped(cells: Cells) -> _Rows:
    count = len(cells.ranks.numbers)
    size = _group_size(cells.ranks) if count > MAX_ROWS else 1
    starts = range(0, count, size)
    filled = np.where(np.isfinite(cells.means), cells.means, -np.inf)
    slowest = np.array([start + filled[start : start + size].argmax(axis=0) for start in starts])
    columns = np.arange(cells.means.shape[1])
    return _Rows(size, cells.means[slowest, columns], slowest, cells.peaks[slowest, columns])


def _group_size(ranks: Ranks) -> int:
    """Return how many ranks share a row; a row never has parts of two nodes unless it has whole nodes."""
    least = -(-len(ranks.numbers) // MAX_ROWS)
    per_node = max(1, len(ranks.numbers) // max(1, len(set(ranks.node_ranks))))
    if least >= per_node:
        return -(-least // per_node) * per_node
    return next(size for size in range(least, per_node + 1) if per_node % size == 0)


def _row(cells: Cells, rows: _Rows, number: int, values: Values, unit: Unit) -> go.Bar:
    """Return the cells of a row as floating bars: Plotly's own heat map needs styles that the pages forbid."""
    first = number * rows.size
    last = min(first + rows.size, len(cells.ranks.numbers)) - 1
    steps = "step %{x}" if cells.width == 1 else f"{cells.width} steps from %{{x}}"
    value, most = f"%{{marker.color:.3~g}} {unit.name}", f"%{{customdata[0]:.3~g}} {unit.name}"
    is_there = np.isfinite(values)
    about: list[list[Any]] = [[_short(peak / unit.factor)] for peak in rows.peaks[number]]
    if rows.size > 1:
        own, whose = f"{cells.ranks.place(first)} to {cells.ranks.numbers[last]}", "slowest: rank %{customdata[1]}, "
        about = [[*row, cells.ranks.numbers[at]] for row, at in zip(about, rows.slowest[number], strict=True)]
    else:
        own, whose = cells.ranks.place(first), ""
    peak = "" if cells.width == 1 else f"<br>slowest step {most}"
    has_about = rows.size > 1 or cells.width > 1
    return go.Bar(
        x0=cells.first_step - 0.5 if cells.width > 1 else cells.first_step,
        dx=cells.width,
        offset=0 if cells.width > 1 else -0.5,
        y=[1 if present else None for present in is_there],
        base=number - 0.5,
        width=cells.width,
        marker={
            "color": [_short(value) if present else 0 for value, present in zip(values, is_there, strict=True)],
            "coloraxis": "coloraxis",
            "line": {"width": 0},
        },
        customdata=about if has_about else None,
        hovertemplate=f"{theme.plain(own)}<br>{steps}<br>{whose}{value}{peak}<extra></extra>",
    )


def _short(value: float) -> float | None:
    return float(f"{value:.3g}") if np.isfinite(value) else None


def _rank_axis(cells: Cells, rows: _Rows) -> dict[str, Any]:
    count = len(rows.values)
    places = list(range(0, count, max(1, -(-count // _TICKS))))
    return {
        "tickmode": "array",
        "tickvals": places,
        "ticktext": [str(cells.ranks.numbers[place * rows.size]) for place in places],
        "range": [count - 0.5, -0.5],
    }


def _subtitle(cells: Cells, rows: _Rows, unit: Unit, low: float, high: float) -> str:
    parts = [f"{unit.name}, light {significant(low)} to dark {significant(high)}"]
    if cells.width > 1:
        parts.append(f"each cell is the mean of {cells.width} steps")
    if rows.size > 1:
        parts.append(f"each row is the slowest of {rows.size} ranks")
    return "; ".join(parts)


class Slow(NamedTuple):
    """The slowest rank and node over a range of steps."""

    first_step: int
    last_step: int
    rank: str
    """`rank 5 on node b`."""
    value_s: float
    above: float
    """Share above the median of the other ranks."""
    node: str = ""
    """Empty for a run on one node."""
    node_above: float = 0.0
    """Share above the median of the other nodes; a node counts with the mean of its ranks."""


def slowest(ranks: Ranks, windows: Sequence[tuple[int, int]], medians: Values) -> list[Slow]:
    """Name the slowest rank and node of each window; `medians` has a row per rank and a column per window."""
    named = []
    for number, (first, last) in enumerate(windows):
        values = medians[:, number]
        if np.isfinite(values).sum() < 2:
            continue
        row = int(np.nanargmax(values))
        slow = Slow(first, last, ranks.place(row), float(values[row]), _above(values, row))
        named.append(slow._replace(**_slowest_node(ranks, values)))
    return named


def _slowest_node(ranks: Ranks, values: Values) -> dict[str, Any]:
    owners = np.array(ranks.node_ranks)
    present = [node for node in dict.fromkeys(ranks.node_ranks) if np.isfinite(values[owners == node]).any()]
    if len(present) < 2:
        return {}
    means = np.array([np.nanmean(values[owners == node]) for node in present])
    place = int(means.argmax())
    return {"node": ranks.node_names[present[place]], "node_above": _above(means, place)}


def _above(values: Values, place: int) -> float:
    """Return the share by which a value is above the median of the others."""
    middle = float(np.nanmedian(np.delete(values, place)))
    return float(values[place]) / middle - 1 if middle else 0.0


def sentence(slow: Sequence[Slow], measure: str) -> str:
    """Name the slowest rank and node with their size over the longest stretch of steps in which they are slowest."""
    if not slow:
        return ""
    stretches: list[list[Slow]] = []
    for window in slow:
        if stretches and stretches[-1][-1].rank == window.rank:
            stretches[-1].append(window)
        else:
            stretches.append([window])
    worst = max(stretches, key=lambda stretch: sum(window.above for window in stretch))
    above = sum(window.above for window in worst) / len(worst)
    steps = f"steps {worst[0].first_step} to {worst[-1].last_step}"
    name = worst[0].rank
    if above < NOTEWORTHY:
        return (
            f"No rank stands out: the slowest, {name}, is {_percent(above)} above the median of the others over"
            f" {steps} ({measure})."
        )
    text = f"{name[:1].upper()}{name[1:]} is {_percent(above)} slower than the median of the others over {steps}"
    by_node = [window for window in worst if window.node]
    node = max(by_node, key=lambda window: window.node_above, default=None)
    if node is not None and node.node_above >= NOTEWORTHY:
        text += f"; slowest node: {node.node}, {_percent(node.node_above)} above the median of the others"
    return f"{text} ({measure})."


def _percent(share: float) -> str:
    return f"{significant(100 * share, 2)} %" if share >= 0.001 else "less than 0.1 %"


def value_text(slow: Slow) -> str:
    """Return the time of the slowest rank with its unit."""
    return quantity(slow.value_s, "s")


def above_text(share: float) -> str:
    """Return a share above the median for a table: `12 %`."""
    return _percent(share) if share >= 0.001 else "< 0.1 %"
