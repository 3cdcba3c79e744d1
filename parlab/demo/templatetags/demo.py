"""The block of the demo sweeps, for any page."""

from __future__ import annotations

from typing import Any

from django import template

from parlab.demo import slower
from parlab.demo.progress import bar, progress
from parlab.watch.models import Watch

register = template.Library()
MINUTES = 9
"""Time that all demo sweeps take on two cores."""


@register.inclusion_tag("demo/watch.html", takes_context=True)
def demo_watch(context: template.Context) -> dict[str, Any]:
    """Offer the demo of a watch until it exists, in a demo only: {% demo_watch %}."""
    is_offered = bool(progress().sweeps) and not Watch.objects.filter(name=slower.NAME).exists()
    return {"is_offered": is_offered, "perms": context.get("perms"), "csrf_token": context.get("csrf_token")}


@register.inclusion_tag("demo/sweeps.html", takes_context=True)
def demo_sweeps(context: template.Context) -> dict[str, Any]:
    """Show the progress of the demo sweeps until all runs have ended: {% demo_sweeps %}."""
    current = progress()
    has_begun = current.is_running or current.ended > 0
    is_shown = has_begun and (current.to_start > 0 or current.is_running)
    return {
        "progress": current if is_shown else None,
        "bar": bar(current),
        "perms": context.get("perms"),
        "request": context.get("request"),
        "csrf_token": context.get("csrf_token"),
    }


@register.inclusion_tag("demo/way.html", takes_context=True)
def demo_way(context: template.Context) -> dict[str, Any]:
    """Offer the demo sweeps to those who begin; elsewhere a sweep of their own: {% demo_way %}."""
    current = progress()
    return {
        "progress": current if current.sweeps else None,
        "minutes": MINUTES,
        "perms": context.get("perms"),
        "csrf_token": context.get("csrf_token"),
    }
