"""Goodput of a run over its attempts, the interval between checkpoints, and energy."""

from __future__ import annotations

import math
from typing import NamedTuple

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from parlab.advice.goodput import Goodput, intervals
from parlab.charts.format import duration, quantity, significant
from parlab.ingest.goodput import run_goodput

from .addressed import find_run

FAILURE_HOURS = 50_000.0
"""Of one GPU: 419 unexpected interruptions in 54 days of 16,384 GPUs (Llama 3, arXiv:2407.21783)."""
CHECKPOINT_S = 60.0
_MOST = 1e9


class Choice(NamedTuple):
    """Cost of a checkpoint and time between failures of a GPU, with what is wrong with a request."""

    checkpoint_s: float
    hours: float
    problem: str


def _choice(request: HttpRequest, measured_s: float | None) -> Choice:
    values, problems = [], []
    for name, default in (("checkpoint_s", measured_s or CHECKPOINT_S), ("hours", FAILURE_HOURS)):
        text = request.GET.get(name, "").strip()
        try:
            value = float(text) if text else default
        except ValueError:
            value = math.nan
        if not 0 < value < _MOST:
            problems.append(f"{name} {text[:40]!r} is not a number above 0; use for example {default:g}")
            value = default
        values.append(value)
    return Choice(values[0], values[1], "; ".join(problems))


@require_GET
def run_goodput_page(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Show where the wall time of a run went, over all attempts."""
    run = find_run(slug, number)
    result = run_goodput(run)
    choice = _choice(request, result.checkpoint_s)
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
        "energy": result.energy,
        "energy_rows": [[str(rank), f"{watts:.1f} W"] for rank, watts in result.energy.watts.items()]
        if result.energy
        else [],
        "joules": quantity(result.energy.joules, "J") if result.energy else "",
        "joules_per_token": quantity(result.energy.joules_per_token, "J")
        if result.energy and result.energy.joules_per_token
        else "",
        "choice": choice,
        "is_measured": result.checkpoint_s is not None,
        "rows": rows,
    }
    return render(request, "pages/run_goodput.html", context)


def _part_rows(result: Goodput) -> list[list[str]]:
    wall_s = result.wall_s or 1.0
    return [
        [part.title, quantity(part.seconds, "s"), f"{significant(100 * part.seconds / wall_s)} %"]
        for part in result.parts
        if part.seconds > 0
    ]
