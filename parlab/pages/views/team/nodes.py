"""The nodes: all of them with their queue, and one with its day and its health."""

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from parlab.fleet.excluded_nodes import node_leave_out, node_put_back
from parlab.fleet.forecast import free_at
from parlab.lab.models import Node
from parlab.pages.reads.cluster.day import day_of
from parlab.pages.reads.cluster.events import day_of_events
from parlab.pages.reads.cluster.goodput import goodput_of
from parlab.pages.reads.cluster.node import GPU_COLUMNS, gpu_rows
from parlab.pages.reads.cluster.queue import queue_of
from parlab.pages.reads.cluster.recovery import recovery_of_cluster
from parlab.pages.reads.cluster.tiles import tiles
from parlab.pages.rows.nodes import node_row
from parlab.pages.views.partial import is_partial
from parlab.watch.detecting import sentence_of
from parlab.watch.health import sweep_order
from parlab.watch.node_health import node_health


@require_GET
def nodes(request: HttpRequest) -> HttpResponse:
    """Show the nodes as squares, their queue, and what their hours became."""
    template = "cluster/live.html" if is_partial(request) else "cluster/cluster.html"
    return render(request, template, _cluster(request))


def _cluster(request: HttpRequest) -> dict[str, Any]:
    now, known = timezone.now(), list(Node.objects.all())
    shown = tiles(known, now)
    return {
        "section": "nodes",
        "tiles": shown,
        "counts": _counts(shown.nodes),
        "queue": queue_of(known, cast(User, request.user), now),
        "goodput": goodput_of(now, has_gpus=any(tile.has_gpus for tile in shown.nodes)),
        "recovery": recovery_of_cluster(now),
        "day_events": day_of_events(request.GET.get("day", "")),
        "colour": _colour(request, [scale.name for scale in shown.scales]),
    }


def _counts(shown: list[Any]) -> dict[str, int]:
    return {"all": len(shown), "busy": sum(tile.is_busy for tile in shown)}


def _colour(request: HttpRequest, names: list[str]) -> str:
    asked = request.GET.get("colour", "")
    return asked if asked in names else names[0]


@require_GET
def node(request: HttpRequest, name: str) -> HttpResponse:
    """Show a node beside the others: its day, whether it gets runs, and the rates of its health sweeps."""
    row = get_object_or_404(Node, name=name)
    context = _node(row)
    if is_partial(request):
        return render(request, "cluster/node.html", context)
    return render(request, "cluster/cluster.html", _cluster(request) | context)


def _node(row: Node) -> dict[str, Any]:
    health = node_health(row)
    names = list(Node.objects.order_by("name").values_list("name", flat=True))
    place = names.index(row.name)
    return {
        "section": "nodes",
        "row": node_row(row),
        "node": row,
        "before": names[place - 1] if place else "",
        "after": names[place + 1] if place + 1 < len(names) else "",
        "day": day_of(row, timezone.now()),
        "free_at": free_at(row, timezone.now()),
        "gpus": gpu_rows(row),
        "gpu_columns": GPU_COLUMNS,
        "health": health,
        "exclusion": row.exclusions.open().filter(host="").first(),
        "hosts": row.exclusions.open().of_hosts().order_by("host"),
        "faults": (row.hardware or {}).get("faults") or [],
        "alerts": [(alert, sentence_of(alert)) for alert in health.alerts],
    }


@require_POST
@permission_required("lab.change_node", raise_exception=True)
def act(request: HttpRequest, name: str, action: str) -> HttpResponse:
    """Measure a node, leave it out of dispatch, or put it back."""
    row = get_object_or_404(Node, name=name)
    user, host = cast(User, request.user), request.POST.get("host", "").strip()
    place = host or row.name
    try:
        if action == "measure":
            orders = sweep_order(node=row, user=user)
            messages.success(request, f"Ordered {len(orders)} sweep{'' if len(orders) == 1 else 's'} of {row.name}.")
        elif action == "leave-out":
            node_leave_out(node=row, reason=request.POST.get("reason", ""), by=str(user), host=host)
            messages.success(request, f"{place} is left out: it gets only health sweeps. Its runs continue.")
        elif action == "put-back":
            node_put_back(node=row, by=str(user), host=host)
            messages.success(request, f"{place} gets runs again.")
        else:
            raise Http404(f"unknown action {action}; use measure, leave-out or put-back")
    except ValueError as problem:
        messages.error(request, f"Not done: {problem}.")
    target = request.POST.get("next", "")
    if url_has_allowed_host_and_scheme(target, None) and target.startswith("/watch/"):
        return redirect(target)
    return redirect("node", row.name)
