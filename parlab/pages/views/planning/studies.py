"""Studies: list and form, live page, figures, report."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.db.models import F
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from parlab.charts.svg import Svg
from parlab.charts.sweeps import studies as charts
from parlab.charts.sweeps.trials import TrialBar, trials
from parlab.charts.theme import Drawing
from parlab.lab.models import Attempt, Config
from parlab.lab.selectors import runs as runs_selectors
from parlab.pages.reads.planning.carried import carried_plan
from parlab.pages.views.experiments.figures import csv_response, json_response
from parlab.pages.views.partial import UNCHANGED
from parlab.tuner import services
from parlab.tuner.forms import StudyForm
from parlab.tuner.models import Study
from parlab.tuner.results import (
    Contender,
    Result,
    Tried,
    described_course,
    described_trials,
    result_of,
    results_of,
    side_by_side,
)
from parlab.tuner.spaces import described_settings
from parlab.tuner.text import METRICS, clock, hardware_line, model_lines, result_markdown
from parlab.whole_numbers import whole_number
from runners.config import ConfigError, digest, engine_names, engine_of

STUDIES_SHOWN = 100
LONGEST_SEARCH = 200
ACTIONS = {
    "pause": (services.study_pause, "Paused. The active run continues; no more runs are launched."),
    "resume": (services.study_resume, "Resumed."),
    "cancel": (services.study_cancel, "Cancelled. Measurements are kept."),
}


@require_GET
def studies(request: HttpRequest) -> HttpResponse:
    """Show the form to start a study, and the studies, newest first."""
    searched = {name: request.GET.get(f"find-{name}", "")[:LONGEST_SEARCH] for name in ("config", "baseline")}
    form = StudyForm(initial=_initial_values(request.GET), searched=searched)
    carried = carried_plan(request.GET.get("plan", ""))
    return render(request, "pages/plan/studies.html", {**_list_context(form), "carried": carried})


def _initial_values(stated: QueryDict) -> dict[str, Any]:
    """Return the configuration named in a link, and as its baseline a version of the experiment with another engine.

    While one searches for another, the address also has the baseline.
    """
    config = _stated_config(stated.get("config", ""))
    if "baseline" in stated:
        return {"config": config, "baseline": _stated_config(stated.get("baseline", ""))}
    if config is None:
        return {}
    trained = config.experiment.configs.filter(
        data__parallel__engine__in=engine_names(lambda row: row.may_be_a_baseline)
    )
    others = trained.exclude(data__parallel__engine=engine_of(config.data).name)
    return {"config": config, "baseline": others.order_by("-version").first()}


def _stated_config(key: str) -> Config | None:
    pk = whole_number(key)
    return Config.objects.filter(pk=pk).first() if pk is not None else None


def _list_context(form: StudyForm) -> dict[str, Any]:
    studies = Study.objects.select_related("config__experiment", "created_by", "driver")[:STUDIES_SHOWN]
    return {"section": "tune", "results": results_of(list(studies)), "form": form}


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def start(request: HttpRequest) -> HttpResponse:
    """Start a study, or show the errors of the form."""
    form = StudyForm(request.POST)
    if form.is_valid():
        try:
            study = services.study_create(user=cast(User, request.user), **form.cleaned_data)
        except (ValueError, ConfigError) as problem:
            form.add_error(None, f"Not started: {problem}.")
        else:
            messages.success(request, "Study started. Each trial is an ordinary run; results appear here.")
            return redirect(study)
    return render(request, "pages/plan/studies.html", _list_context(form), status=422)


@require_GET
def study(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "pages/plan/study.html", _context(_find(pk)))


@require_GET
def live(request: HttpRequest, pk: int) -> HttpResponse:
    """Answer a poll with the live part, or nothing if it has not changed."""
    context = _context(_find(pk))
    if request.GET.get("seen") == context["seen"]:
        return HttpResponse(status=UNCHANGED)
    return render(request, "pages/plan/study_live.html", context)


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def act(request: HttpRequest, pk: int, action: str) -> HttpResponse:
    study = _find(pk)
    if action not in ACTIONS:
        raise Http404(f"unknown action {action}; use one of {', '.join(ACTIONS)}")
    service, message = ACTIONS[action]
    if service(study=study):
        messages.success(request, message)
    else:
        messages.info(request, f"The study is {study.state}.")
    return redirect(study)


@require_GET
def report(_request: HttpRequest, pk: int) -> HttpResponse:
    """Return the result as a Markdown document."""
    response = HttpResponse(result_markdown(result_of(_find(pk))), content_type="text/markdown; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="study-{pk}.md"'
    return response


@require_GET
def figure_json(_request: HttpRequest, pk: int, name: str) -> HttpResponse:
    return json_response(_drawing(_find(pk), name))


@require_GET
def figure_csv(_request: HttpRequest, pk: int, name: str) -> HttpResponse:
    return csv_response(_drawing(_find(pk), name).table, f"study-{pk}-{name}.csv")


def _find(pk: int) -> Study:
    return get_object_or_404(
        Study.objects.select_related("config__experiment", "created_by", "baseline", "driver__experiment"), pk=pk
    )


def _drawing(study: Study, name: str) -> Drawing:
    result = result_of(study)
    described = described_trials(result)
    if name == "progress":
        others = [contender.result for contender in side_by_side(study) if contender.result.study != study]
        return charts.progress(described, result.unit, [described_course(other) for other in others])
    if name == "expected":
        return charts.expected(described, result.unit)
    if name == "space":
        return charts.space(described_settings(study), described, result.unit)
    raise Http404(f"unknown figure {name}; use one of progress, expected, space")


class ActiveTrial(NamedTuple):
    """A trial that runs now, with its progress."""

    row: Tried
    step: int | None
    remaining_s: float | None
    ends_at: datetime | None


def _active_trials(result: Result) -> list[ActiveTrial]:
    """Return the trials whose runs are active, each with its step and expected end."""
    active = [row for row in result.tried if not row.run.is_final]
    attempts = {
        attempt.run_id: attempt
        for attempt in Attempt.objects.filter(
            run__in=[row.run.pk for row in active], number=F("run__attempt_number")
        ).only("run_id", "last_step", "started_at", "summary")
    }
    running = []
    for row in active:
        attempt = attempts.get(row.run.pk)
        left = runs_selectors.remaining_s(row.run, attempt) if attempt else None
        ends_at = timezone.now() + timedelta(seconds=left) if left is not None else None
        running.append(ActiveTrial(row, attempt.last_step if attempt else None, left, ends_at))
    return running


def _trials_picture(result: Result) -> Svg | None:
    """Draw the trials so far; None before the first."""
    best = result.best
    bars = [
        TrialBar(
            row.trial.number,
            row.trial.key,
            row.trial.role,
            row.run.state,
            row.value,
            row.trial.expected,
            row.run.get_absolute_url(),
            best is not None and row.trial.pk == best.trial.pk,
        )
        for row in result.tried
    ]
    others = len(result.tried) - len(result.search)
    # A study that has ended makes no more launches.
    places = 0 if result.study.has_ended else others + min(result.study.max_launches, len(result.search) + 4)
    return trials(bars, result.unit, places) if bars else None


def _context(study: Study) -> dict[str, Any]:
    result, contenders = result_of(study), side_by_side(study)
    active = _active_trials(result) if not study.has_ended else []
    states = [(row.trial.pk, row.run.state, row.value) for row in result.tried]
    ended = sum(row.run.is_final for row in result.tried)
    return {
        "section": "tune",
        "study": study,
        "result": result,
        "picture": _trials_picture(result),
        "tuning_time": clock(result.tuning_time),
        "active": active,
        "improvements": _improvements(result),
        "contenders": contenders if len(contenders) > 1 else [],
        "model": ", ".join(model_lines(result)),
        "hardware": hardware_line(result),
        "metrics": METRICS,
        "is_live": study.state in (Study.State.RUNNING, Study.State.PAUSED),
        "drawn_from": f"{ended}:{len(result.tried)}",
        "seen": digest([study.state, study.reason, states, [trial.step for trial in active], *_others(contenders)])[
            :16
        ],
    }


def _others(contenders: list[Contender]) -> list[Any]:
    """Return what the page shows of other studies and changes over time."""
    return [
        [contender.result.study.pk, contender.result.study.state, len(contender.result.search), contender.off]
        for contender in contenders
    ]


def _improvements(result: Result) -> list[tuple[str, float]]:
    named = [(name, result.improvement_over(name)) for name in ("baseline", "hand-tuned")]
    return [(name, factor) for name, factor in named if factor is not None]
