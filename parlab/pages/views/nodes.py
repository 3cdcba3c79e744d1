"""The list of nodes."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from parlab.pages.rows.nodes import node_list

from .partial import is_partial


@require_GET
def nodes(request: HttpRequest) -> HttpResponse:
    template = "pages/nodes_list.html" if is_partial(request) else "pages/nodes.html"
    return render(request, template, {"rows": node_list(), "section": "nodes"})
