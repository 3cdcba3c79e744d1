"""Goodput of a run over its attempts, the interval between checkpoints, and energy."""

from __future__ import annotations

import math
from typing import NamedTuple

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from parlab.advice.goodput import Failures, Goodput, intervals
from parlab.charts.format import duration, quantity, significant
from parlab.ingest.summaries.goodput import Energy, run_goodput
from parlab.lab.selectors.analysis.failures import node_failures
from parlab.pages.reads.runs.recovery import recovery_of

from .addressed import find_run

CHECKPOINT_S = 60.0
KWH_PRICE = 0.1
"""Of electricity, in any currency."""
_JOULES_PER_KWH = 3.6e6
_MOST = 1e9


class Choice(NamedTuple):
    """Cost of a checkpoint, time between failures of a GPU and price of electricity, with what is wrong with them."""

    checkpoint_s: float
    hours: float
    kwh_price: float
    problem: str


def _choice(request: HttpRequest, measured_s: float | None, failures: Failures) -> Choice:
    values, problems = [], []
    hours = failures.gpu_every_s / 3600
    defaults = {"checkpoint_s": measured_s or CHECKPOINT_S, "hours": hours, "kwh_price": KWH_PRICE}
    for name, default in defaults.items():
        text = request.GET.get(name, "").strip()
        try:
            value = float(text) if text else default
        except ValueError:
            value = math.nan
        if not 0 < value < _MOST:
            problems.append(f"{name} {text[:40]!r} is not a number above 0; use for example {default:g}")
            value = default
        values.append(value)
    return Choice(values[0], values[1], values[2], "; ".join(problems))


@require_GET
def run_goodput_page(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Show where the wall time of a run went, over all attempts."""
    run = find_run(slug, number)
    result = run_goodput(run)
    failures = node_failures(run)
    choice = _choice(request, result.checkpoint_s, failures)
    startup_s = result.goodput.seconds("startup") / result.goodput.attempts if result.goodput else 0.0
    rows = [
        [f"{row.gpus:,}", duration(row.failure_every_s), duration(row.young_s), duration(row.daly_s),
         f"{significant(100 * row.lost_share)} %"]
        for row in intervals(choice.checkpoint_s, 3600 * choice.hours, startup_s)
    ]  # fmt: skip
    context = {
        "section": "experiments",
        "experiment": run.experiment,
        "run": run,
        "reason": result.reason,
        "goodput": result.goodput,
        "parts": _part_rows(result.goodput) if result.goodput else [],
        "share": f"{significant(100 * result.goodput.share)} %" if result.goodput else "",
        **_energy_context(result.energy, choice.kwh_price),
        "choice": choice,
        "failures": failures,
        "is_measured": result.checkpoint_s is not None,
        "rows": rows,
    }
    return render(request, "pages/run/run_goodput.html", context)


@require_GET
def run_recovery_part(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Show the interruptions of a run as a part of other pages: a log may have to be searched for them."""
    return render(request, "pages/run/recovery.html", {"recovery": recovery_of(find_run(slug, number))})


def _part_rows(result: Goodput) -> list[list[str]]:
    wall_s = result.wall_s or 1.0
    return [
        [part.title, quantity(part.seconds, "s"), f"{significant(100 * part.seconds / wall_s)} %"]
        for part in result.parts
        if part.seconds > 0
    ]


def _energy_context(energy: Energy | None, kwh_price: float) -> dict[str, object]:
    """Return what the section about energy shows; empty without counters."""
    if energy is None:
        return {}
    rows = [[f"Rank {rank}: GPU", f"{watts:.1f} W"] for rank, watts in energy.watts.items()]
    rows += [[f"Node {node}: processors and memory", f"{watts:.1f} W"] for node, watts in energy.node_watts.items()]
    kwh = energy.joules / _JOULES_PER_KWH
    return {
        "energy_rows": rows,
        "joules": quantity(energy.joules, "J"),
        "joules_per_token": quantity(energy.joules_per_token, "J") if energy.joules_per_token else "",
        "kwh": significant(kwh),
        "energy_cost": significant(kwh * kwh_price),
        "has_processors": bool(energy.node_watts),
    }
