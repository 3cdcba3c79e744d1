"""Simulated schedules in templates."""

from __future__ import annotations

from django import template
from django.http import QueryDict
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
    """A share as per cent without its sign: the heading has it."""
    if share is None:
        return format_html('<span class="none" title="not measured">{}</span>', numbers.DASH)
    shown = 100 * share if abs(share) > 5e-5 else 0.0
    return format_html('<span title="{} %">{}</span>', numbers.exact(100 * share), numbers.significant(shown))


@register.filter
def lanes_class(lanes: int) -> str:
    """Class that makes a timeline high enough for its lanes: {{ lanes|lanes_class }}."""
    return f"lanes-{next((most for most in _HEIGHTS if lanes <= most), _HEIGHTS[-1])}"


@register.filter
def with_choice(address: str, code: str) -> str:
    """An address where the lower of two drawn schedules is another one."""
    query = QueryDict(address, mutable=True)
    query["two"] = code
    return query.urlencode()


@register.filter
def choice_sentence(choice: Choice) -> str:
    """Say which slope was picked, and why not another."""
    best = choice.best
    others = [one for one in choice.compared if one.wire == best.wire and one.plan != best.plan]
    compared = ", ".join(
        f"slope {one.plan.warmup_slope} {numbers.quantity(one.simulation.iteration_s, 's')} ({one.held} held)"
        for one in others
    )
    said = (
        f"Slope {best.plan.warmup_slope} is the gentlest within 1 % of the fastest:"
        f" {numbers.quantity(best.simulation.iteration_s, 's')}, {best.held} micro batches held"
    )
    return (
        f"{said}; {compared}. A round trip is hidden from slope {choice.rule_slope} on (1 + 2c/t)."
        if others
        else f"{said}."
    )


@register.simple_tag
def network_value(cell: NetworkCell, source: str, unit: Unit) -> SafeString:
    """One number of a cell with where it comes from: {% network_value cell "measured" unit %}."""
    if source in ("measured", "emulated"):
        found = cell.measured if source == "measured" else cell.emulated
        if found is None or found.step_time_s is None:
            return _dash()
        run = found.run
        note = f"run {run.number} of {run.experiment.name}, {run.get_origin_display()}"
        return _number(found.step_time_s, unit, run.get_absolute_url(), note)
    if cell.simulated is None:
        return _dash()
    if source == "bound":
        note = f"{cell.simulated.bound.binds} binds"
        return _number(cell.simulated.bound.seconds, unit, "", note)
    note = "calibrated with this cell"
    if cell.error is not None:
        note = f"{numbers.significant(100 * cell.error)} % off; look at its timeline"
    return _number(cell.simulated.simulation.iteration_s, unit, f"{reverse('simulate')}?{cell.address}", note)


def _dash() -> SafeString:
    return format_html('<span class="none" title="not measured">{}</span>', numbers.DASH)


def _number(seconds: float, unit: Unit, address: str, note: str) -> SafeString:
    text = numbers.significant(seconds / unit.factor)
    title = f"{numbers.exact_quantity(seconds, unit.base)}: {note}"
    if not address:
        return format_html('<span title="{}">{}</span>', title, text)
    return format_html('<a href="{}" title="{}">{}</a>', address, title, text)
