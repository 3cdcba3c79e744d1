"""The numbers of a run whose series have one point each, which no curve shows."""

from __future__ import annotations

from collections.abc import Iterable

from parlab.lab.models import Attempt
from parlab.lab.selectors.figures import figure_title, figure_value
from parlab.publishing.figures.run_curves import TIMER
from parlab.series import store
from parlab.series.store import SeriesInfo

_MOST = 200
_NO_FIGURES = frozenset({"warmup"})


def single_values(attempt: Attempt, infos: Iterable[SeriesInfo]) -> list[tuple[str, str]]:
    """Return title and value of each series with one point, of the lowest rank, in the order of their names."""
    names = sorted({info.metric for info in infos if info.points == 1} - _NO_FIGURES)[:_MOST]
    values: dict[str, float] = {}
    for (_attempt, metric, _rank), columns in sorted(store.read_many([attempt.pk], names).items()):
        values.setdefault(metric, float(columns.values[0]))
    return [_text(name, value) for name, value in values.items()]


def _text(name: str, value: float) -> tuple[str, str]:
    """Write a value in the unit that its name implies: timers in seconds, utilisation as a share in per cent."""
    if name.startswith(TIMER):
        return f"Timer {name.removeprefix(TIMER)}", figure_value(f"{name}_s", {"value": value})
    if name.endswith(("mfu", "hfu")):
        return figure_title(name), figure_value(f"{name}_pct", {"value": 100 * value})
    return figure_title(name), figure_value(name, {"value": value})
