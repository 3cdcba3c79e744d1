"""Filters for simulated schedules."""

from __future__ import annotations

from django import template
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from parlab.charts import format as numbers
from parlab.charts.format import Unit
from parlab.pages.rows.networks import NetworkCell
from parlab.planner.schedule import Choice

register = template.Library()

_HEIGHTS = (4, 8, 16, 32)


@register.filter
def percent(share: float | None) -> SafeString:
    """Format a fraction as per cent without the sign, which is in the heading."""
    if share is None:
        return format_html('<span class="none" title="not measured">{}</span>', numbers.DASH)
    percentage = 100 * share if abs(share) > 5e-5 else 0.0
    return format_html('<span title="{} %">{}</span>', numbers.exact(100 * share), numbers.significant(percentage))


@register.filter
def lanes_class(lanes: int) -> str:
    """Return the CSS class for the height of a timeline: {{ lanes|lanes_class }}."""
    return f"lanes-{next((most for most in _HEIGHTS if lanes <= most), _HEIGHTS[-1])}"


@register.filter
def choice_sentence(choice: Choice) -> str:
    """Return a sentence with the chosen slope and its alternatives."""
    best = choice.best
    others = [outcome for outcome in choice.compared if outcome.wire == best.wire and outcome.plan != best.plan]
    compared = ", ".join(
        f"slope {outcome.plan.warmup_slope} {numbers.quantity(outcome.simulation.iteration_s, 's')}"
        f" ({outcome.held} in flight)"
        for outcome in others
    )
    sentence = (
        f"Slope {best.plan.warmup_slope} is the smallest within 1 % of the fastest:"
        f" {numbers.quantity(best.simulation.iteration_s, 's')}, {best.held} micro batches in flight"
    )
    return (
        f"{sentence}; {compared}. Slopes of {choice.rule_slope} and above hide a round trip (1 + 2c/t)."
        if others
        else f"{sentence}."
    )


@register.simple_tag
def network_value(cell: NetworkCell, source: str, unit: Unit) -> SafeString:
    """Render a number of a cell with its origin: {% network_value cell "measured" unit %}."""
    if source in ("measured", "emulated"):
        measurement = cell.measured if source == "measured" else cell.emulated
        if measurement is None or measurement.step_time_s is None:
            return _dash()
        run = measurement.run
        note = f"run {run.number} of {run.experiment.name}, {run.get_origin_display()}"
        return _duration_cell(measurement.step_time_s, unit, run.get_absolute_url(), note)
    if source == "bound" and cell.simulated is not None and cell.bound is None:
        return _dash("none: a run was faster than messages on the stated links")
    if cell.simulated is None:
        return _dash()
    if source == "bound" and cell.bound is not None:
        return _duration_cell(cell.bound.seconds, unit, "", f"limited by {cell.bound.binds}")
    note = "calibrated with this cell"
    if cell.error is not None:
        note = f"{numbers.significant(100 * cell.error)} % error; open the timeline"
    return _duration_cell(cell.simulated.simulation.iteration_s, unit, f"{reverse('simulate')}?{cell.address}", note)


def _dash(reason: str = "not measured") -> SafeString:
    return format_html('<span class="none" title="{}">{}</span>', reason, numbers.DASH)


def _duration_cell(seconds: float, unit: Unit, address: str, note: str) -> SafeString:
    text = numbers.in_column(seconds, unit)
    title = f"{numbers.exact_quantity(seconds, unit.base)}: {note}"
    if not address:
        return format_html('<span title="{}">{}</span>', title, text)
    return format_html('<a href="{}" title="{}">{}</a>', address, title, text)
