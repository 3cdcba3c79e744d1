"""The demo's one button: launch all sweeps; and how far they are."""

from __future__ import annotations

from typing import cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from parlab.fleet import services as fleet
from runners.config import ConfigError

from .progress import progress

UNCHANGED = 204


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def launch_sweeps(request: HttpRequest) -> HttpResponse:
    """Launch what has no run yet of every sweep of the demo; a second click starts nothing twice."""
    started = 0
    for one in progress().sweeps:
        config = one.experiment.configs.select_related("experiment").order_by("-version").first()
        if config is None:
            continue
        try:
            started += len(fleet.launch(config=config, user=cast(User, request.user)).created)
        except (ConfigError, ValueError) as error:
            messages.error(request, f"{one.experiment} was not launched: {error}.")
    if started:
        messages.success(request, f"Launched {started} runs; this machine takes them one after the other.")
    else:
        messages.info(request, "Nothing was launched: every point has its run already.")
    return redirect("/")


@require_GET
def sweeps(request: HttpRequest) -> HttpResponse:
    """Answer a poll for the progress of the demo's sweeps."""
    found = progress()
    if request.GET.get("seen") == found.seen:
        return HttpResponse(status=UNCHANGED)
    return render(request, "demo/sweeps.html", {"progress": found})
