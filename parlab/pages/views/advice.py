"""Advice for a run: try it with one click, and its record over all runs."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from parlab.advice.advice import Advice
from parlab.fleet import services as fleet
from parlab.lab import services as lab
from parlab.lab.models import Run
from parlab.lab.selectors.advice import advice_change, advice_records, all_trials, run_advice, tried_advice
from parlab.pages.rows.advice import advice_rows, record_rows, trial_rows
from runners.config import ConfigError

from .addressed import find_run


def advice_context(run: Run) -> dict[str, Any]:
    """Return what the section about advice shows."""
    advised = run_advice(run)
    return {
        "advice": advice_rows(run, advised.advice, advice_records(all_trials())),
        "advice_reason": advised.reason,
        "trials": trial_rows(tried_advice(run)),
    }


@require_POST
@permission_required(["lab.add_run", "lab.add_config"], raise_exception=True)
def advice_try(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Launch the run with the one change of an advice, and record its predicted gain."""
    run = find_run(slug, number)
    title = request.POST.get("title", "")
    advice = next((row for row in run_advice(run).advice if row.title == title and row.settings), None)
    if advice is None or run.origin != Run.Origin.MEASURED:
        messages.error(request, f"Nothing was launched: {title[:80]!r} is no longer advised for run {number}.")
        return redirect("run-time", slug, number)
    try:
        changed_run = _launched(run, advice, cast(User, request.user))
    except ConfigError as error:
        messages.error(request, f"Nothing was launched: {error}.")
        return redirect("run-time", slug, number)
    messages.success(request, f"Launched run {changed_run.number}: {advice.title}. Its gain will appear here.")
    return redirect("run-time", slug, number)


@transaction.atomic
def _launched(run: Run, advice: Advice, user: User) -> Run:
    config = lab.advice_config_save(run=run, advice=advice, data=advice_change(run, advice), user=user)
    created = fleet.launch(config=config, user=user).created
    changed_run = created[0] if created else config.runs.order_by("number")[0]
    lab.advice_trial_add(run=run, changed_run=changed_run, advice=advice, user=user)
    return changed_run


@require_GET
def score(request: HttpRequest) -> HttpResponse:
    """Show how good all tried advice was, by kind, with every trial."""
    trials = all_trials()
    context = {
        "section": "experiments",
        "records": record_rows(advice_records(trials)),
        "trials": trial_rows(trials[:500]),
        "count": len(trials),
    }
    return render(request, "pages/advice.html", context)
