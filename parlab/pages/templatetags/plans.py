"""Tags of the planner page: the options of a form."""

from __future__ import annotations

from django import template
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from parlab.charts.fields import SCHEDULES

register = template.Library()


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
