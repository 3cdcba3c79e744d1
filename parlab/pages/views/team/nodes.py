"""The list of nodes, and one node with its health."""

from typing import cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from parlab.fleet.excluded_nodes import node_leave_out, node_put_back
from parlab.lab.models import Node
from parlab.pages.rows.nodes import node_list, node_row
from parlab.pages.views.partial import is_partial
from parlab.watch.detecting import sentence_of
from parlab.watch.health import sweep_order
from parlab.watch.node_health import node_health


@require_GET
def nodes(request: HttpRequest) -> HttpResponse:
    template = "pages/nodes_list.html" if is_partial(request) else "pages/nodes.html"
    return render(request, template, {"rows": node_list(), "section": "nodes"})


@require_GET
def node(request: HttpRequest, name: str) -> HttpResponse:
    """Show a node: hardware, whether it gets runs, and the rates of its health sweeps."""
    row = get_object_or_404(Node, name=name)
    health = node_health(row)
    context = {
        "section": "nodes",
        "row": node_row(row),
        "node": row,
        "health": health,
        "alerts": [(alert, sentence_of(alert)) for alert in health.alerts],
    }
    return render(request, "pages/node.html", context)


@require_POST
@permission_required("lab.change_node", raise_exception=True)
def act(request: HttpRequest, name: str, action: str) -> HttpResponse:
    """Measure a node, leave it out of dispatch, or put it back."""
    row = get_object_or_404(Node, name=name)
    user = cast(User, request.user)
    try:
        if action == "measure":
            orders = sweep_order(node=row, user=user)
            messages.success(request, f"Ordered {len(orders)} sweep{'' if len(orders) == 1 else 's'} of {row.name}.")
        elif action == "leave-out":
            node_leave_out(node=row, reason=request.POST.get("reason", ""), by=str(user))
            messages.success(request, f"{row.name} is left out: it gets only health sweeps. Its runs continue.")
        elif action == "put-back":
            node_put_back(node=row, by=str(user))
            messages.success(request, f"{row.name} gets runs again.")
        else:
            raise Http404(f"unknown action {action}; use measure, leave-out or put-back")
    except ValueError as problem:
        messages.error(request, f"Not done: {problem}.")
    target = request.POST.get("next", "")
    if url_has_allowed_host_and_scheme(target, None) and target.startswith("/watch/"):
        return redirect(target)
    return redirect("node", row.name)
