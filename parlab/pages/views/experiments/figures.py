"""Figures as JSON for the browser, and their numbers as CSV."""

from __future__ import annotations

import csv
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET

from parlab.charts import theme
from parlab.charts.registry import EXPERIMENT_FIGURES
from parlab.charts.theme import Drawing, Table
from parlab.lab.models import Experiment
from parlab.pages.forms.choices import figure_options
from parlab.pages.reads.experiment_page import chosen_runs
from parlab.pages.reads.runs import ranks
from parlab.pages.views.runs.addressed import find_attempt, find_run
from parlab.publishing.figures import run_curves
from parlab.publishing.figures.catalogue import CURVES, RUN_FIGURES, SERIES, experiment_drawing
from parlab.publishing.figures.chosen_ranks import ranks_in
from parlab.publishing.figures.kinds import with_kinds
from parlab.publishing.figures.windows import WHOLE, Window, window_of
from parlab.publishing.page_parts import DrawnResponse


def _experiment_drawing(request: HttpRequest, slug: str, name: str) -> Drawing:
    figure = EXPERIMENT_FIGURES.get(name)
    if figure is None:
        raise Http404(f"Unknown figure {name}. The figures are {', '.join(EXPERIMENT_FIGURES)}.")
    experiment = get_object_or_404(Experiment, slug=slug)
    return experiment_drawing(figure, chosen_runs(experiment, request.GET), figure_options(request.GET), [experiment])


RANKS = "ranks"
"""The heat map of a run; the address names its measure and node: `?phase=waiting&ranks_of=1`."""


def _run_drawing(request: HttpRequest, slug: str, number: int, name: str, window: Window) -> Drawing:
    if name not in RUN_FIGURES and name not in (SERIES, RANKS):
        raise Http404(f"Unknown figure {name}. The figures are {', '.join([*RUN_FIGURES, SERIES, RANKS])}.")
    run = find_run(slug, number)
    attempt = find_attempt(request, run)
    if attempt is None:
        return theme.nothing("No curves: the published figures do not include any.")
    chosen = ranks_in(request.GET.get("ranks", ""))
    if name == SERIES:
        return run_curves.series(attempt, window, request.GET.getlist("series"), chosen)
    if name in CURVES:
        return CURVES[name](run, attempt, window, chosen)
    if name == RANKS:
        return ranks.drawing(run, attempt, window, request.GET)
    return RUN_FIGURES[name](run, attempt, window)


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
    run = find_run(slug, number)
    table = with_kinds(run, name, _run_drawing(request, slug, number, name, WHOLE).table)
    marks = run.marks
    if marks:
        table = table._replace(header=[*table.header, "marks"], rows=[[*row, ", ".join(marks)] for row in table.rows])
    return csv_response(table, f"{slug}-run-{number}-{name}.csv")


def json_response(drawing: Drawing) -> HttpResponse:
    return DrawnResponse(drawing)


def csv_response(table: Table, filename: str) -> HttpResponse:
    response = HttpResponse(
        content_type="text/csv; charset=utf-8", headers={"Content-Disposition": f'attachment; filename="{filename}"'}
    )
    writer = csv.writer(response)
    writer.writerow([_csv_cell(name) for name in table.header])
    writer.writerows([[_csv_cell(value) for value in row] for row in table.rows])
    return response


def _csv_cell(value: Any) -> Any:
    """Escape texts that a spreadsheet would run as formulas; JSON values become texts."""
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
