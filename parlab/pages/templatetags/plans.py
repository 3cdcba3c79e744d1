"""Filters of the planner page: GiB, and the options of a form."""

from __future__ import annotations

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from parlab.charts.fields import SCHEDULES
from parlab.charts.format import exact, significant

register = template.Library()
_GIB = 1 << 30


@register.filter
def in_gib(value: float) -> SafeString:
    """Format bytes as GiB without unit; all digits on hover."""
    return format_html('<span title="{} B">{}</span>', exact(value), significant(value / _GIB))


@register.filter
def gib(value: float) -> SafeString:
    """Format bytes as GiB with unit."""
    return format_html("{}\u2009GiB", in_gib(value))


@register.simple_tag
def options(chosen: str, *choices: str) -> SafeString:
    """Render the options of a select, each given as value:title."""
    pairs = [choice.split(":", 1) for choice in choices]
    return format_html_join(
        "",
        '<option value="{}"{}>{}</option>',
        ((value, SafeString(" selected") if value == chosen else "", title) for value, title in pairs),
    )


@register.simple_tag
def schedule_options(chosen: str) -> SafeString:
    """Render the pipeline schedules as options: {% schedule_options fields.schedule %}."""
    return options(chosen, *(f"{name}:{title}" for name, title in SCHEDULES.items()))
