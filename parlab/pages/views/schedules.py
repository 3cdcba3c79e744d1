"""Choice of a warm-up slope for the network of a run, saved as a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

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

from .addressed import find_run

WIRES: tuple[Wire, ...] = ("same", "bf16")


class _SimulatedRun(NamedTuple):
    pipeline: PipelineRun
    times: Times


def _simulated_run(run: Run) -> _SimulatedRun:
    pipelined = selectors.pipeline_of(run)
    times = selectors.times_of(pipelined) if pipelined else None
    if pipelined is None or times is None:
        raise Http404(f"run {run.number} cannot be simulated: it is not a pipeline, or its step time is unknown")
    return _SimulatedRun(pipelined, times)


@require_GET
def simulate(_request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Redirect to the schedule simulation with the pass times and the network of a run."""
    pipelined, times = _simulated_run(find_run(slug, number))
    query = simulate_address(pipelined, times, ["gpipe", pipelined.plan, "best"], pipelined.network)
    return HttpResponseRedirect(f"{reverse('simulate')}?{query}")


@require_http_methods(["GET", "POST"])
@permission_required("lab.add_config", raise_exception=True)
def pick(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    run = find_run(slug, number)
    pipelined, times = _simulated_run(run)
    plain = pipelined._replace(wire="same")
    pipeline = plain.pipeline(times.stages, step_s=times.step_s)
    choices = [best_schedule(pipeline, wires=(wire,), element_bytes=pipelined.shape.number_bytes) for wire in WIRES]
    compared = [outcome for choice in choices for outcome in choice.compared]
    if request.method == "POST":
        return _save(request, run, _SimulatedRun(pipelined, times), compared)
    context = {
        "section": "experiments",
        "experiment": run.experiment,
        "run": run,
        "pipeline": pipelined,
        "basis": times.basis,
        "rows": [(_code(outcome), outcome) for outcome in compared],
        "best": [_code(choice.best) for choice in choices],
        "choice": choices[0],
        "time": unit_for([_seconds(outcome) for outcome in compared], "s"),
        "is_published": run.origin != Run.Origin.MEASURED,
    }
    return render(request, "pages/run_schedule.html", context)


def _code(outcome: Outcome) -> str:
    return f"{outcome.wire}:{outcome.plan.warmup_slope}"


def _seconds(outcome: Outcome) -> float:
    return outcome.simulation.iteration_s


def _save(request: HttpRequest, run: Run, simulated: _SimulatedRun, compared: Sequence[Outcome]) -> HttpResponse:
    choice = request.POST.get("choice", "")
    chosen = next((outcome for outcome in compared if _code(outcome) == choice), None)
    if chosen is None:
        messages.error(request, "Nothing was saved: select a slope.")
        return redirect("run-schedule", run.experiment.slug, run.number)
    wire = cast(Literal["same", "bf16"], chosen.wire)
    slope = chosen.plan.warmup_slope
    note = (
        f"Slope {slope}{'' if wire == 'same' else ' with 16-bit messages'} for {simulated.pipeline.network_title}:"
        f" simulated {quantity(_seconds(chosen), 's')}, {chosen.held} micro batches in flight,"
        f" {significant(100 * chosen.gap_to_bound)} % above the bound"
    )
    try:
        config = lab.schedule_save(
            run=run,
            slope=slope,
            wire=wire,
            note=note,
            user=cast(User, request.user),
            link=simulated.pipeline.network.link,
            times=simulated.times.stages,
            step_s=simulated.times.step_s,
        )
    except ConfigError as error:
        messages.error(request, f"Nothing was saved: {error}.")
        return redirect("run-schedule", run.experiment.slug, run.number)
    messages.success(request, f"Saved as version {config.version}: {note}. Launch it to check the prediction.")
    return HttpResponseRedirect(f"{run.experiment.get_absolute_url()}?version={config.version}")
