"""Launch all demo sweeps and show their progress."""

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

from . import slower
from .progress import bar, progress

UNCHANGED = 204


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def launch_sweeps(request: HttpRequest) -> HttpResponse:
    """Launch all points of the demo sweeps without a run; a second click launches nothing twice."""
    started = 0
    for sweep in progress().sweeps:
        config = sweep.experiment.configs.select_related("experiment").order_by("version").first()
        if config is None:
            continue
        try:
            started += len(fleet.launch(config=config, user=cast(User, request.user)).created)
        except (ConfigError, ValueError) as error:
            messages.error(request, f"{sweep.experiment} was not launched: {error}.")
    if started:
        messages.success(request, f"Launched {started} runs. They run one after another on this machine.")
    else:
        messages.info(request, "Nothing to launch: every point already has a run.")
    return redirect("/")


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def watch_slower(request: HttpRequest) -> HttpResponse:
    """Create the demo's repository and watch, and order the runs of its commits; they run in the background."""
    try:
        watch = slower.watch_start(cast(User, request.user))
    except (ConfigError, ValueError) as error:
        messages.error(request, f"The demo of a watch was not started: {error}.")
        return redirect("/watch/")
    messages.success(request, "The commits of a small repository are run one after another; alerts appear here.")
    return redirect(watch)


@require_GET
def sweeps(request: HttpRequest) -> HttpResponse:
    """Return the progress of the demo sweeps, or status 204 if it has not changed."""
    current = progress()
    if request.GET.get("seen") == current.seen:
        return HttpResponse(status=UNCHANGED)
    return render(request, "demo/sweeps.html", {"progress": current, "bar": bar(current)})
