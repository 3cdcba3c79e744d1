"""Actions on selected runs: tag, star, archive, restore, delete, cancel, relaunch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.html import format_html
from django.views.decorators.http import require_POST

from parlab.fleet import services as fleet
from parlab.lab.models import Run
from parlab.lab.services.access.rights import may_change, may_work, refusal, require_work
from parlab.lab.services.archive import runs_archive, runs_contents, runs_delete, runs_restore
from parlab.lab.services.marks import runs_star, runs_tag, runs_unstar, runs_untag

from .lists import back, chosen_ids, counted, undo_form


class Action(NamedTuple):
    """An action on runs and the permission that it needs."""

    permission: str
    act: Callable[[HttpRequest, Sequence[Run]], None]


def _selected(request: HttpRequest) -> list[Run]:
    ids = chosen_ids(request, "run")
    return list(Run.everything.select_related("experiment").filter(pk__in=ids).order_by("pk"))


@require_POST
def runs_change(request: HttpRequest) -> HttpResponse:
    """Apply an action to the selected runs, and report each refusal."""
    runs = _selected(request)
    name = request.POST.get("action", "")
    if name == "delete" and runs:
        return delete(request)
    action = ACTIONS.get(name)
    if not runs or action is None:
        messages.info(request, "Nothing was changed: select runs and an action.")
        return back(request)
    if not request.user.has_perm(action.permission):
        raise PermissionDenied(f"this needs the permission {action.permission}")
    may = may_change if name in _OF_OWNERS else may_work
    refused = [run for run in runs if not may(request.user, run)]
    if len(refused) == len(runs):
        raise PermissionDenied(refusal(request.user, runs[0]))
    if refused:
        messages.error(request, f"{counted(len(refused), 'run')} not changed: {refusal(request.user, refused[0])}.")
    try:
        action.act(request, [run for run in runs if run not in refused])
    except ValueError as error:
        messages.error(request, f"Nothing was changed: {error}.")
    return back(request)


def _each(request: HttpRequest, runs: Sequence[Run], act: Callable[[Run], object], outcome: str) -> None:
    """Apply an action run by run; one refusal does not stop the others."""
    done, refused = 0, []
    for run in runs:
        try:
            act(run)
            done += 1
        except ValueError as error:
            refused.append(str(error))
    if done:
        messages.success(request, f"{counted(done, 'run')} {outcome}.")
    if refused:
        more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
        messages.error(request, f"Not changed: {'; '.join(refused[:3])}{more}.")


def _cancel(request: HttpRequest, runs: Sequence[Run]) -> None:
    _each(request, runs, lambda run: fleet.cancel(run=run), "cancelled or stopping")


def _relaunch(request: HttpRequest, runs: Sequence[Run]) -> None:
    user = cast(User, request.user)
    _each(request, runs, lambda run: fleet.relaunch(run=run, user=user), "queued again")


def _tag(request: HttpRequest, runs: Sequence[Run]) -> None:
    name = request.POST.get("tag", "")
    count = runs_tag(runs=runs, name=name)
    messages.success(request, f"{counted(count, 'run')} tagged {name.strip().lower()}.")


def _untag(request: HttpRequest, runs: Sequence[Run]) -> None:
    name = request.POST.get("tag", "")
    count = runs_untag(runs=runs, name=name)
    messages.success(request, f"{counted(count, 'run')} untagged {name.strip().lower()}.")


def _star(request: HttpRequest, runs: Sequence[Run]) -> None:
    runs_star(runs=runs, user=cast(User, request.user))


def _unstar(request: HttpRequest, runs: Sequence[Run]) -> None:
    runs_unstar(runs=runs, user=cast(User, request.user))


def _archive(request: HttpRequest, runs: Sequence[Run]) -> None:
    ids, active = runs_archive(runs=runs)
    if ids:
        message = format_html("{} archived: tables and figures leave them out. ", counted(len(ids), "run"))
        messages.success(request, message + undo_form(request, "restore", ids, name="run", url="runs-change"))
    if active:
        names = ", ".join(str(run) for run in active[:5])
        messages.error(request, f"Not archived, because they are active: {names}. Cancel the runs or wait for them.")


def _restore(request: HttpRequest, runs: Sequence[Run]) -> None:
    ids = runs_restore(run_ids=[run.pk for run in runs])
    messages.success(request, f"{counted(len(ids), 'run')} restored.")


_OF_OWNERS = ("archive", "restore", "cancel", "relaunch")
"""Actions on one's own runs; maintainers of the project take them on all."""
ACTIONS: Mapping[str, Action] = {
    "cancel": Action("lab.change_run", _cancel),
    "relaunch": Action("lab.change_run", _relaunch),
    "tag": Action("lab.add_tagofrun", _tag),
    "untag": Action("lab.delete_tagofrun", _untag),
    "star": Action("lab.add_star", _star),
    "unstar": Action("lab.delete_star", _unstar),
    "archive": Action("lab.change_run", _archive),
    "restore": Action("lab.change_run", _restore),
}


@require_POST
@permission_required("lab.delete_run", raise_exception=True)
def delete(request: HttpRequest) -> HttpResponse:
    """Show what would be deleted with the selected runs; delete them when that was confirmed."""
    runs = _selected(request)
    require_work(request.user, *runs)
    active = [run for run in runs if not run.is_final]
    if "confirmed" not in request.POST or active or not runs:
        context = {
            "section": "experiments",
            "runs": runs,
            "active": active,
            "contents": runs_contents(runs=runs),
            "next": _target(request),
        }
        return render(request, "pages/experiments/runs_delete.html", context)
    try:
        count = runs_delete(runs=runs)
    except ValueError as error:
        messages.error(request, f"Nothing was deleted: {error}.")
    else:
        messages.success(request, f"{counted(count, 'run')} deleted.")
    return back(request)


def _target(request: HttpRequest) -> str:
    """Return where to go afterwards: the page of the form, if it is on this site."""
    return str(back(request).url)
