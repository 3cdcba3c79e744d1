"""Lists of experiments and runs: filter, sort, tag, archive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.middleware.csrf import get_token
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.utils.html import format_html, format_html_join
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString
from django.views.decorators.http import require_GET, require_POST

from parlab.lab.models import Experiment
from parlab.lab.selectors.filters import completions, field_help
from parlab.lab.selectors.lists import ExperimentList, experiment_list, run_list, tag_names
from parlab.lab.services.access.rights import require_change, require_work
from parlab.lab.services.archive import experiments_archive, experiments_restore
from parlab.lab.services.pages.list_columns import (
    LISTS,
    OF_EXPERIMENT,
    columns_choose,
    columns_decide,
    has_own_columns,
    shown_columns,
)
from parlab.lab.services.pages.starred import starred_experiments
from parlab.lab.services.tagging import experiments_tag, experiments_untag
from parlab.pages.reads.home.groups import experiment_groups, orders, segments
from parlab.pages.reads.saved_views import default_address
from parlab.pages.views.partial import is_partial
from parlab.whole_numbers import whole_numbers

_LONGEST_COLUMNS = 2_000
MAX_CHOSEN = 500
"""Maximum number of rows of a bulk action."""


@require_GET
def experiments(request: HttpRequest) -> HttpResponse:
    """Show the experiments, or with `?show=runs` the runs, that match a filter."""
    if default := default_address(request):
        return redirect(default)
    show = "runs" if request.GET.get("show") == "runs" else "experiments"
    user, partial = cast(User, request.user), is_partial(request)
    if not partial and columns_in(request) is None and has_own_columns(user, show):
        return redirect(with_columns(request.get_full_path(), sorted(shown_columns(user, show))))
    query, page, sort = request.GET.get("q", ""), request.GET.get("page"), request.GET.get("sort", "")
    read = run_list if show == "runs" else experiment_list
    page_rows = read(query=query, page=page, sort=sort)
    context: dict[str, Any] = {
        "section": "experiments",
        "show": show,
        "list": page_rows,
        "query": page_rows.filter.text,
        "columns": LISTS[show],
        "shown": (stated := columns_in(request)) or shown_columns(user, show),
        "stated_columns": ",".join(stated or ()),
        "kept": urlencode({"q": page_rows.filter.text, "show": show, "sort": page_rows.sort, **_kept_columns(stated)}),
        "next": request.get_full_path(),
    }
    if isinstance(page_rows, ExperimentList):
        starred = starred_experiments(user)
        context |= {"groups": experiment_groups(page_rows, starred), "starred": starred}
        context |= {"archived": page_rows.filter.wants_archived}
    if not partial:
        tags = tag_names()
        context |= {"help": list(field_help()), "tags": tags, "terms": completions(tags)}
        context |= {"segments": segments(show, page_rows.filter.text), "orders": orders(show, page_rows)}
    response = render(
        request, "pages/experiments/experiments_list.html" if partial else "pages/experiments/experiments.html", context
    )
    patch_vary_headers(response, ["HX-Request"])
    return response


def columns_in(request: HttpRequest) -> list[str] | None:
    """Return the columns that an address states, with which a link shows the same to its reader; else None."""
    text = request.GET.get("columns", "")[:_LONGEST_COLUMNS]
    return [name for name in text.split(",") if name] if text else None


def with_columns(address: str, names: Sequence[str]) -> str:
    """Return an address of this server that states the columns of its table."""
    path, _, text = address.partition("?")
    query = QueryDict(text, mutable=True)
    query["columns"] = ",".join(names)
    return f"{path}?{query.urlencode(safe=',')}"


def _kept_columns(stated: Sequence[str] | None) -> dict[str, str]:
    return {"columns": ",".join(stated)} if stated else {}


@require_POST
def columns(request: HttpRequest, name: str) -> HttpResponse:
    """Store which columns of a list a user wants to see."""
    user, shown = cast(User, request.user), request.POST.getlist("column")
    if name == OF_EXPERIMENT:
        columns_decide(user=user, name=name, present=request.POST.getlist("present"), shown=shown)
    elif name in LISTS:
        columns_choose(user=user, name=name, shown=shown)
    else:
        raise Http404(f"unknown list {name}; use one of {', '.join([*LISTS, OF_EXPERIMENT])}")
    response = back(request)
    # A table without any of its own columns is stated by a name that no column has.
    return redirect(with_columns(response.url, shown or ["none"]))


@require_POST
@permission_required("lab.change_experiment", raise_exception=True)
def experiments_change(request: HttpRequest) -> HttpResponse:
    """Tag, untag, archive or restore the selected experiments."""
    chosen = list(Experiment.objects.filter(pk__in=chosen_ids(request, "experiment")))
    if not chosen:
        messages.info(request, "No experiment selected.")
        return back(request)
    action = request.POST.get("action", "")
    (require_change if action in ("archive", "restore") else require_work)(request.user, *chosen)
    try:
        if action in ("tag", "untag"):
            _tag(request, chosen, add=action == "tag")
        elif action == "archive":
            _archive(request, chosen)
        elif action == "restore":
            ids = experiments_restore(experiments=chosen)
            messages.success(request, f"{counted(len(ids), 'experiment')} restored.")
        else:
            messages.error(request, "Nothing was changed: unknown action.")
    except ValueError as error:
        messages.error(request, f"Nothing was changed: {error}.")
    return back(request)


def _tag(request: HttpRequest, chosen: Sequence[Experiment], *, add: bool) -> None:
    name = request.POST.get("tag", "")
    change = experiments_tag if add else experiments_untag
    count = change(experiments=chosen, name=name)
    done = "tagged" if add else "untagged"
    messages.success(request, f"{counted(count, 'experiment')} {done} {name.strip().lower()}.")


def _archive(request: HttpRequest, chosen: Sequence[Experiment]) -> None:
    ids, busy = experiments_archive(experiments=chosen)
    if ids:
        message = format_html("{} archived. ", counted(len(ids), "experiment"))
        messages.success(request, message + undo_form(request, "restore", ids))
    if busy:
        messages.error(
            request, f"Not archived, because runs are active: {', '.join(busy[:5])}. Cancel the runs or wait for them."
        )


def undo_form(
    request: HttpRequest, action: str, ids: Sequence[int], *, name: str = "experiment", url: str = "experiments-change"
) -> SafeString:
    """Return a button that restores rows, for the message about their archiving."""
    hidden = '<input type="hidden" name="{}" value="{}">'
    fields = format_html_join("", hidden, ((name, pk) for pk in ids))
    return format_html(
        '<form class="inline" method="post" action="{}"><input type="hidden" name="csrfmiddlewaretoken" value="{}">'
        '<input type="hidden" name="action" value="{}">{}<button type="submit" class="plain">Undo</button></form>',
        reverse(url),
        get_token(request),
        action,
        fields,
    )


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 run, 2 runs."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def chosen_ids(request: HttpRequest, name: str) -> list[int]:
    """Return the ids of the rows that a form selects."""
    return whole_numbers(request.POST.getlist(name))[:MAX_CHOSEN]


def back(request: HttpRequest) -> HttpResponseRedirect:
    """Return to the page that the form was on."""
    target = request.POST.get("next", "")
    if url_has_allowed_host_and_scheme(target, {request.get_host()}, require_https=request.is_secure()):
        return HttpResponseRedirect(target)
    return redirect("experiments")
