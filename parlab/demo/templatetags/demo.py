"""The block of the demo sweeps, for any page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import template

from parlab.demo.progress import demo_names, progress
from parlab.lab.models import Experiment

register = template.Library()


@register.inclusion_tag("demo/sweeps.html", takes_context=True)
def demo_sweeps(context: template.Context) -> dict[str, Any]:
    """Show the demo sweeps until all runs have ended: {% demo_sweeps %}."""
    current = progress()
    is_shown = bool(current.sweeps) and (current.to_start > 0 or current.is_running)
    return {
        "progress": current if is_shown else None,
        "perms": context.get("perms"),
        "request": context.get("request"),
        "csrf_token": context.get("csrf_token"),
    }


@register.filter
def outside_the_demo(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Omit the experiments listed in the block of the demo sweeps: {{ home.ready|outside_the_demo }}."""
    names = demo_names()
    return [experiment for experiment in experiments if experiment.name not in names]
