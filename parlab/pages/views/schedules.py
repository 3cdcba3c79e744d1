"""Pick a schedule for the network of a run: what each warm-up slope takes, and a configuration with the chosen one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from parlab.charts.format import quantity, significant, unit_for
from parlab.lab import selectors
from parlab.lab import services as lab
from parlab.lab.models import Run
from parlab.lab.selectors import PipelineRun
from parlab.lab.selectors.pipelines import Times
from parlab.pages.rows.networks import simulate_address
from parlab.planner.schedule import Outcome, Wire, best_schedule
from runners.config import ConfigError

from .runs import find_run

WIRES: tuple[Wire, ...] = ("same", "bf16")


class _Known(NamedTuple):
    one: PipelineRun
    times: Times


def _known(run: Run) -> _Known:
    one = selectors.pipeline_of(run)
    times = selectors.times_of(one) if one else None
    if one is None or times is None:
        raise Http404(f"run {run.number} cannot be simulated: it is no pipeline, or nothing says how long it took")
    return _Known(one, times)


@require_GET
def simulate(_request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Lead to the page that simulates schedules, with the times and the network of a run."""
    one, times = _known(find_run(slug, number))
    query = simulate_address(one, times, ["gpipe", one.plan, "best"], one.network)
    return HttpResponseRedirect(f"{reverse('simulate')}?{query}")


@require_http_methods(["GET", "POST"])
@permission_required("lab.add_config", raise_exception=True)
def pick(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    run = find_run(slug, number)
    one, times = _known(run)
    plain = one._replace(wire="same")
    pipeline = plain.pipeline(times.stages, step_s=times.step_s)
    choices = [best_schedule(pipeline, wires=(wire,), element_bytes=one.shape.number_bytes) for wire in WIRES]
    compared = [found for choice in choices for found in choice.compared]
    if request.method == "POST":
        return _save(request, run, _Known(one, times), compared)
    context = {
        "section": "experiments",
        "experiment": run.experiment,
        "run": run,
        "pipeline": one,
        "basis": times.basis,
        "rows": [(_code(found), found) for found in compared],
        "best": [_code(choice.best) for choice in choices],
        "choice": choices[0],
        "time": unit_for([_seconds(found) for found in compared], "s"),
        "is_published": run.origin != Run.Origin.MEASURED,
    }
    return render(request, "pages/run_schedule.html", context)


def _code(found: Outcome) -> str:
    return f"{found.wire}:{found.plan.warmup_slope}"


def _seconds(found: Outcome) -> float:
    return found.simulation.iteration_s


def _save(request: HttpRequest, run: Run, known: _Known, compared: Sequence[Outcome]) -> HttpResponse:
    wanted = request.POST.get("choice", "")
    chosen = next((found for found in compared if _code(found) == wanted), None)
    if chosen is None:
        messages.error(request, "Nothing was saved: choose one of the slopes.")
        return redirect("run-schedule", run.experiment.slug, run.number)
    wire = cast(Literal["same", "bf16"], chosen.wire)
    slope = chosen.plan.warmup_slope
    note = (
        f"Slope {slope}{'' if wire == 'same' else ' with 16-bit messages'} for {known.one.network_title}: simulated"
        f" {quantity(_seconds(chosen), 's')}, {chosen.held} micro batches held,"
        f" {significant(100 * chosen.gap_to_bound)} % above the bound"
    )
    given: dict[str, Any] = {"link": known.one.network.link, "times": known.times.stages, "step_s": known.times.step_s}
    try:
        config = lab.schedule_save(run=run, slope=slope, wire=wire, note=note, user=cast(User, request.user), **given)
    except ConfigError as error:
        messages.error(request, f"Nothing was saved: {error}.")
        return redirect("run-schedule", run.experiment.slug, run.number)
    messages.success(request, f"Saved as version {config.version}: {note}. Launch it to see whether it holds.")
    return HttpResponseRedirect(f"{run.experiment.get_absolute_url()}?version={config.version}")
