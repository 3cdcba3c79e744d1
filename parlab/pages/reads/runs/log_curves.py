"""The curve above a log: its steps, and the lines at the end of the log that state one."""

from __future__ import annotations

from typing import Any, NamedTuple

from parlab.charts.format import unit_for
from parlab.charts.svg import FIRST, Canvas, Margins, Svg
from parlab.ingest.summaries.log_steps import log_steps
from parlab.lab.models import Attempt, Run
from parlab.pages.reads.runs.losses import leading_curve
from parlab.publishing.figures.run_curves import series_title

WIDTH, HEIGHT, MARGINS = 1200, 96, Margins(46, 12, 8, 22)


class LogCurve(NamedTuple):
    """A curve with what joins it to lines."""

    title: str
    unit: str
    drawn: Svg
    first: int
    last: int
    marks: int
    """Lines that state a step."""
    data: dict[str, Any]
    """For the script: places of the steps in the figure, and the steps of the last lines of the log."""


def log_curve(run: Run, attempt: Attempt, tail: int) -> LogCurve | None:
    """Return the loss of a run, or else its step time, and the steps of its last `tail` lines; None without a curve."""
    metric, (steps, values) = leading_curve(run, attempt)
    if len(steps) < 2:
        return None
    unit = unit_for(values, "s" if metric == "step_time_s" else "")
    shown = [value / unit.factor for value in values]
    canvas = Canvas(WIDTH, HEIGHT, (steps[0], steps[-1]), (min(shown), max(shown)), MARGINS)
    canvas.y_axis().x_axis(text="{:,.0f}".format, title="step").line(steps, shown, FIRST)
    canvas.add(
        f'<path class="cur" data-cursor-line d="M0 {MARGINS.top}V{HEIGHT - MARGINS.bottom}" visibility="hidden"/>'
    )
    title, stated = series_title(metric), log_steps(run, attempt)
    places = [[int(step), round(canvas.x(step), 1), value] for step, value in zip(steps, shown, strict=True)]
    # Of a run over nodes, and of one whose engine reports, the shown lines are not the last ones of the file.
    ends = {line: step for line, step in stated.steps.items() if line > stated.lines - tail} if run.source_id else {}
    return LogCurve(
        title,
        unit.name,
        canvas.svg(f"{title} over {len(steps)} steps"),
        int(steps[0]),
        int(steps[-1]),
        len(stated.steps),
        {"width": WIDTH, "places": places, "lines": stated.lines, "ends": ends, "isWhole": stated.is_whole},
    )
