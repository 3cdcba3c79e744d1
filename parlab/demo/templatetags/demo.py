"""The block of the demo sweeps, for any page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import template

from parlab.demo import slower
from parlab.demo.progress import demo_names, progress
from parlab.lab.models import Experiment
from parlab.watch.models import Watch

register = template.Library()


@register.inclusion_tag("demo/watch.html", takes_context=True)
def demo_watch(context: template.Context) -> dict[str, Any]:
    """Offer the demo of a watch until it exists, in a demo only: {% demo_watch %}."""
    is_offered = bool(progress().sweeps) and not Watch.objects.filter(name=slower.NAME).exists()
    return {"is_offered": is_offered, "perms": context.get("perms"), "csrf_token": context.get("csrf_token")}


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
