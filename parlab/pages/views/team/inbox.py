"""The inbox: what needs a decision, one item with its evidence, and what people do with it."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_GET, require_POST

from parlab.fleet.approvals import approve
from parlab.fleet.trials import batch_launch, smaller_batch
from parlab.lab.models import Event, InboxItem, LaunchApproval
from parlab.lab.services import inbox as service
from parlab.lab.services.access.budgets import may_decide
from parlab.lab.services.access.rights import project_of
from parlab.pages.reads.inbox import Inbox, inbox, neighbours
from parlab.pages.reads.inbox_evidence import evidence_of
from parlab.pages.rows.inbox import GROUPS, KINDS, inbox_row
from parlab.pages.views.partial import UNCHANGED, is_partial
from runners.config import digest


@require_GET
def inbox_page(request: HttpRequest) -> HttpResponse:
    """Show the lines and the evidence of the first."""
    return _shown(request, _group(request), None)


@require_GET
def inbox_item(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the lines and the evidence of one item, which counts as read from now on."""
    return _shown(request, _group(request), _find(pk))


def _group(request: HttpRequest) -> str:
    group = request.GET.get("group", "") or request.POST.get("group", "")
    return group if group in GROUPS else ""


def _find(pk: int) -> InboxItem:
    related = InboxItem.objects.select_related("experiment", "run__experiment", "run__source", "node", "done_by")
    return get_object_or_404(related.filter(kind__in=list(KINDS)), pk=pk)


def _shown(request: HttpRequest, group: str, item: InboxItem | None, undo: InboxItem | None = None) -> HttpResponse:
    user = cast(User, request.user)
    if item is not None:
        service.item_read(item=item, user=user)
    shown = inbox(user, group)
    is_chosen = item is not None
    if item is None and shown.rows:
        item = _find(shown.rows[0].item.pk)
    seen = _seen(shown, item, user)
    partial = is_partial(request)
    if partial and request.GET.get("seen") == seen:
        return HttpResponse(status=UNCHANGED)
    context: dict[str, Any] = {"section": "inbox", "inbox": shown, "group": group, "seen": seen, "undo": undo}
    context["is_chosen"] = is_chosen
    if item is not None:
        context |= {
            "item": item,
            "row": inbox_row(item),
            "may_decide": _may_decide(item, user),
            **neighbours(shown.rows, item.pk),
            **evidence_of(item),
        }
        context["may_decide"] = _may_decide(item, user)
    response = render(request, "inbox/inbox_live.html" if partial else "inbox/inbox.html", context)
    patch_vary_headers(response, ["HX-Request"])
    return response


def _seen(shown: Inbox, item: InboxItem | None, user: User) -> str:
    # With the person: what one has read, another has not, and polls of the same content share an answer.
    lines = [[row.item.pk, str(row.item.last_at), row.is_read] for row in shown.rows]
    return digest([user.pk, lines, item.pk if item else 0, str(item.done_at) if item else ""])[:16]


@require_POST
@permission_required("lab.change_inboxitem", raise_exception=True)
def inbox_act(request: HttpRequest, pk: int, action: str) -> HttpResponse:
    """Close an item for all, or open it again; then show the next one."""
    item, user = _find(pk), cast(User, request.user)
    if action == "done":
        after = _next_of(user, _group(request), item)
        service.item_done(item=item, user=user)
        return _answer(request, after, undo=item)
    if action == "reopen":
        service.item_reopen(item=item)
        return _answer(request, _find(pk))
    raise Http404(f"items of the inbox have no action {action[:40]!r}")


@require_POST
@permission_required(["lab.add_run", "lab.add_config"], raise_exception=True)
def inbox_try(request: HttpRequest, pk: int) -> HttpResponse:
    """Launch the run of an item with half its micro batch, which decides the item."""
    item, user = _find(pk), cast(User, request.user)
    size = smaller_batch(item.run) if item.run is not None else None
    if item.run is None or size is None:
        messages.error(request, "Nothing was launched: the run has no smaller micro batch; change its configuration.")
        return redirect(item)
    try:
        launched = batch_launch(run=item.run, micro_batch_size=size, user=user)
    except ValueError as problem:
        messages.error(request, f"Nothing was launched: {problem}.")
        return redirect(item)
    service.item_done(item=item, user=user, reason=f"micro batch {size} is tried in run {launched.number}")
    messages.success(request, f"Launched run {launched.number} with micro batch {size}.")
    return redirect("inbox")


@require_POST
def inbox_decide(request: HttpRequest, pk: int) -> HttpResponse:
    """Approve or refuse a launch beyond the budget: maintainers."""
    item, user = _find(pk), cast(User, request.user)
    approval = get_object_or_404(LaunchApproval, pk=item.data.get("approval") or 0)
    answer = request.POST.get("answer", "")
    if answer not in ("approve", "refuse"):
        return HttpResponse("answer is approve or refuse\n", status=400, content_type="text/plain")
    try:
        count = approve(approval=approval, user=user, is_approved=answer == "approve")
    except ValueError as problem:
        messages.error(request, f"Not changed: {problem}.")
        return redirect(item)
    runs = f"{count} run{'' if count == 1 else 's'}"
    messages.success(request, f"{runs} may start." if answer == "approve" else f"Cancelled {runs}.")
    return redirect("inbox")


def _may_decide(item: InboxItem, user: User) -> bool:
    if item.kind != Event.Kind.LAUNCH_ASKED or item.experiment is None:
        return False
    return may_decide(user, project_of(item.experiment))


@require_POST
def inbox_own(request: HttpRequest, pk: int, action: str) -> HttpResponse:
    """Put an item off, or mute its kind, for oneself."""
    item, user = _find(pk), cast(User, request.user)
    after = _next_of(user, _group(request), item)
    if action == "snooze":
        try:
            service.item_snooze(item=item, user=user, period=request.POST.get("period", "1h"))
        except ValueError as problem:
            return HttpResponse(f"Not put off: {problem}.", status=400, content_type="text/plain")
    elif action == "wake":
        service.item_wake(item=item, user=user)
        after = item
    elif action == "mute":
        service.kind_mute(kind=item.kind, user=user)
        remaining = inbox(user, _group(request)).rows
        after = _find(remaining[0].item.pk) if remaining else None
    else:
        raise Http404(f"items of the inbox have no action {action[:40]!r}")
    return _answer(request, after)


@require_POST
def inbox_unmute(request: HttpRequest) -> HttpResponse:
    """Show the items of a kind again."""
    service.kind_unmute(kind=request.POST.get("kind", ""), user=cast(User, request.user))
    return _answer(request, None)


def _next_of(user: User, group: str, item: InboxItem) -> InboxItem | None:
    """Return the line below an item, or the one above the last."""
    places = neighbours(inbox(user, group).rows, item.pk)
    row = places.get("after") or places.get("before")
    return _find(row.item.pk) if row is not None else None


def _answer(request: HttpRequest, item: InboxItem | None, undo: InboxItem | None = None) -> HttpResponse:
    group = _group(request)
    address = item.get_absolute_url() if item is not None else reverse("inbox")
    address = f"{address}?{urlencode({'group': group})}" if group else address
    if not is_partial(request):
        return redirect(address)
    response = _shown(request, group, item, undo)
    response["HX-Push-Url"] = address
    return response
