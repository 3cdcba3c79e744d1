"""A capacity search: its trials, and its result as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.format import Unit, quantity, significant, unit_for
from parlab.charts.theme import Drawing, Table

LABELS = {
    "num_layers": ("layer", "layers"),
    "micro_batch_size": ("sequence in a micro batch", "sequences in a micro batch"),
    "processes": ("process", "processes"),
}

LIMIT_NOTE = " On a CPU the limit applies to allocated memory; the peak also includes shared code."

FEW = 8


class Trial(NamedTuple):
    """A short run."""

    number: int
    value: int
    fits: bool
    seconds: float | None
    memory_bytes: float | None
    """Peak of the rank with the highest use."""
    parameters: int | None
    tokens_per_s: float | None


class Search(NamedTuple):
    find: str
    """num_layers, micro_batch_size or processes."""
    trials: Sequence[Trial]
    at_most: int
    limit_bytes: float | None
    """Limit of each process, or each GPU."""
    is_done: bool
    is_cut: bool = False
    """Whether it ended (cancelled, failed) before it found the limit."""
    per_node: int = 0
    """GPUs (or processes) of a node; 0 if unknown."""

    @property
    def is_rising(self) -> bool:
        """Whether larger values make a run fit."""
        return self.find == "processes"

    @property
    def best(self) -> Trial | None:
        """The best trial so far."""
        fitting = [trial for trial in self.trials if trial.fits]
        if not fitting:
            return None
        return (min if self.is_rising else max)(fitting, key=lambda trial: trial.value)

    @property
    def beyond(self) -> Trial | None:
        """The nearest trial that ran out of memory."""
        best, failing = self.best, [trial for trial in self.trials if not trial.fits]
        if not failing:
            return None
        if best is None:
            return (max if self.is_rising else min)(failing, key=lambda trial: trial.value)
        return min(failing, key=lambda trial: abs(trial.value - best.value))

    @property
    def is_open(self) -> bool:
        """Whether the largest allowed value fits, so that larger ones could."""
        return not self.is_rising and self.best is not None and self.beyond is None

    @property
    def nodes(self) -> int | None:
        """Nodes needed by the fewest processes."""
        return -(-self.best.value // self.per_node) if self.is_rising and self.best and self.per_node else None

    @property
    def title(self) -> str:
        """Return the searched value as the heading of a column."""
        plural = LABELS[self.find][1]
        return plural[:1].upper() + plural[1:]

    def counted(self, value: int) -> str:
        """Write a value with its unit: `4 layers`."""
        singular, plural = LABELS[self.find]
        return f"{value} {singular if value == 1 else plural}"


def answer(search: Search) -> str:
    """State the result of the search, or its progress, in one sentence."""
    best, beyond = search.best, search.beyond
    limit = f" with {quantity(search.limit_bytes, 'B')} each" if search.limit_bytes else ""
    if best is None:
        if not search.trials:
            return "No trial has run yet."
        tried = ", ".join(str(trial.value) for trial in search.trials)
        return f"Nothing fits{limit}: {LABELS[search.find][1]} tried: {tried}." + (
            "" if search.is_done else " The search continues."
        )
    size = f" ({_parameters(best.parameters)})" if best.parameters else ""
    if not search.is_done:
        bound = "most" if search.is_rising else "least"
        return f"At {bound} {search.counted(best.value)}{size} so far; {_unfinished(search)}."
    if search.is_rising:
        nodes = search.nodes
        of_node = f", {nodes} {'node' if nodes == 1 else 'nodes'} of {search.per_node}" if nodes else ""
        fewer = f"; {beyond.value} run out of memory" if beyond else ""
        return f"This model needs at least {search.counted(best.value)}{limit}{of_node}{fewer}."
    if search.is_open:
        return f"At least {search.counted(best.value)}{size} fit{limit}; capacity.at_most allows no larger value."
    return f"{search.counted(best.value)}{size} fit{limit}, {beyond.value if beyond else 'more'} do not."


def _unfinished(search: Search) -> str:
    return "the search ended before it found the limit" if search.is_cut else "the search continues"


def _parameters(count: int) -> str:
    """Write a number of parameters: `1.27 G parameters`."""
    return quantity(count, "parameters")


def figure(search: Search) -> Drawing:
    """Draw the peak memory (y) of each tried value (x); crosses ran out of memory, the dotted line is the limit."""
    if not search.trials:
        return theme.missing("Trials", "no trial has run yet")
    unit = unit_for((trial.memory_bytes for trial in search.trials), "B")
    drawing = go.Figure(
        layout=theme.layout(
            title="Trials",
            subtitle="peak memory of the rank with the highest use; labels are the order of the trials",
            x=f"{search.title} tried",
            y=f"Peak memory ({unit.name})",
            # Plotly would put ticks at halves between few values.
            xaxis={"rangemode": "tozero", "tickformat": "d"} | ({"dtick": 1} if _most(search) < FEW else {}),
            yaxis={"rangemode": "tozero"},
        )
    )
    fitting = [trial for trial in search.trials if trial.fits]
    failing = [trial for trial in search.trials if not trial.fits]
    if fitting:
        drawing.add_trace(_marks(fitting, "fits", unit, "circle", theme.GREEN, None))
    if failing:
        drawing.add_trace(_marks(failing, "out of memory", unit, "x", theme.OOM_COLOUR, search.limit_bytes))
    if search.limit_bytes:
        drawing.add_hline(
            y=search.limit_bytes / unit.factor,
            line={"dash": "dot", "width": 1, "color": theme.GREY},
            annotation={"text": f"limit {quantity(search.limit_bytes, 'B')}", "font": {"color": theme.GREY}},
            annotation_position="top left",  # trials without memory are at the limit, to the right
        )
    drawing.update_layout(showlegend=bool(fitting and failing))
    return Drawing(drawing, answer(search) + LIMIT_NOTE * (search.limit_bytes is not None), table(search))


def _most(search: Search) -> int:
    return max(trial.value for trial in search.trials)


def _marks(
    trials: Sequence[Trial], name: str, unit: Unit, symbol: str, colour: str, otherwise: float | None
) -> go.Scatter:
    """Draw trials; one without a reported peak is drawn at the limit, or at zero."""
    heights = [trial.memory_bytes if trial.memory_bytes is not None else otherwise or 0.0 for trial in trials]
    return go.Scatter(
        x=[trial.value for trial in trials],
        y=[height / unit.factor for height in heights],
        name=name,
        mode="markers+text",
        text=[str(trial.number) for trial in trials],
        textposition="top center",
        marker={"symbol": symbol, "size": 9, "color": colour},
        hovertext=[
            f"trial {trial.number}: {trial.value} {name}<br>"
            + (quantity(trial.memory_bytes, "B", 6) if trial.memory_bytes is not None else "memory unknown")
            + (f"<br>{significant(trial.seconds)} s" if trial.seconds is not None else "")
            for trial in trials
        ],
        hoverinfo="text",
    )


def table(search: Search) -> Table:
    """List the trials, SI units."""
    header = ["trial", search.find, "fits", "memory_peak_bytes", "model_parameters", "tokens_per_s", "trial_s"]
    return Table(
        header,
        [[t.number, t.value, t.fits, t.memory_bytes, t.parameters, t.tokens_per_s, t.seconds] for t in search.trials],
    )
