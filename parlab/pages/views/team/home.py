"""The home page."""

from typing import Any, cast

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_GET, require_POST

from parlab.lab.models import Experiment
from parlab.lab.selectors.changes import changes_since
from parlab.lab.selectors.home import RECENT_SHOWN, active_runs, has_own_runs, recent_experiments
from parlab.lab.services.pages.visits import visit, visit_dismiss
from parlab.pages.reads.home.cards import cards
from parlab.pages.reads.home.cluster import cluster_strip
from parlab.pages.reads.home.live import live_cards
from parlab.pages.reads.inbox import inbox_rows, inbox_total
from parlab.pages.views.partial import UNCHANGED, is_partial
from runners.config import digest

INBOX_SHOWN = 5
_PARTS = {"live": "pages/home/live.html", "rest": "pages/home/rest.html"}


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    """Show live runs, what needs a decision, recent experiments and nodes; answer a poll only if something changed."""
    part = request.GET.get("part", "") if is_partial(request) else ""
    context: dict[str, Any] = {"section": "home"}
    if part != "rest":
        context |= _live()
    if part != "live":
        context |= _rest(cast(User, request.user))
    seen = context.get("live_seen" if part == "live" else "rest_seen")
    if part in _PARTS and request.GET.get("seen") == seen:
        return HttpResponse(status=UNCHANGED)
    if part not in _PARTS:
        user = cast(User, request.user)
        since = visit(user=user)
        changes = changes_since(since, user_id=user.pk) if since else None
        context |= {"changes": changes, "is_first": not has_own_runs()}
    response = render(request, _PARTS.get(part, "pages/home/home.html"), context)
    patch_vary_headers(response, ["HX-Request"])
    return response


def _live() -> dict[str, Any]:
    active = active_runs()
    shown = [(item.run.pk, item.run.state, item.step) for item in active.runs]
    seen = digest([shown, active.running, active.waiting])[:16]
    return {"active": active, "live": live_cards(active.runs), "live_seen": seen}


def _rest(user: User) -> dict[str, Any]:
    recent = recent_experiments(2 * RECENT_SHOWN)
    found = cards([item.experiment for item in recent])
    cluster = cluster_strip()
    # Those that compare runs come first: their pictures say the most.
    ordered = sorted(recent, key=lambda item: not found[item.experiment.pk].compares)
    rows = [(item, found[item.experiment.pk]) for item in ordered[:RECENT_SHOWN]]
    waiting = inbox_rows(user, INBOX_SHOWN)
    parts = [
        [(strip.node.pk, strip.node.is_online, str(strip.squares)) for strip in cluster.nodes],
        [str(card.strip) for _, card in rows],
        [str(item.ended_at) for item in recent],
        [(row.item.pk, str(row.item.last_at)) for row in waiting],
        str(cluster.lanes),
    ]
    return {
        "recent": rows,
        "cluster": cluster,
        "inbox": waiting,
        "inbox_count": inbox_total(user),
        "experiment_count": Experiment.objects.in_use().count(),
        "rest_seen": digest(parts)[:16],
    }


@require_POST
def dismiss(request: HttpRequest) -> HttpResponse:
    """Take everything that changed on Home, or with `experiment` on its page, as seen."""
    slug = request.POST.get("experiment", "")
    experiment = get_object_or_404(Experiment, slug=slug) if slug else None
    visit_dismiss(user=cast(User, request.user), experiment=experiment)
    return redirect(experiment) if experiment else redirect("home")
