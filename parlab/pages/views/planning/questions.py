"""Questions about a cluster, and their answers."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from parlab.fleet.questions.catalogue import QUESTIONS
from parlab.fleet.questions.form import PRESETS, Question
from parlab.fleet.questions.launch import question_launch
from parlab.lab.forms.config_layout import shown_label
from parlab.lab.models import Experiment
from parlab.lab.services.runs import launchable, point_label
from parlab.pages.reads.planning.carried import carried_plan
from runners.config import Point, expand

ASKED_SHOWN = 12
POINTS_SHOWN = 12


@require_GET
def questions(request: HttpRequest) -> HttpResponse:
    """List the available questions and the recent ones."""
    is_question = Q()
    for question in QUESTIONS.values():
        is_question |= Q(question=question.heading)
    recent = Experiment.objects.filter(is_question).select_related("owner").defer("notes", "source")[:ASKED_SHOWN]
    carried = carried_plan(request.GET.get("plan", ""))
    context = {"section": "questions", "questions": QUESTIONS, "asked": recent, "carried": carried}
    return render(request, "pages/plan/questions.html", context)


def _find(key: str) -> type[Question]:
    if key not in QUESTIONS:
        raise Http404(f"unknown question {key}; use one of {', '.join(QUESTIONS)}")
    return QUESTIONS[key]


@require_http_methods(["GET", "POST"])
@permission_required("lab.add_run", raise_exception=True)
def ask(request: HttpRequest, key: str) -> HttpResponse:
    """Show the form of a question; on POST, create an experiment, launch it and redirect to its answer."""
    kind = _find(key)
    if request.method == "POST":
        form = kind(request.POST)
        if form.is_valid():
            return _launch(request, form)
    else:
        preset = request.GET.get("model", "small")
        values = PRESETS.get(preset, PRESETS["small"]).values
        form = kind(initial={name: values[name] for name in kind.model_fields})
    context = {
        "section": "questions",
        "question": kind,
        "key": key,
        "form": form,
        "presets": PRESETS if kind.model_fields else {},
        "model": request.GET.get("model", "small"),
        **_preview(kind, form),
    }
    return render(request, "pages/plan/question.html", context)


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def preview(request: HttpRequest, key: str) -> HttpResponse:
    """Return the planned runs and the errors of a form while the user types."""
    kind = _find(key)
    form = kind(request.POST)
    return render(request, "pages/plan/question_preview.html", {"question": kind, "form": form, **_preview(kind, form)})


def _preview(kind: type[Question], form: Question) -> dict[str, Any]:
    """Return the planned runs, from the default values if the form was not sent."""
    if not form.is_bound:
        names = {name: form[name].value() for name in form.fields}
        form = kind({name: form.fields[name].prepare_value(value) for name, value in names.items()})
    if not form.is_valid():
        return {"problems": form.errors.as_data(), "points": [], "checked": form}
    points = [launchable(point) for point in expand(form.data_of_config(), form.sweep())]
    rows = [
        {"label": shown_label(point_label(point.values)) or _alone(point), "point": point, "ranks": _ranks(point)}
        for point in points[:POINTS_SHOWN]
    ]
    possible = [point for point in points if point.config is not None]
    return {"points": rows, "possible": len(possible), "title": form.title(), "checked": form}


def _alone(point: Point) -> str:
    """Return the label of a single point. A capacity search is one run that starts trials."""
    if point.config is None or not point.config.engine.searches_capacity:
        return "one run"
    # Doubling until the limit is exceeded, then bisection.
    return f"one search with at most {2 * point.config.capacity.at_most.bit_length()} trials"


def _ranks(point: Point) -> int:
    return point.config.world_size if point.config else 0


def _launch(request: HttpRequest, form: Question) -> HttpResponse:
    try:
        experiment, launch = question_launch(form=form, user=cast(User, request.user))
    except ValueError as error:
        messages.error(request, f"Nothing was launched: {error}.")
        return redirect("questions")
    started = len(launch.created)
    messages.success(request, f"Launched {started} {'run' if started == 1 else 'runs'}. The answer appears here.")
    return redirect(experiment)
