"""Choice of a warm-up slope for the network of a run, saved as a configuration."""

from __future__ import annotations

from typing import cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from parlab.charts.format import unit_for
from parlab.lab.models import Run
from parlab.lab.services.schedules import simulated_run, slope_choices, slope_code, slope_save
from parlab.pages.rows.networks import simulate_address

from .addressed import find_run


@require_GET
def simulate(_request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Redirect to the schedule simulation with the pass times and the network of a run."""
    pipelined, times = simulated_run(find_run(slug, number))
    query = simulate_address(pipelined, times, ["gpipe", pipelined.plan, "best"], pipelined.network)
    return HttpResponseRedirect(f"{reverse('simulate')}?{query}")


@require_http_methods(["GET", "POST"])
@permission_required("lab.add_config", raise_exception=True)
def pick(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    run = find_run(slug, number)
    if request.method == "POST":
        return _save(request, run)
    (pipelined, times), choices = slope_choices(run)
    compared = [outcome for choice in choices for outcome in choice.compared]
    context = {
        "section": "experiments",
        "experiment": run.experiment,
        "run": run,
        "pipeline": pipelined,
        "basis": times.basis,
        "rows": [(slope_code(outcome), outcome) for outcome in compared],
        "best": [slope_code(choice.best) for choice in choices],
        "choice": choices[0],
        "time": unit_for([outcome.simulation.iteration_s for outcome in compared], "s"),
        "is_published": run.origin != Run.Origin.MEASURED,
    }
    return render(request, "pages/measured/run_schedule.html", context)


def _save(request: HttpRequest, run: Run) -> HttpResponse:
    try:
        config = slope_save(run=run, code=request.POST.get("choice", ""), user=cast(User, request.user))
    except ValueError as error:
        messages.error(request, f"Nothing was saved: {error}.")
        return redirect("run-schedule", run.experiment.slug, run.number)
    messages.success(request, f"Saved as version {config.version}: {config.note}. Launch it to check the prediction.")
    return HttpResponseRedirect(f"{run.experiment.get_absolute_url()}?version={config.version}")
