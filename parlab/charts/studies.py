"""A study as it goes on: best so far, expected against measured, and the space with what was tried of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from . import theme
from .format import quantity, significant
from .heatmap import SCALE, cell_axis, rectangles, shades
from .points import in_order
from .theme import Drawing, Table


class Trial(NamedTuple):
    """One launch of the search, in the order of the launches."""

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
            f"expected {quantity(self.expected, unit, 6)}" if self.expected else "",
            self.why,
        ]
        return "<br>".join(theme.plain(line) for line in lines if line)


class Course(NamedTuple):
    """Another search of the same space: its name, and the best value after each of its launches."""

    name: str
    best: Sequence[float | None]


class Setting(NamedTuple):
    """One point of the space, tried or not."""

    key: str
    tuning_space: str
    micro_batch_size: int
    accumulation: int
    predicted: float | None
    """Value that the planner promised before anything was measured."""
    fit: str


_OTHERS = (theme.PURPLE, theme.ORANGE, theme.SKY, theme.YELLOW, theme.GREY)
"""Colours of further searches; more lines could not be told apart."""
_WAITING = ("queued", "dispatched", "running")
_NO_TRIAL = "No trial has been launched yet."


def progress(trials: Sequence[Trial], unit: str, others: Sequence[Course] = ()) -> Drawing:
    """Draw the value of each launch (y) in order (x), and the best until then, with that of other searches beside."""
    if not trials:
        return theme.nothing(_NO_TRIAL)
    if not any(trial.value for trial in trials) and all(trial.state in _WAITING for trial in trials):
        return theme.nothing("No launch has ended yet.")
    most = max(len(trials), *(len(course.best) for course in others), 1)
    drawing = go.Figure(
        layout=theme.layout(
            title="Best so far",
            subtitle="each launch of the search, and the best until then",
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
                name="best until then",
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
    return Drawing(drawing, _said(trials, unit), table(trials, unit))


def _line(course: Course, colour: str) -> go.Scatter:
    known = [(i + 1, value) for i, value in enumerate(course.best) if value]
    return go.Scatter(
        x=[i for i, _ in known],
        y=[value for _, value in known],
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


def _said(trials: Sequence[Trial], unit: str) -> str:
    best = max((trial for trial in trials if trial.value), key=lambda trial: trial.value or 0.0, default=None)
    if best is None:
        return f"{len(trials)} launched, none finished yet."
    at = next(i + 1 for i, trial in enumerate(trials) if trial is best)
    return f"{quantity(best.value, unit)} with {best.key}, found by launch {at} of {len(trials)}."


def expected(trials: Sequence[Trial], unit: str) -> Drawing:
    """Draw measured (y) against expected value (x) of each launch; on the dashed line it was as expected."""
    known = [trial for trial in trials if trial.value and trial.expected]
    if not known:
        return theme.nothing("No launch has both an expectation and a measurement yet.")
    drawing = go.Figure(
        layout=theme.layout(
            title="Expected and measured",
            subtitle="what was expected just before each launch, and what it gave",
            x=f"Expected ({unit})",
            y=f"Measured ({unit})",
        )
    )
    ends = [value for trial in known for value in (trial.value or 0.0, trial.expected or 0.0)]
    drawing.add_trace(
        go.Scatter(
            x=[min(ends), max(ends)],
            y=[min(ends), max(ends)],
            name="as expected",
            mode="lines",
            line={"color": theme.GREY, "dash": "dash", "width": 1},
            hoverinfo="skip",
        )
    )
    drawing.add_trace(
        go.Scatter(
            x=[trial.expected for trial in known],
            y=[trial.value for trial in known],
            name="launch",
            mode="markers+text",
            text=[str(trial.number) for trial in known],
            textposition="top center",
            marker={"size": 9, "color": theme.BLUE},
            hovertext=[trial.hover(unit) for trial in known],
            hoverinfo="text",
        )
    )
    last = known[-1]
    off = abs((last.expected or 0.0) / (last.value or 1.0) - 1)
    caption = f"The last of them was {significant(100 * off)} % off; numbers count the trials of the study."
    return Drawing(drawing, caption, table(trials, unit))


def space(settings: Sequence[Setting], trials: Sequence[Trial], unit: str) -> Drawing:
    """Draw the space: tuning space with accumulation (y) by micro batch (x), coloured where a value was measured."""
    if not settings:
        return theme.nothing("The space is empty.")
    known = {setting.key for setting in settings}
    settings = [*settings, *(_beside(trial) for trial in trials if trial.key not in known)]
    columns = in_order(setting.micro_batch_size for setting in settings)
    rows = list(dict.fromkeys((setting.tuning_space, setting.accumulation) for setting in settings))
    tried = {trial.key: trial for trial in trials}
    by_place = {(s.tuning_space, s.accumulation, s.micro_batch_size): s for s in settings}
    grid = [[by_place.get((*row, column)) for column in columns] for row in rows]
    names = [f"{name}, gas {accumulation}" for name, accumulation in rows]
    drawing = go.Figure(
        layout=theme.layout(
            title="The space",
            subtitle=f"{unit} where a setting was measured, dark is much; marks say what became of the others",
            x="Micro batch size",
            y="Tuning space and accumulation",
            height=max(theme.HEIGHT, 120 + 28 * len(rows)),
            xaxis=cell_axis([str(column) for column in columns]),
            yaxis={**cell_axis(names), "range": [len(rows) - 0.5, -0.5], "showgrid": False, "title": {"text": ""}},
            barmode="overlay",
            showlegend=False,
        )
    )
    found = [(x, y, cell) for y, line in enumerate(grid) for x, cell in enumerate(line) if cell is not None]
    measured = [one for one in found if _measured(one[2], tried) is not None]
    if measured:
        drawing.add_trace(_cells(measured, tried, unit))
    drawing.add_trace(_untried([one for one in found if _measured(one[2], tried) is None], tried, unit))
    count = sum(key in tried for key in known)
    cannot = sum(setting.fit == "does not fit" for setting in settings)
    caption = f"{count} of {len(known)} settings were launched."
    if len(settings) > len(known):
        caption += f" {len(settings) - len(known)} more were chosen between them."
    if cannot:
        caption += f" {cannot} cannot fit by the plan and are not tried."
    return Drawing(drawing, caption, _space_table(settings, tried))


def _beside(trial: Trial) -> Setting:
    """A setting that is no point of the sweep: DeepSpeed's autotuner chooses micro batches between them."""
    return Setting(trial.key, trial.tuning_space, trial.micro_batch_size, trial.accumulation, None, "fits")


def _cells(found: Sequence[tuple[int, int, Setting]], tried: dict[str, Trial], unit: str) -> go.Bar:
    values = [_measured(cell, tried) or 0.0 for _, _, cell in found]
    return go.Bar(
        **rectangles([(x, y) for x, y, _ in found]),
        text=[_mark(cell, tried) for _, _, cell in found],
        hovertext=[_cell_hover(cell, tried, unit) for _, _, cell in found],
        marker={"color": shades(values, SCALE), "line": {"width": 0}},
        customdata=values,
    )


def _untried(found: Sequence[tuple[int, int, Setting]], tried: dict[str, Trial], unit: str) -> go.Scatter:
    """Say in the other cells what became of them."""
    return go.Scatter(
        x=[x for x, _, _ in found],
        y=[y for _, y, _ in found],
        text=[_mark(cell, tried) for _, _, cell in found],
        hovertext=[_cell_hover(cell, tried, unit) for _, _, cell in found],
        mode="text",
        textfont={"color": theme.GREY},
        hoverinfo="text",
    )


def _measured(cell: Setting | None, tried: dict[str, Trial]) -> float | None:
    trial = tried.get(cell.key) if cell else None
    return trial.value if trial else None


def _mark(cell: Setting | None, tried: dict[str, Trial]) -> str:
    """What stands in a cell: its value, OOM, the state of its run, or why it was not tried."""
    if cell is None:
        return ""
    trial = tried.get(cell.key)
    if trial is None:
        return "too big" if cell.fit == "does not fit" else "·"
    if trial.value:
        return significant(trial.value)
    return "OOM" if trial.state == "oom" else trial.state


def _cell_hover(cell: Setting | None, tried: dict[str, Trial], unit: str) -> str:
    if cell is None:
        return ""
    trial = tried.get(cell.key)
    if trial is not None:
        return trial.hover(unit)
    planned = f"planned {quantity(cell.predicted, unit, 6)}" if cell.predicted else "no plan"
    return "<br>".join([theme.plain(cell.key), planned, "not tried" if cell.fit != "does not fit" else "does not fit"])


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
        found = [trial.value, trial.state] if trial else [None, "not tried"]
        rows.append([s.key, s.tuning_space, s.micro_batch_size, s.accumulation, s.predicted, s.fit, *found])
    return Table(header, rows)
