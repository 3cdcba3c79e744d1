"""The head that all tabs of a run share: state, progress, numbers, the step as a bar, or what went wrong."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.text import Truncator
from django.views.decorators.http import require_GET

from parlab.fleet import services as fleet
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.findings import run_doubts, run_findings
from parlab.lab.selectors.lists import RunMarks, run_marks
from parlab.lab.selectors.runs import remaining_s
from parlab.pages.reads.runs.siblings import has_siblings
from parlab.pages.reads.runs.step_bars import run_step, unit_chips
from parlab.pages.rows.attempts import attempt_strip_of
from parlab.pages.rows.run_heads import facts_text, head_numbers, progress_of
from parlab.pages.rows.run_problems import run_problem
from parlab.pages.views.partial import UNCHANGED
from parlab.publishing.figures import engine_measurements
from runners.config import digest

from .addressed import find_attempt, find_run
from .details import details_context

TABS = (
    ("run", "Charts"),
    ("run-time", "Time"),
    ("run-ranks", "Ranks"),
    ("run-system", "System"),
    ("run-log", "Log"),
    ("run-details", "Details"),
)
"""Name of the URL, and title."""
_LONGEST_LABEL = 60
_WITH_STEP = ("run", "run-time")
"""Tabs that show the step as a bar."""


def page_context(request: HttpRequest, run: Run, attempt: Attempt | None, tab: str) -> dict[str, Any]:
    """Return what the page shows around a tab."""
    return {
        **head_context(run, attempt, tab),
        "tab": tab,
        "tabs": _tabs(run, attempt, tab),
        "marks": run_marks([run.pk]).get(run.pk, RunMarks()),
        "next": request.get_full_path(),
    }


def _tabs(run: Run, attempt: Attempt | None, opened: str) -> list[tuple[str, str]]:
    """Return the tabs of a run: one GPU has no ranks, and figures without an attempt have charts only beside others."""
    absent = {"run-ranks", "run-system", "run-log"} if attempt is None else set()
    absent |= {"run"} if attempt is None and run.is_final and opened != "run" and not has_siblings(run) else set()
    absent |= {"run-ranks"} if run.gpus == 1 and opened != "run-ranks" else set()
    return [tab for tab in TABS if tab[0] not in absent]


def head_context(run: Run, attempt: Attempt | None, tab: str) -> dict[str, Any]:
    """Return the part of the page that changes with every step."""
    waiting = fleet.waiting_reasons([run]).get(run.pk, "")
    step = attempt.last_step if attempt else None
    findings = run_findings(run)
    asked = f"{'c' if run.cancel_requested_at else ''}{'e' if run.chain_ended_at else ''}"
    state_seen = f"{run.state}-{run.attempt_number}-{asked}"
    # The log and the memory curve also grow before the first step and between steps.
    committed = attempt.committed if attempt else 0
    finding_states = [[finding.pk, finding.is_acknowledged] for finding in findings]
    changing = [state_seen, finding_states, step, committed, run.summary.get("step_time_s"), run.reason, waiting]
    return {
        "section": "experiments",
        "experiment": run.experiment,
        "run": run,
        "attempt": attempt,
        "waiting": waiting or run.reason,
        "label": Truncator(run.shown_label).chars(_LONGEST_LABEL) if _has_label(run) else "",
        "findings": findings,
        "is_current": attempt is None or attempt.number == run.attempt_number,
        "is_live": not run.is_final,
        "chain": attempt_strip_of(run),
        "state_seen": state_seen,
        "seen": digest(changing)[:16],
        "drawn_from": f"{state_seen}:{committed}",
        **_numbers(run, attempt, dict(run_doubts(findings, [run]).get(run.pk) or {}), has_step=tab in _WITH_STEP),
    }


def _has_label(run: Run) -> bool:
    """Return whether the label of a run says more than its version."""
    return bool(run.point) or run.origin != Run.Origin.MEASURED


def _numbers(run: Run, attempt: Attempt | None, doubts: dict[str, Any], *, has_step: bool) -> dict[str, Any]:
    has_steps = engine_measurements.has_steps(run)
    problem = run_problem(run, attempt)
    is_over = problem is not None and problem.replaces_step
    engine = engine_measurements.engine_context(run, attempt) if not has_steps else {}
    search, step = engine.get("search"), attempt.last_step if attempt else None
    left_s = remaining_s(run, attempt) if attempt and has_steps else None
    return {
        "doubts": doubts,
        "numbers": head_numbers(run, doubts, has_steps=has_steps),
        "facts": facts_text(run, attempt, step if has_steps else None, len(search.trials) if search else None),
        "progress": progress_of(run, step, left_s) if has_steps else None,
        "problem": problem,
        "step": run_step(run) if has_step and has_steps and not is_over else None,
        "unit_answer": "" if is_over else engine.get("engine_summary", ""),
        "unit_chips": unit_chips(run) if has_step and not has_steps and not is_over else [],
    }


@require_GET
def run_live(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Answer a poll; include the details if they are open and the state has changed."""
    run = find_run(slug, number)
    if request.GET.get("current") != str(run.attempt_number):
        # A new attempt has its own log and curves, so the whole page is reloaded.
        return HttpResponse(headers={"HX-Refresh": "true"})
    attempt = find_attempt(request, run)
    tab = request.GET.get("tab", "run")
    context = head_context(run, attempt, tab)
    if request.GET.get("seen") == context["seen"]:
        return HttpResponse(status=UNCHANGED)
    context |= {"tab": tab, "marks": run_marks([run.pk]).get(run.pk, RunMarks())}
    if tab == "run-details" and request.GET.get("state") != context["state_seen"]:
        context |= {**details_context(run, attempt), "with_details": True}
    return render(request, "pages/run/head.html", context)
