"""A study: best value so far, predicted against measured, and the search space with its trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.format import SPACE, quantity, significant
from parlab.charts.points import in_order
from parlab.charts.theme import Drawing, Table

from .heatmap import SCALE, cell_axis, rectangles, shades


class Trial(NamedTuple):
    """A launch of the search."""

    number: int
    key: str
    state: str
    tuning_space: str
    micro_batch_size: int
    accumulation: int
    value: float | None
    expected: float | None
    why: str

    def hover(self, unit: str) -> str:
        lines = [
            f"{self.number}: {self.key}",
            f"measured {quantity(self.value, unit, 6)}" if self.value else self.state,
            f"predicted {quantity(self.expected, unit, 6)}" if self.expected else "",
            self.why,
        ]
        return "<br>".join(theme.plain(line) for line in lines if line)


class Course(NamedTuple):
    """Another search of the same space, with the best value after each of its launches."""

    name: str
    best: Sequence[float | None]


class Setting(NamedTuple):
    """A point of the space, tried or not."""

    key: str
    tuning_space: str
    micro_batch_size: int
    accumulation: int
    predicted: float | None
    """Value that the planner predicted before any measurement."""
    fit: str


_OTHERS = (theme.PURPLE, theme.ORANGE, theme.SKY, theme.YELLOW, theme.GREY)
"""Colours of other searches; more lines cannot be told apart."""
_WAITING = ("queued", "dispatched", "running")
_NO_TRIAL = "no trial has been launched yet"


def progress(trials: Sequence[Trial], unit: str, others: Sequence[Course] = ()) -> Drawing:
    """Draw the value of each launch (y) in order (x), and the best value so far, also of other searches."""
    if not trials:
        return theme.missing("Best so far", _NO_TRIAL)
    if not any(trial.value for trial in trials) and all(trial.state in _WAITING for trial in trials):
        return theme.missing("Best so far", "no launch has ended yet")
    most = max(len(trials), *(len(course.best) for course in others), 1)
    drawing = go.Figure(
        layout=theme.layout(
            title="Best so far",
            subtitle="each launch of the search, and the best value so far",
            x="Launch",
            y=f"Value ({unit})",
            xaxis={"tickformat": "d", "dtick": max(1, most // 12), "range": [0.5, most + 0.5]},
            yaxis={"rangemode": "tozero"},
        )
    )
    ran = [(i + 1, trial) for i, trial in enumerate(trials) if trial.value]
    other = [(i + 1, trial) for i, trial in enumerate(trials) if not trial.value and trial.state not in _WAITING]
    course, best = [], 0.0
    for i, trial in ran:
        best = max(best, trial.value or 0.0)
        course.append((i, best))
    if course:
        ends = [*course, (len(trials), best)]
        drawing.add_trace(
            go.Scatter(
                x=[i for i, _ in ends],
                y=[value for _, value in ends],
                name="best so far",
                mode="lines",
                line={"shape": "hv", "color": theme.GREEN, "width": 2},
                hoverinfo="skip",
            )
        )
        drawing.add_trace(_marks(ran, "measured", "circle", theme.BLUE, unit))
    for other_course, colour in zip(others, _OTHERS, strict=False):
        drawing.add_trace(_line(other_course, colour))
    if other:
        drawing.add_trace(_marks(other, "out of memory or failed", "x", theme.OOM_COLOUR, unit))
    return Drawing(drawing, _progress_caption(trials, unit), table(trials, unit))


def _line(course: Course, colour: str) -> go.Scatter:
    best = [(i + 1, value) for i, value in enumerate(course.best) if value]
    return go.Scatter(
        x=[i for i, _ in best],
        y=[value for _, value in best],
        name=theme.plain(course.name),
        mode="lines",
        line={"shape": "hv", "color": colour, "width": 1, "dash": "dot"},
        hovertemplate=f"{theme.plain(course.name)}, launch %{{x}}: %{{y}}<extra></extra>",
    )


def _marks(trials: Sequence[tuple[int, Trial]], name: str, symbol: str, colour: str, unit: str) -> go.Scatter:
    return go.Scatter(
        x=[i for i, _ in trials],
        y=[trial.value or 0.0 for _, trial in trials],
        name=name,
        mode="markers",
        marker={"symbol": symbol, "size": 9, "color": colour},
        hovertext=[trial.hover(unit) for _, trial in trials],
        hoverinfo="text",
        cliponaxis=False,
    )


def _progress_caption(trials: Sequence[Trial], unit: str) -> str:
    best = max((trial for trial in trials if trial.value), key=lambda trial: trial.value or 0.0, default=None)
    if best is None:
        return f"{len(trials)} launched, none finished yet."
    at = next(i + 1 for i, trial in enumerate(trials) if trial is best)
    return f"{quantity(best.value, unit)} with {best.key}, measured by launch {at} of {len(trials)}."


def expected(trials: Sequence[Trial], unit: str) -> Drawing:
    """Draw the measured (y) against the predicted value (x) of each launch; on the dashed line both agree."""
    both = [trial for trial in trials if trial.value and trial.expected]
    if not both:
        return theme.missing("Predicted and measured", "no launch has both a prediction and a measurement yet")
    drawing = go.Figure(
        layout=theme.layout(
            title="Predicted and measured",
            subtitle="predicted just before each launch, and measured by it",
            x=f"Predicted ({unit})",
            y=f"Measured ({unit})",
        )
    )
    ends = [value for trial in both for value in (trial.value or 0.0, trial.expected or 0.0)]
    drawing.add_trace(theme.agreement(ends))
    drawing.add_trace(
        go.Scatter(
            x=[trial.expected for trial in both],
            y=[trial.value for trial in both],
            name="launch",
            mode="markers+text",
            text=[str(trial.number) for trial in both],
            textposition="top center",
            marker={"size": 9, "color": theme.BLUE},
            hovertext=[trial.hover(unit) for trial in both],
            hoverinfo="text",
        )
    )
    last = both[-1]
    off = abs((last.expected or 0.0) / (last.value or 1.0) - 1)
    caption = f"The last prediction was off by {significant(100 * off)} %. Labels are trial numbers."
    return Drawing(drawing, caption, table(trials, unit))


class _Cell(NamedTuple):
    """A setting at its place: column, row."""

    x: int
    y: int
    setting: Setting
    trial: Trial | None

    @property
    def text(self) -> str:
        """The measured value, OOM, the state of the run, or of an untried setting why, or its prediction."""
        if self.trial is None:
            if self.setting.fit == "does not fit":
                return "too big"
            predicted = self.setting.predicted
            return f"\N{ALMOST EQUAL TO}{SPACE}{significant(predicted)}" if predicted else "not tried"
        if self.trial.value:
            return significant(self.trial.value)
        return "OOM" if self.trial.state == "oom" else self.trial.state

    def hover(self, unit: str) -> str:
        if self.trial is not None:
            return self.trial.hover(unit)
        planned = f"planned {quantity(self.setting.predicted, unit, 6)}" if self.setting.predicted else "no plan"
        outcome = "does not fit" if self.setting.fit == "does not fit" else "not tried"
        return "<br>".join([theme.plain(self.setting.key), planned, outcome])


def space(settings: Sequence[Setting], trials: Sequence[Trial], unit: str) -> Drawing:
    """Draw the space: tuning space with accumulation (y) by micro batch (x), coloured where a value was measured.

    Untried settings have their prediction.
    """
    if not settings:
        return theme.nothing("The space is empty.")
    if not trials and not any(setting.predicted for setting in settings):
        return theme.missing("Search space", _NO_TRIAL)
    by_key = {trial.key: trial for trial in trials}
    planned = {setting.key for setting in settings}
    everything = [*settings, *(_setting(trial) for trial in trials if trial.key not in planned)]
    columns = in_order(setting.micro_batch_size for setting in everything)
    rows = list(dict.fromkeys((setting.tuning_space, setting.accumulation) for setting in everything))
    cells = [
        _Cell(columns.index(s.micro_batch_size), rows.index((s.tuning_space, s.accumulation)), s, by_key.get(s.key))
        for s in everything
    ]
    names = [f"{name}, gas {accumulation}" for name, accumulation in rows]
    drawing = go.Figure(
        layout=theme.layout(
            title="Search space",
            subtitle=f"{unit}: measured settings are coloured, dark is high; \N{ALMOST EQUAL TO} was only predicted",
            x="Micro batch size",
            y="Tuning space and accumulation",
            height=max(theme.HEIGHT, 120 + 28 * len(rows)),
            xaxis=cell_axis([str(column) for column in columns]),
            yaxis={**cell_axis(names), "range": [len(rows) - 0.5, -0.5], "showgrid": False, "title": {"text": ""}},
            barmode="overlay",
            showlegend=False,
        )
    )
    measured = [cell for cell in cells if cell.trial and cell.trial.value is not None]
    if measured:
        drawing.add_trace(_measured_cells(measured, unit))
    drawing.add_trace(_other_cells([cell for cell in cells if cell not in measured], unit))
    return Drawing(drawing, _space_caption(settings, everything, by_key), _space_table(everything, by_key))


def _space_caption(settings: Sequence[Setting], everything: Sequence[Setting], by_key: dict[str, Trial]) -> str:
    count = sum(setting.key in by_key for setting in settings)
    caption = f"{count} of {len(settings)} settings were launched."
    if not by_key:
        best = max((s for s in settings if s.fit != "does not fit"), key=lambda s: s.predicted or 0.0, default=None)
        caption += f" The best prediction is that of {best.key}." if best and best.predicted else ""
    if len(everything) > len(settings):
        caption += f" {len(everything) - len(settings)} more were chosen between them."
    too_big = sum(setting.fit == "does not fit" for setting in settings)
    if too_big:
        caption += f" {too_big} are not tried because the plan predicts out of memory."
    return caption


def _setting(trial: Trial) -> Setting:
    """Return the setting of a trial outside the sweep, as DeepSpeed's autotuner chooses them."""
    return Setting(trial.key, trial.tuning_space, trial.micro_batch_size, trial.accumulation, None, "fits")


def _measured_cells(cells: Sequence[_Cell], unit: str) -> go.Bar:
    values = [(cell.trial.value if cell.trial else None) or 0.0 for cell in cells]
    return go.Bar(
        **rectangles([(cell.x, cell.y) for cell in cells]),
        text=[cell.text for cell in cells],
        hovertext=[cell.hover(unit) for cell in cells],
        marker={"color": shades(values, SCALE), "line": {"width": 0}},
        customdata=values,
    )


def _other_cells(cells: Sequence[_Cell], unit: str) -> go.Scatter:
    return go.Scatter(
        x=[cell.x for cell in cells],
        y=[cell.y for cell in cells],
        text=[cell.text for cell in cells],
        hovertext=[cell.hover(unit) for cell in cells],
        mode="text",
        textfont={"color": theme.GREY},
        hoverinfo="text",
    )


def table(trials: Sequence[Trial], unit: str) -> Table:
    """List the launches."""
    header = ["trial", "setting", "tuning_space", "micro_batch_size", "accumulation", "state", f"measured ({unit})"]
    rows: list[list[Any]] = [
        [t.number, t.key, t.tuning_space, t.micro_batch_size, t.accumulation, t.state, t.value, t.expected, t.why]
        for t in trials
    ]
    return Table([*header, f"expected ({unit})", "why"], rows)


def _space_table(settings: Sequence[Setting], tried: dict[str, Trial]) -> Table:
    header = ["setting", "tuning_space", "micro_batch_size", "accumulation", "planned", "fit", "measured", "state"]
    rows: list[list[Any]] = []
    for s in settings:
        trial = tried.get(s.key)
        outcome = [trial.value, trial.state] if trial else [None, "not tried"]
        rows.append([s.key, s.tuning_space, s.micro_batch_size, s.accumulation, s.predicted, s.fit, *outcome])
    return Table(header, rows)
