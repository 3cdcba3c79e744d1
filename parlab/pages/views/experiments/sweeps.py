"""The sweep builder: a page for a new experiment or the next version of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from parlab.fleet import services as fleet
from parlab.lab.forms.presets import PRESETS
from parlab.lab.models import Config, Experiment
from parlab.lab.services.configs import Superseded, config_save
from parlab.lab.services.experiments import experiment_create
from parlab.pages.builder.checked import Checked, checked
from parlab.pages.builder.draft import IN_ADDRESS, Draft
from parlab.pages.builder.page import builder_context
from parlab.pages.builder.pasting import paste
from parlab.pages.forms.plan_drafts import plan_draft
from parlab.whole_numbers import whole_number
from runners.config import ENGINES, ConfigError, Problem

_FIRST_PRESET = "pipeline"
_PRECONDITION_FAILED, _UNPROCESSABLE = 412, 422
_LONGEST_ADDRESS = 6_000
"""Characters that proxies and servers accept."""
_SAVES = ("save", "launch", "save-anyway", "launch-anyway")


@require_http_methods(["GET", "POST"])
@permission_required("lab.add_config", raise_exception=True)
def new(request: HttpRequest) -> HttpResponse:
    """Build the sweep of a new experiment."""
    if not request.user.has_perm("lab.add_experiment"):
        raise PermissionDenied
    return _build(request, None)


@require_http_methods(["GET", "POST"])
@permission_required("lab.add_config", raise_exception=True)
def edit(request: HttpRequest, slug: str) -> HttpResponse:
    """Build the next version of an experiment's sweep."""
    return _build(request, get_object_or_404(Experiment, slug=slug))


def _build(request: HttpRequest, experiment: Experiment | None) -> HttpResponse:
    latest = experiment.configs.order_by("-version").first() if experiment else None
    if request.method == "GET":
        return _page(request, _first_draft(request, experiment, latest), experiment, latest)
    draft = Draft.of_post(request.POST)
    action, _, argument = request.POST.get("act", "refresh").partition(":")
    if action in _SAVES:
        return _save(request, draft, experiment, latest, action)
    if action == "points":
        context = builder_context(draft, experiment=experiment, latest=latest)
        answer = render(request, "pages/builder/sweep_points.html", context | {"is_update": True})
        return _in_history(request, answer, draft, draft)
    changed, summary, problems, focus = _changed(draft, action, argument, request)
    answer = _page(request, changed, experiment, latest, summary=summary, problems=problems, focus=focus)
    return _in_history(request, answer, draft, changed)


def _in_history(request: HttpRequest, answer: HttpResponse, before: Draft, after: Draft) -> HttpResponse:
    """Give a change by a button its own entry in the browser's history, so that Back undoes it.

    What is typed changes the address of the present entry, to which Back then returns.
    """
    address = f"{request.path}?{after.query()}"
    if len(address) <= _LONGEST_ADDRESS:
        answer.headers["HX-Replace-Url" if after == before else "HX-Push-Url"] = address
    return answer


def _first_draft(request: HttpRequest, experiment: Experiment | None, latest: Config | None) -> Draft:
    """Return the draft that the page opens with: one in the address, a version, a preset, or the first preset."""
    if IN_ADDRESS in request.GET:
        return Draft.of_post(request.GET)
    number = request.GET.get("version", "")
    config = experiment.configs.filter(version=number).first() if experiment and _is_number(number) else latest
    if config is not None:
        return Draft.of_config(config)
    if request.GET.get("plan"):
        return plan_draft(request)
    engine = request.GET.get("engine", "")
    preset = PRESETS.get(request.GET.get("preset", ""), PRESETS[_FIRST_PRESET])
    draft = Draft.of_preset(preset)
    return draft.with_engine(engine) if engine in ENGINES else draft


def _is_number(text: str) -> bool:
    """Whether a text is a number that a database can compare."""
    return whole_number(text, 9) is not None


def _changed(draft: Draft, action: str, argument: str, request: HttpRequest) -> tuple[Draft, str, list[Problem], str]:
    """Apply an action to a draft; returns the draft, a sentence, problems, and the id of the input to focus."""
    path, _, rest = argument.partition(":")
    axis_id, field_id = f"a-{path.replace('.', '-')}", f"f-{path.replace('.', '-')}"
    if action == "preset" and request.POST.get("preset") in PRESETS:
        preset = PRESETS[request.POST["preset"]]
        return draft.with_content(Draft.of_preset(preset)), f"Filled with the preset {preset.title}.", [], "preset"
    if action == "engine" and request.POST.get("parallel.engine") in ENGINES:
        engine = request.POST["parallel.engine"]
        return draft.with_engine(engine), f"Engine {engine}: a small configuration to start from.", [], "f-engine"
    if action == "paste":
        pasting = paste(draft)
        return pasting.draft, pasting.summary, pasting.problems, "pasted"
    if action == "vary":
        return draft.vary(path), "", [], axis_id
    if action == "fix":
        return draft.fix(path), "", [], field_id
    if action == "add":
        return draft.add(path, rest), "", [], axis_id
    if action == "drop" and (place := whole_number(rest)) is not None:
        return draft.drop(path, place), "", [], axis_id
    if action == "up":
        return draft.move(path), "", [], axis_id
    return draft, "", [], request.POST.get("focus", "")


def _page(
    request: HttpRequest,
    draft: Draft,
    experiment: Experiment | None,
    latest: Config | None,
    *,
    summary: str = "",
    problems: Sequence[Problem] = (),
    focus: str = "",
    **more: Any,
) -> HttpResponse:
    context = builder_context(draft, experiment=experiment, latest=latest, problems=problems)
    context |= {"section": "experiments", "summary": summary, "focus": focus, "here": request.path}
    # What the form was based on stays until it is saved, however often its parts are drawn again.
    context |= {
        "seen": request.POST.get("seen-digest", latest.digest if latest else ""),
        "as_next": "as-next" in request.POST,
        **more,
    }
    if problems and any(problem.field == "pasted" for problem in problems):
        context["pasted_text"] = draft.pasted
    template = "pages/builder/sweep_form.html" if _is_part(request) else "pages/builder/sweep.html"
    status = 200 if _is_part(request) else more.get("status", 200)
    return render(request, template, context, status=status)


def _is_part(request: HttpRequest) -> bool:
    return request.headers.get("HX-Request") == "true"


def _save(
    request: HttpRequest, draft: Draft, experiment: Experiment | None, latest: Config | None, action: str
) -> HttpResponse:
    """Save what stands in the form, and launch it if asked; otherwise show what prevents it."""
    reading = checked(draft)
    problems = [] if experiment or draft.name else [Problem("name", "", "the experiment needs a name; enter one")]
    if problems or reading.problems:
        return _page(request, draft, experiment, latest, problems=problems, status=_UNPROCESSABLE, focus="mistakes")
    if reading.impossible and not action.endswith("-anyway"):
        return _page(request, draft, experiment, latest, asks=action, focus="anyway")
    user = cast(User, request.user)
    launches = action.startswith("launch")
    if launches and not user.has_perm("lab.add_run"):
        raise PermissionDenied
    try:
        config, started = _saved(request, draft, reading, experiment, user, launches=launches)
    except Superseded as conflict:
        more: dict[str, Any] = {
            "conflict": conflict,
            "seen": conflict.latest.digest,
            "as_next": True,
            "status": _PRECONDITION_FAILED,
        }
        return _page(request, draft, experiment, conflict.latest, focus="mistakes", **more)
    except (ConfigError, ValueError) as error:
        own = error.problems if isinstance(error, ConfigError) else [Problem("name", draft.name, str(error))]
        return _page(request, draft, experiment, latest, problems=own, status=_UNPROCESSABLE, focus="mistakes")
    text = f"Saved as v{config.version}."
    if launches:
        text += f" Launched {started} {'run' if started == 1 else 'runs'}." if started else " Every point has a run."
    messages.success(request, text)
    target = reverse("experiment", args=[config.experiment.slug])
    if _is_part(request):
        return HttpResponse(status=204, headers={"HX-Redirect": target})
    return redirect(target)


@transaction.atomic
def _saved(
    request: HttpRequest, draft: Draft, reading: Checked, experiment: Experiment | None, user: User, *, launches: bool
) -> tuple[Config, int]:
    """Save a new experiment or version; returns it with the number of launched runs."""
    owner = experiment or experiment_create(name=draft.name, question=draft.question, owner=user)
    config = config_save(
        experiment=owner,
        data=reading.data,
        sweep=reading.sweep,
        note=draft.note,
        user=user,
        based_on=request.POST.get("seen-digest", ""),
        as_next="as-next" in request.POST,
    )
    return config, len(fleet.launch(config=config, user=user).created) if launches else 0
