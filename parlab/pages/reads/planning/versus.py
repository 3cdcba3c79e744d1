"""Two layouts of a plan side by side: where the time of a step and the memory go, and what differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.charts.format import MINUS, SPACE, quantity, significant
from parlab.charts.sweeps import plans as chart
from parlab.charts.sweeps.plans import PartsBar
from parlab.lab.selectors.analysis.plans import plan_context
from parlab.planner.job.workload import Job
from parlab.planner.requests.answer import Outline
from parlab.planner.requests.layout_fields import layout_fields
from parlab.planner.requests.request import PlanRequest

from .plans import MEMORY_PARTS, chance_of, money

_GIB = 1 << 30
_LONGEST = 600


class SideBars(NamedTuple):
    """One layout with its bars, on the scale of both."""

    name: str
    time: PartsBar
    memory: PartsBar


class VersusRow(NamedTuple):
    """A number of both layouts; the better one is marked, unless they are alike."""

    title: str
    first: str
    second: str
    better: str = ""
    """first, second, or empty."""


class Versus(NamedTuple):
    """This plan and another layout of it."""

    sides: tuple[SideBars, SideBars]
    rows: list[VersusRow]
    verdict: str
    differing: list[tuple[str, str, str]]
    """Fields of the layout with both values."""


def versus_text(job: Job) -> str:
    """Write a layout as the value of one field of an address: `tensor_parallel:8,pipeline_parallel:4`."""
    stated = {name: value for name, value in layout_fields(job).items() if value is not None}
    return ",".join(
        f"{name}:{str(value).lower() if isinstance(value, bool) else value}" for name, value in stated.items()
    )


def other_question(question: PlanRequest, text: str) -> PlanRequest:
    """Return the question in the layout of a text. Raises ValueError, of which ValidationError is one."""
    pairs = dict(part.split(":", 1) for part in text[:_LONGEST].split(",") if ":" in part)
    names = layout_fields(question.job())
    if not pairs or not pairs.keys() <= names.keys():
        raise ValueError(f"versus {text[:60]!r} is no layout; choose one from the table of the best layouts")
    layout: Mapping[str, Any] = {name: pairs.get(name) for name in names}
    return PlanRequest.model_validate({**question.model_dump(), **layout}, context=plan_context())


def versus(question: PlanRequest, first: Outline, second: Outline, currency: str) -> Versus:
    """Compare two layouts of the same training on the same devices."""
    outlines = (first, second)
    seconds = max(outline.prediction.iteration_s for outline in outlines)
    capacity = first.prediction.cluster.device.memory_bytes
    extent = 1.02 * max(capacity, *(outline.prediction.memory_bytes for outline in outlines))
    sides = tuple(_side(outline, seconds, extent) for outline in outlines)
    return Versus((sides[0], sides[1]), _rows(question, first, second, currency), _verdict(first, second), _differing(
        first.prediction.job, second.prediction.job
    ))  # fmt: skip


def _side(outline: Outline, seconds: float, extent: float) -> SideBars:
    prediction = outline.prediction
    job, memory = prediction.job, prediction.memory
    times = [(name, getattr(prediction.parts, name)) for name in chart.TIME_KEYS]
    parts = [(name, getattr(memory, name)) for name in MEMORY_PARTS]
    return SideBars(
        f"TP {job.tensor_parallel} · CP {job.context_parallel} · PP {job.pipeline_parallel} · DP {job.data_parallel}",
        chart.time_bar(times, prediction.iteration_s, seconds),
        chart.memory_bar(parts, prediction.memory_bytes, extent),
    )


def _rows(question: PlanRequest, first: Outline, second: Outline, currency: str) -> list[VersusRow]:
    rows = _budget_rows(first, second, currency)
    steps = [each.prediction.iteration_s for each in (first, second)]
    rows.append(_row("Step", steps, [quantity(value, "s") for value in steps]))
    rates = [each.work.tflops_per_gpu for each in (first, second)]
    rows.append(_row("TFLOP/s a GPU", [-value for value in rates], [significant(value) for value in rates]))
    memory = [each.prediction.memory_bytes for each in (first, second)]
    rows.append(_row("Memory (GiB)", memory, [significant(value / _GIB) for value in memory]))
    fits = [each.prediction.fits_probability for each in (first, second)]
    rows.append(_row("P(fits)", [-value for value in fits], [chance_of(value).text for value in fits]))
    if question.wanted_days:
        chances = [each.budget.chance(question.wanted_days) for each in (first, second)]
        title = f"P(≤ {question.wanted_days:g} days)"
        rows.append(_row(title, [-value for value in chances], [chance_of(value).text for value in chances]))
    return rows


def _budget_rows(first: Outline, second: Outline, currency: str) -> list[VersusRow]:
    days = [first.budget.days, second.budget.days]
    rows = [_row("Days", days, [significant(value) for value in days])]
    costs = [each.budget.cost for each in (first, second) if each.budget.cost is not None]
    if len(costs) == 2:
        rows.append(_row("Cost", costs, [money(value, currency) for value in costs]))
    return rows


def _row(title: str, values: list[float], texts: list[str]) -> VersusRow:
    """Return a row; less is better."""
    better = "" if texts[0] == texts[1] else "first" if values[0] < values[1] else "second"
    return VersusRow(title, texts[0], texts[1], better)


def _verdict(first: Outline, second: Outline) -> str:
    change = second.prediction.iteration_s / first.prediction.iteration_s - 1
    percent = f"{significant(abs(100 * change), 2)}{SPACE}%"
    if abs(change) < 5e-4:
        return "Both take the same time a step."
    spread = max(first.prediction.spread, second.prediction.spread)
    text = f"B takes {percent} {'more' if change > 0 else 'less'} time a step"
    if abs(change) < spread:
        return f"{text}, within the ±{100 * spread:.0f}{SPACE}% of such predictions: run both."
    return f"{text}, more than the ±{100 * spread:.0f}{SPACE}% of such predictions."


def _differing(first: Job, second: Job) -> list[tuple[str, str, str]]:
    left, right = layout_fields(first), layout_fields(second)
    return [
        (name.replace("_", " "), _written(left[name]), _written(right[name]))
        for name in left
        if left[name] != right[name]
    ]


def _written(value: Any) -> str:
    return MINUS if value is None else "yes" if value is True else "no" if value is False else str(value)
