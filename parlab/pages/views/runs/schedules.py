"""Choice of a warm-up slope for the network of a run, saved as a configuration."""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from parlab.charts.format import quantity, significant, unit_for
from parlab.lab.models import Config, Run
from parlab.lab.selectors.analysis.pipelines import PipelineRun, Times, pipeline_of, times_of
from parlab.lab.services.schedules import schedule_save
from parlab.pages.rows.networks import simulate_address
from parlab.planner.schedule import Choice, Outcome, Wire, best_schedule

from .addressed import find_run

WIRES: tuple[Wire, ...] = ("same", "bf16")


class _SimulatedRun(NamedTuple):
    pipeline: PipelineRun
    times: Times


def _simulated_run(run: Run) -> _SimulatedRun:
    pipelined = pipeline_of(run)
    times = times_of(pipelined) if pipelined else None
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
    if request.method == "POST":
        return _save(request, run)
    (pipelined, times), choices = _choices(run)
    compared = [outcome for choice in choices for outcome in choice.compared]
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


def _choices(run: Run) -> tuple[_SimulatedRun, list[Choice]]:
    """Return the simulated schedules of a run, per width of messages."""
    pipelined, times = _simulated_run(run)
    pipeline = pipelined._replace(wire="same").pipeline(times.stages, step_s=times.step_s)
    element_bytes = pipelined.shape.number_bytes
    choices = [best_schedule(pipeline, wires=(wire,), element_bytes=element_bytes) for wire in WIRES]
    return _SimulatedRun(pipelined, times), choices


def slopes(run: Run) -> dict[str, Outcome]:
    """Return the simulated schedules of a run by their codes, such as `same:1`. Raises Http404."""
    return {_code(outcome): outcome for choice in _choices(run)[1] for outcome in choice.compared}


def _code(outcome: Outcome) -> str:
    return f"{outcome.wire}:{outcome.plan.warmup_slope}"


def _seconds(outcome: Outcome) -> float:
    return outcome.simulation.iteration_s


def _save(request: HttpRequest, run: Run) -> HttpResponse:
    try:
        config = slope_save(run=run, code=request.POST.get("choice", ""), user=cast(User, request.user))
    except ValueError as error:
        messages.error(request, f"Nothing was saved: {error}.")
        return redirect("run-schedule", run.experiment.slug, run.number)
    messages.success(request, f"Saved as version {config.version}: {config.note}. Launch it to check the prediction.")
    return HttpResponseRedirect(f"{run.experiment.get_absolute_url()}?version={config.version}")


def slope_save(*, run: Run, code: str, user: User) -> Config:
    """Save a schedule of `slopes` as the next configuration. Raises ValueError with a remedy."""
    simulated = _SimulatedRun(*_simulated_run(run))
    chosen = slopes(run).get(code)
    if chosen is None:
        raise ValueError("no such slope; select a slope")
    wire = cast(Literal["same", "bf16"], chosen.wire)
    slope = chosen.plan.warmup_slope
    note = (
        f"Slope {slope}{'' if wire == 'same' else ' with 16-bit messages'} for {simulated.pipeline.network_title}:"
        f" simulated {quantity(_seconds(chosen), 's')}, {chosen.held} micro batches in flight,"
        f" {significant(100 * chosen.gap_to_bound)} % above the bound"
    )
    return schedule_save(
        run=run,
        slope=slope,
        wire=wire,
        note=note,
        user=user,
        link=simulated.pipeline.network.link,
        times=simulated.times.stages,
        step_s=simulated.times.step_s,
    )
