"""Advice for a run: try it with one click, and its record over all runs."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from parlab.advice.score import PUBLISHED
from parlab.fleet.trials import advice_launch
from parlab.lab.models import Run
from parlab.lab.selectors.analysis.advice import advice_records, all_trials, run_advice, tried_advice
from parlab.lab.selectors.analysis.sweep_advice import without_measured
from parlab.pages.rows.advice import advice_rows, record_rows, trial_rows
from runners.wire.protocol import RunState

from .addressed import find_run


def advice_context(run: Run, *, is_new: bool = False) -> dict[str, Any]:
    """Return what the section about advice shows; `is_new`: without changes that the experiment has measured."""
    advised = run_advice(run)
    advice = without_measured(run, advised.advice) if is_new else advised.advice
    trials = tried_advice(run)
    rows = advice_rows(run, advice, advice_records(all_trials()))
    return {
        "advice": rows,
        "advice_can_try": any(row.can_try for row in rows),
        "advice_reason": advised.reason,
        "advice_unit": run.unit_name,
        "trials": trial_rows(trials),
        "trials_are_live": any(not RunState(trial.changed_run.state).is_final for trial in trials),
    }


@require_POST
@permission_required(["lab.add_run", "lab.add_config"], raise_exception=True)
def advice_try(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Launch the run with the one change of an advice, and record its predicted gain."""
    run = find_run(slug, number)
    titles = list(dict.fromkeys(request.POST.getlist("title")))
    try:
        launched = advice_launch(run=run, titles=titles, user=cast(User, request.user))
    except ValueError as error:
        messages.error(request, f"Nothing was launched: {error}.")
        return redirect("run-time", slug, number)
    numbers = ", ".join(str(changed_run.number) for changed_run in launched)
    what = f"run {numbers}: {titles[0]}. Its gain" if len(titles) == 1 else f"runs {numbers}. Their gains"
    messages.success(request, f"Launched {what} will appear here.")
    if request.POST.get("from") == "run":
        return redirect(run)
    return redirect(f"{reverse('run-time', args=(slug, number))}#advice")


@require_GET
def score(request: HttpRequest) -> HttpResponse:
    """Show how good all tried advice was, by kind, with every trial."""
    trials = all_trials()
    context = {
        "section": "experiments",
        "records": record_rows(advice_records(trials)),
        "published": record_rows(PUBLISHED),
        "trials": trial_rows(trials[:500]),
        "count": len(trials),
    }
    return render(request, "pages/advice/advice.html", context)
