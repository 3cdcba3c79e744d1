"""Panels with a row for each run: peak memory, phases of a step, all steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from html import escape
from typing import NamedTuple

from parlab.charts.format import Unit, exact_quantity, for_column, in_column, unit_for
from parlab.charts.points import RunPoint
from parlab.charts.svg import Canvas, Svg, length, marker, ticks
from parlab.charts.sweeps.phases import parts

from .frame import FOOT, MAX_ROWS, Rows, Runs, Size, rows_of, run_group, text_at
from .shown import ShownRun


def memory_needs(runs: Runs) -> str:
    return "" if _with_memory(runs) else "no run reported its memory"


def _with_memory(runs: Runs) -> list[ShownRun]:
    return [run for run in runs.shown if run.point.memory_max][:MAX_ROWS]


def memory_unit(runs: Runs) -> Unit:
    values = [run.point.memory_max for run in _with_memory(runs)]
    return for_column(unit_for(values, "B"), [(value, False) for value in values])


def memory(runs: Runs, size: Size) -> Svg:
    """Draw the largest memory of a rank of each run as a dot; the scale need not start at zero."""
    measured, unit = _with_memory(runs), memory_unit(runs)
    values = [(run.point.memory_max or 0.0) / unit.factor for run in measured]
    low, high = min(values), max(values)
    pad = (high - low) * 0.12 or high * 0.05
    rows = rows_of(measured, size, (max(0.0, low - pad), high + pad))
    end = size.width - rows.canvas.margins.right
    _scale(rows, ticks(*rows.canvas.x_range, 4))
    for place, (run, value) in enumerate(zip(measured, values, strict=True)):
        left, top = rows.canvas.x(value), rows.top(place)
        title = f"{run.name}: {exact_quantity(run.point.memory_max, 'B')}"
        text = text_at(left + 9, top + 3.5, in_column(run.point.memory_max, unit), "v")
        line = f'<path class="gl" d="M{length(rows.left)} {round(top) + 0.5}H{length(end)}"/>'
        rows.canvas.add(run_group(run, rows.label(run, place) + line + marker(left, top, run.look, 3.5, title) + text))
    return rows.canvas.svg(f"Peak memory of {len(measured)} runs")


def _scale(rows: Rows, values: Sequence[float]) -> None:
    """Draw the scale below the rows, with vertical lines."""

    def text(value: float) -> str:
        return f"{value:g}" if value < 1e4 else f"{value:,.0f}"

    rows.canvas.x_axis(values, text, has_grid=True)
    if rows.canvas.margins.top >= FOOT:  # rows that scroll: the scale also stands above them
        for value in values:
            rows.canvas.text(rows.canvas.x(value), FOOT - 8, text(value), "middle")


class Term(NamedTuple):
    """A part of a step, and the timers that belong to it."""

    title: str
    fill: str
    marks: tuple[str, ...]
    """Parts of the names of its timers."""


TERMS = (
    Term("forward", "f1", ("forward-compute", "forward")),
    Term("weight grad", "f6", ("backward-weight", "weight")),
    Term("backward", "f3", ("backward-compute", "backward")),
    Term("waiting", "f7 wait", ("recv", "wait", "barrier")),
    Term("send", "f5", ("send",)),
    Term(
        "communication", "f2", ("reduce", "gather", "scatter", "all-to-all", "broadcast", "comm", "sync", "embedding")
    ),
    Term("optimizer", "f4", ("optimizer", "step")),
    Term("data", "f8", ("batch", "data")),
    Term("other", "f7", ()),
)
_ORDER = {
    name: place
    for place, name in enumerate(
        ("forward", "backward", "weight grad", "waiting", "send", "communication", "optimizer", "data", "other")
    )
}
_FIRST = ("waiting", "send", "communication")
"""Terms that the name of a timer may say beside its direction: `forward-recv` is waiting."""
_SOUGHT = sorted(TERMS, key=lambda term: term.title not in _FIRST)


@lru_cache(maxsize=1024)
def term_of(timer: str) -> Term:
    """Return the term of a timer: `backward-recv` is waiting, `forward-compute` is forward."""
    return next((term for term in _SOUGHT if any(mark in timer for mark in term.marks)), TERMS[-1])


def terms_of(point: RunPoint) -> dict[Term, float]:
    """Return the seconds of each term of a step, mean of the ranks."""
    terms: dict[Term, float] = {}
    for name, timer in parts(point.timers).items():
        term = term_of(name)
        terms[term] = terms.get(term, 0.0) + timer.median
    return dict(sorted(terms.items(), key=lambda item: _ORDER[item[0].title]))


def phases_needs(runs: Runs) -> str:
    return "" if _timed(runs) else "the runs printed no timers"


def _timed(runs: Runs) -> list[ShownRun]:
    return [run for run in runs.shown if run.point.timers][:MAX_ROWS]


def _step(point: RunPoint) -> float:
    # The terms of a step are the timers without those inside others, so no term is made for their sum.
    terms = sum(timer.median for timer in parts(point.timers).values())
    return max(terms, point.step_time_s.median) if point.step_time_s else terms


def phases_unit(runs: Runs) -> Unit:
    values = [_step(run.point) for run in _timed(runs)]
    return for_column(unit_for(values, "s"), [(value, False) for value in values])


def phases_legend(runs: Runs) -> list[tuple[str, str]]:
    """Return titles and fills of the terms that are drawn."""
    present = {term for run in _timed(runs) for term in terms_of(run.point)}
    has_rest = any(_step(run.point) > sum(terms_of(run.point).values()) for run in _timed(runs))
    terms = sorted(present, key=lambda term: _ORDER[term.title])
    return [(term.title, term.fill.replace("f", "b", 1)) for term in terms] + ([("rest", "rest")] if has_rest else [])


def phases(runs: Runs, size: Size) -> Svg:
    """Draw the terms of a step as a bar that ends at its median; what no timer covers is dashed."""
    timed, unit = _timed(runs), phases_unit(runs)
    longest = max(_step(run.point) for run in timed) / unit.factor
    rows = rows_of(timed, size, (0.0, longest), right=40)
    _scale(rows, ticks(0, longest, 4))
    for place, run in enumerate(timed):
        rows.canvas.add(run_group(run, rows.label(run, place) + _bar(rows, run.point, place, unit)))
    return rows.canvas.svg(f"Phases of a step of {len(timed)} runs")


def _bar(rows: Rows, point: RunPoint, place: int, unit: Unit) -> str:
    height = min(20.0, rows.row - 4)
    top = rows.top(place) - height / 2
    markup, reached = "", 0.0
    for term, seconds in terms_of(point).items():
        start, end = rows.canvas.x(reached / unit.factor), rows.canvas.x((reached + seconds) / unit.factor)
        width = max(0.5, end - start - 0.8)
        title = f"{term.title} {exact_quantity(seconds, 's')}"
        markup += (
            f'<rect class="{term.fill}" x="{length(start)}" y="{length(top)}" width="{length(width)}"'
            f' height="{length(height)}"><title>{escape(title)}</title></rect>'
        )
        reached += seconds
    whole = _step(point)
    start, end = rows.canvas.x(reached / unit.factor), rows.canvas.x(whole / unit.factor)
    if end - start > 1.5:
        markup += (
            f'<rect class="rest" x="{length(start + 0.5)}" y="{length(top + 0.5)}" width="{length(end - start - 1)}"'
            f' height="{length(height - 1)}"><title>not timed {exact_quantity(whole - reached, "s")}</title></rect>'
        )
    return (
        markup
        + f'<text class="v" x="{length(end + 5)}" y="{length(rows.top(place) + 3.5)}">{in_column(whole, unit)}</text>'
    )


def steps_needs(runs: Runs) -> str:
    return "" if any(run.point.step_time_s and not run.point.is_published for run in runs.shown) else "no run has steps"


def steps_unit(runs: Runs) -> Unit:
    return unit_for([run.point.step_time_s.median for run in runs.shown if run.point.step_time_s], "s")


def steps(runs: Runs, size: Size) -> Svg:
    """Draw each step of each run as a stroke; the median is black."""
    measured, unit = [run for run in runs.shown if run.steps][:MAX_ROWS], steps_unit(runs)
    if not measured:
        return Canvas(size.width, size.height).svg("No steps")
    ordered = sorted(value for run in measured for value in run.steps)
    # A first step that compiles for minutes would leave no room for the others.
    longest = min(ordered[-1], 1.6 * ordered[int(0.98 * (len(ordered) - 1))]) / unit.factor
    rows = rows_of(measured, size, (0.0, longest), right=10)
    _scale(rows, ticks(0, longest, 3))
    for place, run in enumerate(measured):
        rows.canvas.add(run_group(run, rows.label(run, place) + _strokes(rows, run, place, unit, longest)))
    return rows.canvas.svg(f"Steps of {len(measured)} runs")


def _strokes(rows: Rows, run: ShownRun, place: int, unit: Unit, longest: float) -> str:
    half = min(7.5, rows.row / 2 - 3)
    top, foot = length(rows.top(place) - half), length(rows.top(place) + half)
    inside = [value / unit.factor for value in run.steps if value / unit.factor <= longest]
    strokes = "".join(f"M{length(rows.canvas.x(value))} {top}V{foot}" for value in inside)
    median = sorted(run.steps)[len(run.steps) // 2]
    at = rows.canvas.x(median / unit.factor)
    title = f"<title>{escape(run.name)}: median {exact_quantity(median, 's')}</title>"
    return (
        f'<path class="strokes {run.look.stroke}" d="{strokes}"/>'
        f'<rect class="median" x="{length(at - 1)}" y="{length(rows.top(place) - half - 1)}" width="2"'
        f' height="{length(2 * half + 2)}">{title}</rect>'
    )
