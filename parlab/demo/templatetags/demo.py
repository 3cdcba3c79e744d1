"""The block of the demo's sweeps, for any page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import template

from parlab.demo.progress import demo_names, progress
from parlab.lab.models import Experiment

register = template.Library()


@register.inclusion_tag("demo/sweeps.html", takes_context=True)
def demo_sweeps(context: template.Context) -> dict[str, Any]:
    """Offer the demo's sweeps until all have run; nothing where there are none: {% demo_sweeps %}."""
    found = progress()
    is_shown = bool(found.sweeps) and (found.to_start > 0 or found.is_running)
    return {
        "progress": found if is_shown else None,
        "perms": context.get("perms"),
        "request": context.get("request"),
        "csrf_token": context.get("csrf_token"),
    }


@register.filter
def outside_the_demo(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Leave out those that the block of the demo's sweeps lists: {{ home.ready|outside_the_demo }}."""
    listed = demo_names()
    return [experiment for experiment in experiments if experiment.name not in listed]
