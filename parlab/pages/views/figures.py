"""Figures as JSON for the browser, and their numbers as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET

from parlab.charts import bandwidth, capacity, device_map, theme
from parlab.charts.registry import EXPERIMENT_FIGURES
from parlab.charts.telemetry import KINDS
from parlab.charts.theme import Drawing, Table
from parlab.lab import selectors
from parlab.lab.models import Attempt, Experiment, Run
from parlab.pages import engine_reads, experiment_figures, run_curves, telemetry
from parlab.pages.choices import figure_options
from parlab.pages.windows import WHOLE, Window, window_of

from .runs import find_attempt, find_run


def _experiment_drawing(request: HttpRequest, slug: str, name: str) -> Drawing:
    figure = EXPERIMENT_FIGURES.get(name)
    if figure is None:
        raise Http404(f"Unknown figure {name}. The figures are {', '.join(EXPERIMENT_FIGURES)}.")
    experiment = get_object_or_404(Experiment, slug=slug)
    versions = selectors.experiment_versions(experiment, request.GET.get("version", ""))
    runs = selectors.experiment_runs(experiment, versions)
    return experiment_figures.drawing(figure, runs, figure_options(request.GET), [experiment])


def _bandwidth(run: Run, attempt: Attempt, _window: Window) -> Drawing:
    return bandwidth.figure(engine_reads.run_messages([run], [attempt]))


def _capacity(run: Run, attempt: Attempt, _window: Window) -> Drawing:
    search = engine_reads.run_search(run, attempt)
    return capacity.figure(search) if search else theme.nothing("No trials: this run looked for no capacity.")


def _devices(run: Run, _attempt: Attempt, _window: Window) -> Drawing:
    """Only its numbers are asked for: the page draws the map itself."""
    found = device_map.draw(selectors.device_grid(run))
    missing = theme.nothing("No map of devices: this run has no stages and shards.")
    return missing._replace(table=found.table) if found else missing


SERIES = "series"
"""The figure of a run that shows whichever number its address names: `?series=loss`."""

RUN_FIGURES: dict[str, Callable[[Run, Attempt, Window], Drawing]] = {
    "step-time": run_curves.step_time,
    "memory": run_curves.memory,
    "bandwidth": _bandwidth,
    "capacity": _capacity,
    "devices": _devices,
}


def _run_drawing(request: HttpRequest, slug: str, number: int, name: str, window: Window) -> Drawing:
    if name not in RUN_FIGURES and name not in KINDS and name != SERIES:
        raise Http404(f"no figure {name}; there are {', '.join([*RUN_FIGURES, SERIES, *KINDS])}")
    run = find_run(slug, number)
    attempt = find_attempt(request, run)
    if attempt is None:
        return theme.nothing("No curve: these figures were published without one.")
    if name == SERIES:
        return run_curves.series(run, attempt, window, request.GET.get("series", ""))
    return telemetry.drawing(attempt, name, window) if name in KINDS else RUN_FIGURES[name](run, attempt, window)


@require_GET
def experiment_json(request: HttpRequest, slug: str, name: str) -> HttpResponse:
    return json_response(_experiment_drawing(request, slug, name))


@require_GET
def experiment_csv(request: HttpRequest, slug: str, name: str) -> HttpResponse:
    return csv_response(_experiment_drawing(request, slug, name).table, f"{slug}-{name}.csv")


@require_GET
def run_json(request: HttpRequest, slug: str, number: int, name: str) -> HttpResponse:
    return json_response(_run_drawing(request, slug, number, name, window_of(request.GET)))


@require_GET
def run_csv(request: HttpRequest, slug: str, number: int, name: str) -> HttpResponse:
    return csv_response(_run_drawing(request, slug, number, name, WHOLE).table, f"{slug}-run-{number}-{name}.csv")


def json_response(drawing: Drawing) -> HttpResponse:
    return HttpResponse(drawing.to_json(), content_type="application/json")


def csv_response(table: Table, filename: str) -> HttpResponse:
    response = HttpResponse(
        content_type="text/csv; charset=utf-8", headers={"Content-Disposition": f'attachment; filename="{filename}"'}
    )
    writer = csv.writer(response)
    writer.writerow([_cell(name) for name in table.header])
    writer.writerows([[_cell(value) for value in row] for row in table.rows])
    return response


def _cell(value: Any) -> Any:
    """Keep a spreadsheet from running a text as a formula; JSON values become texts."""
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
