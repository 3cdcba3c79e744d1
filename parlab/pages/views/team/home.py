"""The home page."""

from typing import Any, cast

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_GET, require_POST

from parlab.lab.models import Experiment
from parlab.lab.selectors.changes import changes_since
from parlab.lab.selectors.home import home as home_overview
from parlab.lab.services.pages.visits import visit, visit_dismiss
from parlab.pages.reads.gauges import node_gauges
from parlab.pages.rows.nodes import node_list
from parlab.pages.views.partial import UNCHANGED, is_partial
from runners.config import digest


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    """Show active runs, recent results, failures and findings; answer a poll only if something changed."""
    overview = home_overview()
    nodes = node_gauges(node_list())
    online = [[row.node.pk, row.node.is_online, row.used, gauges] for row, gauges in nodes]
    running = [[active.run.pk, active.run.state, active.step] for active in overview.active]
    recent = [[result.experiment.pk, str(result.ended_at)] for result in overview.recent]
    seen = digest([running, overview.active_count, recent, online, overview.findings_count])[:16]
    partial = is_partial(request)
    if partial and request.GET.get("seen") == seen:
        return HttpResponse(status=UNCHANGED)
    context: dict[str, Any] = {"section": "home", "home": overview, "nodes": nodes, "seen": seen}
    if not partial:
        user = cast(User, request.user)
        since = visit(user=user)
        context["changes"] = changes_since(since, user_id=user.pk) if since else None
    response = render(request, "pages/home_live.html" if partial else "pages/home.html", context)
    patch_vary_headers(response, ["HX-Request"])
    return response


@require_POST
def dismiss(request: HttpRequest) -> HttpResponse:
    """Take everything that changed on Home, or with `experiment` on its page, as seen."""
    slug = request.POST.get("experiment", "")
    experiment = get_object_or_404(Experiment, slug=slug) if slug else None
    visit_dismiss(user=cast(User, request.user), experiment=experiment)
    return redirect(experiment) if experiment else redirect("home")
