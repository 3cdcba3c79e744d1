"""The home page."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_GET

from parlab.lab import selectors
from parlab.pages.gauges import node_gauges
from parlab.pages.rows.nodes import node_list
from runners.config import digest

from .partial import UNCHANGED, is_partial


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    """Show active runs, recent results, failures and findings; answer a poll only if something changed."""
    overview = selectors.home()
    nodes = node_gauges(node_list())
    online = [[row.node.pk, row.node.is_online, row.used, gauges] for row, gauges in nodes]
    running = [[active.run.pk, active.run.state, active.step] for active in overview.active]
    recent = [[result.experiment.pk, str(result.ended_at)] for result in overview.recent]
    seen = digest([running, overview.active_count, recent, online, overview.findings_count])[:16]
    partial = is_partial(request)
    if partial and request.GET.get("seen") == seen:
        return HttpResponse(status=UNCHANGED)
    context = {"section": "home", "home": overview, "nodes": nodes, "seen": seen}
    response = render(request, "pages/home_live.html" if partial else "pages/home.html", context)
    patch_vary_headers(response, ["HX-Request"])
    return response
