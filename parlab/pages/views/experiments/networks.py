"""Iteration times of schedules on networks: measured, emulated, simulated, and the lower bound."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from parlab.charts.sweeps import slowdown
from parlab.charts.sweeps.slowdown import Slowdown
from parlab.charts.theme import Drawing
from parlab.lab.models import Experiment, Run
from parlab.pages.rows.networks import NetworkSweep, network_sweep

from .figures import csv_response, json_response

RATIOS = {"2": "2: no recomputation", "3": "3: full recomputation"}
MAX_RUNS = 2_000

_MESSAGE_BYTES = 2**20
"""Message size by whose transfer time networks are sorted; at this size, delay and rate matter equally."""


def _sweep(experiment: Experiment, request: HttpRequest, *, pick: bool = True) -> NetworkSweep:
    beside = request.GET.get("with", "")
    runs = Run.objects.select_related("experiment").order_by("number")
    selected = list(runs.filter(experiment__slug__in={experiment.slug, beside})[:MAX_RUNS])
    ratio = request.GET.get("ratio", "")
    return network_sweep(selected, float(ratio) if ratio in RATIOS else None, pick=pick)


@require_GET
def network(request: HttpRequest, slug: str) -> HttpResponse:
    experiment = get_object_or_404(Experiment, slug=slug)
    sweep = _sweep(experiment, request)
    beside = request.GET.get("with", "")
    source = request.GET.get("source", "")
    sources = sweep.sources
    return render(
        request,
        "pages/experiments/network.html",
        {
            "section": "experiments",
            "experiment": experiment,
            "sweep": sweep,
            "others": Experiment.objects.exclude(pk=experiment.pk).order_by("name")[:100],
            "beside": beside,
            "ratios": RATIOS,
            "ratio": request.GET.get("ratio", ""),
            "source": source if source in sources else next(iter(sources), ""),
            "address": request.GET.urlencode(),
        },
    )


def _drawing(request: HttpRequest, slug: str) -> Drawing:
    experiment = get_object_or_404(Experiment, slug=slug)
    sweep = _sweep(experiment, request, pick=False)
    source = request.GET.get("source", "")
    source = source if source in sweep.sources else next(iter(sweep.sources), "")
    return slowdown.figure(_cells(sweep, source), source)


def _cells(sweep: NetworkSweep, source: str) -> list[Slowdown]:
    """Return the cells of a source, from the fastest network to the slowest, without schedules that have no values."""
    cells = [
        (
            row.network.link.hop_s(_MESSAGE_BYTES),
            Slowdown(table.title, size, row.network.title, cell.slowdowns.get(source), _seconds(cell, source)),
        )
        for table in sweep.tables
        for row in table.rows
        for size, cell in zip(table.micro_batch_sizes, row.cells, strict=True)
    ]
    columns = {(cell.schedule, cell.micro_batch_size) for _, cell in cells if cell.ratio}
    present = [(hop_s, cell) for hop_s, cell in cells if (cell.schedule, cell.micro_batch_size) in columns]
    return [cell for _, cell in sorted(present, key=lambda item: item[0])]


def _seconds(cell: Any, source: str) -> float | None:
    if source == "simulated":
        return cell.simulated.simulation.iteration_s if cell.simulated else None
    run = getattr(cell, source, None)
    return run.step_time_s if run else None


@require_GET
def slowdown_json(request: HttpRequest, slug: str) -> HttpResponse:
    return json_response(_drawing(request, slug))


@require_GET
def slowdown_csv(request: HttpRequest, slug: str) -> HttpResponse:
    return csv_response(_drawing(request, slug).table, f"{slug}-slowdown.csv")
