"""The figures of an experiment: one row each. Pages, reports, JSON, CSV and pictures all use this table."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple

from .measures import AUTO, Available, Options
from .sweeps import bandwidth, efficiency, heatmap, memory, phases, predicted, roofline, throughput, utilisation
from .theme import Drawing


class Source(Enum):
    """What a figure is drawn from. Pages read it; charts know neither database nor files."""

    POINTS = auto()
    """`Sequence[RunPoint]`: runs that finished or ran out of memory."""
    PREDICTIONS = auto()
    """`tuple[Sequence[PredictedPoint], Sequence[str]]`: the arguments of `predicted.figure`."""
    MESSAGES = auto()
    """`Sequence[Message]`: measured and imported bandwidths."""


def ended_runs(available: Available) -> str:
    """Need a run that finished or ran out of memory."""
    return "" if available.points else "no run has finished"


class Figure(NamedTuple):
    name: str
    """In addresses (`figures/NAME.json`) and in directives of reports (`{{ figure NAME }}`)."""
    title: str
    draw: Callable[..., Drawing]
    """Takes the data of its source, and Options where the figure has choices."""
    needs: Callable[[Available], str] = ended_runs
    """Returns why a page has nothing to show ("no run has finished"), or an empty string."""
    choices: tuple[str, ...] = ()
    """Fields of Options that change the figure; empty: its axes are fixed."""
    source: Source = Source.POINTS
    is_wide: bool = False

    def drawing(self, data: Any, options: Options = AUTO) -> Drawing:
        return self.draw(data, options) if self.choices else self.draw(data)


_AXES = ("x", "by", "x_scale", "y_scale")

EXPERIMENT_FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure("throughput", throughput.TITLE, throughput.figure, throughput.missing, ("y", *_AXES), is_wide=True),
        Figure("bandwidth", bandwidth.TITLE, bandwidth.figure, bandwidth.missing, source=Source.MESSAGES, is_wide=True),
        Figure(
            "ms-per-sample",
            throughput.TITLE_PER_SAMPLE,
            throughput.per_sample,
            throughput.missing_per_sample,
            _AXES,
        ),
        Figure("efficiency", efficiency.TITLE, efficiency.figure, efficiency.missing, ("by", "x_scale")),
        Figure("heatmap", heatmap.TITLE, heatmap.figure, heatmap.missing, ("y", "x", "by")),
        Figure("memory", memory.TITLE, memory.figure, memory.missing, _AXES),
        Figure("phases", phases.TITLE, phases.figure, phases.missing, ("as_share",)),
        Figure(
            "predicted",
            predicted.TITLE,
            lambda predictions: predicted.figure(*predictions),
            predicted.missing,
            source=Source.PREDICTIONS,
        ),
        Figure("utilisation", utilisation.TITLE, utilisation.figure, utilisation.missing),
        Figure("roofline", roofline.TITLE, roofline.figure, roofline.missing, ("x", "by")),
    )
}
"""By name, in the order of the page."""
