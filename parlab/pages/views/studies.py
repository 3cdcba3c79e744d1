"""Studies: the list with the form that starts one, a study that is watched live, its figures and its report."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from parlab.charts import studies as charts
from parlab.charts.theme import Drawing
from parlab.lab.models import Config
from parlab.pages.templatetags.studies import studies_context
from parlab.tuner import services
from parlab.tuner.forms import StudyForm
from parlab.tuner.models import Study
from parlab.tuner.results import (
    Contender,
    Result,
    described_course,
    described_trials,
    result_of,
    results_of,
    side_by_side,
)
from parlab.tuner.spaces import described_settings
from parlab.tuner.text import METRICS, clock, hardware_line, model_lines, result_markdown
from runners.config import ConfigError, digest, engine_names

from .figures import csv_response, json_response
from .partial import UNCHANGED

STUDIES_SHOWN = 100
ACTIONS = {
    "pause": (services.study_pause, "Paused. The run that goes on now is kept; nothing more is launched."),
    "resume": (services.study_resume, "Resumed where it stopped."),
    "cancel": (services.study_cancel, "Cancelled. What was measured stays."),
}


@require_GET
def now(request: HttpRequest) -> HttpResponse:
    """Answer the home page's poll with the studies that run or ended lately, or nothing where nothing changed."""
    context = studies_context()
    if request.GET.get("seen") == context["seen"]:
        return HttpResponse(status=UNCHANGED)
    return render(request, "pages/home_studies.html", context)


@require_GET
def studies(request: HttpRequest) -> HttpResponse:
    """List the studies, newest first, beside the form that starts one."""
    form = StudyForm(initial=_asked_for(request.GET.get("config", "")))
    return render(request, "pages/studies.html", _list_context(form))


def _asked_for(key: str) -> dict[str, Any]:
    """The configuration that a link names, and a version of the same experiment with another engine as its baseline."""
    config = Config.objects.filter(pk=int(key)).first() if key.isdecimal() and len(key) < 12 else None
    if config is None:
        return {}
    trained = config.experiment.configs.filter(
        data__parallel__engine__in=engine_names(lambda row: row.may_be_a_baseline)
    )
    others = trained.exclude(data__parallel__engine=config.data["parallel"]["engine"])
    return {"config": config, "baseline": others.order_by("-version").first()}


def _list_context(form: StudyForm) -> dict[str, Any]:
    found = Study.objects.select_related("config__experiment", "created_by", "driver")[:STUDIES_SHOWN]
    return {"section": "tune", "results": results_of(list(found)), "form": form}


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def start(request: HttpRequest) -> HttpResponse:
    """Start a study, or show what is wrong with it beside the fields."""
    form = StudyForm(request.POST)
    if form.is_valid():
        try:
            study = services.study_create(user=cast(User, request.user), **form.cleaned_data)
        except (ValueError, ConfigError) as problem:
            form.add_error(None, f"Not started: {problem}.")
        else:
            messages.success(request, "Started. Each trial is an ordinary run; the result grows here.")
            return redirect(study)
    return render(request, "pages/studies.html", _list_context(form), status=422)


@require_GET
def study(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "pages/study.html", _context(_find(pk)))


@require_GET
def live(request: HttpRequest, pk: int) -> HttpResponse:
    """Answer a poll with the part that changes, or nothing where nothing did."""
    context = _context(_find(pk))
    if request.GET.get("seen") == context["seen"]:
        return HttpResponse(status=UNCHANGED)
    return render(request, "pages/study_live.html", context)


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def act(request: HttpRequest, pk: int, action: str) -> HttpResponse:
    found = _find(pk)
    if action not in ACTIONS:
        raise Http404(f"no action {action}; there are {', '.join(ACTIONS)}")
    service, said = ACTIONS[action]
    if service(study=found):
        messages.success(request, said)
    else:
        messages.info(request, f"Nothing to do: the study is {found.state}.")
    return redirect(found)


@require_GET
def report(_request: HttpRequest, pk: int) -> HttpResponse:
    """Answer with the result as a Markdown document."""
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


def _drawing(found: Study, name: str) -> Drawing:
    result = result_of(found)
    trials = described_trials(result)
    if name == "progress":
        others = [each.result for each in side_by_side(found) if each.result.study != found]
        return charts.progress(trials, result.unit, [described_course(other) for other in others])
    if name == "expected":
        return charts.expected(trials, result.unit)
    if name == "space":
        return charts.space(described_settings(found), trials, result.unit)
    raise Http404(f"no figure {name}; there are progress, expected, space")


def _context(found: Study) -> dict[str, Any]:
    result, contenders = result_of(found), side_by_side(found)
    states = [(each.trial.pk, each.run.state, each.value) for each in result.tried]
    ended = sum(each.run.is_final for each in result.tried)
    return {
        "section": "tune",
        "study": found,
        "result": result,
        "tuning_time": clock(result.tuning_time),
        "improvements": _improvements(result),
        "contenders": contenders if len(contenders) > 1 else [],
        "model": ", ".join(model_lines(result)),
        "hardware": hardware_line(result),
        "metrics": METRICS,
        "is_live": found.state in (Study.State.RUNNING, Study.State.PAUSED),
        "drawn_from": f"{ended}:{len(result.tried)}",
        "seen": digest([found.state, found.reason, states, *_others(contenders)])[:16],
    }


def _others(contenders: list[Contender]) -> list[Any]:
    """What a page shows of other studies, so far as it changes."""
    return [[each.result.study.pk, each.result.study.state, len(each.result.search), each.off] for each in contenders]


def _improvements(result: Result) -> list[tuple[str, float]]:
    named = [(name, result.improvement_over(name)) for name in ("baseline", "hand-tuned")]
    return [(name, factor) for name, factor in named if factor is not None]
