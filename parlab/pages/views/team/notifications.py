"""The notifications of a user: webhooks and mails, with the last answer of each."""

from __future__ import annotations

from typing import Any, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from parlab.lab.models import Experiment
from parlab.notify import services as notify
from parlab.notify.models import Delivery, Subscription
from parlab.notify.topics import TOPICS
from parlab.pages.views.partial import is_partial

MAX_DELIVERIES = 50
MAX_EXPERIMENTS = 500
SERVICES = {"slack": "Slack", "teams": "Microsoft Teams"}
"""Chat services that a webhook is named after."""
SUGGESTED = ("failed", "oom", "loss", "node", "study")


@require_GET
@never_cache
def notifications(request: HttpRequest) -> HttpResponse:
    if is_partial(request):
        return render(request, "pages/account/notifications_sent.html", _sent(cast(User, request.user)))
    return _page(request)


@require_POST
@never_cache
def subscribe(request: HttpRequest) -> HttpResponse:
    """Create a subscription of the user."""
    fields = request.POST
    slug = fields.get("experiment", "")
    experiment = get_object_or_404(Experiment, slug=slug) if slug else None
    try:
        subscription = notify.subscription_create(
            user=cast(User, request.user),
            channel="webhook" if fields.get("channel") in SERVICES else fields.get("channel", ""),
            style=fields["channel"] if fields.get("channel") in SERVICES else "parlab",
            times=_times(fields),
            url=fields.get("url", "").strip(),
            topics=fields.getlist("topics"),
            experiment=experiment,
            base_url=request.build_absolute_uri("/"),
        )
    except ValueError as problem:
        return _page(request, status=400, problem=f"Not subscribed: {problem}.", entered=fields)
    messages.success(request, f"Subscribed: {subscription}. Send a test to check that it arrives.")
    return redirect("notifications")


def _times(fields: QueryDict) -> notify.Times:
    return notify.checked_times(*(fields.get(name, "") for name in notify.Times._fields))


@require_POST
def subscription_act(request: HttpRequest, pk: int, action: str) -> HttpResponse:
    """Test, change, enable, disable or delete a subscription of the user."""
    user = cast(User, request.user)
    subscription = get_object_or_404(Subscription.objects.select_related("user", "experiment"), pk=pk, user=user)
    try:
        messages.success(request, _act(subscription, action, request))
    except ValueError as problem:
        messages.error(request, f"Not changed: {problem}.")
    return redirect("notifications")


def _act(subscription: Subscription, action: str, request: HttpRequest) -> str:
    if action == "test":
        notify.subscription_test(subscription=subscription)
        return f"A test is on its way to {subscription}."
    if action == "delete":
        text = str(subscription)
        subscription.delete()
        return f"Deleted: {text}."
    if action == "change":
        url = request.POST.get("url", "").strip() if subscription.is_webhook else None
        topics = request.POST.getlist("topics")
        notify.subscription_change(
            subscription=subscription,
            topics=topics,
            url=url,
            is_enabled="is_enabled" in request.POST,
            times=_times(request.POST),
        )
        return f"Saved: {subscription}."
    raise ValueError(f"unknown action {action[:40]!r}; use test, change or delete")


@require_POST
def delivery_retry(request: HttpRequest, pk: int) -> HttpResponse:
    """Send a failed delivery again."""
    delivery = get_object_or_404(Delivery, pk=pk, subscription__user=cast(User, request.user))
    if notify.delivery_retry(delivery=delivery):
        messages.success(request, "It is sent again.")
    return redirect("notifications")


@require_POST
@never_cache
def mail_address(request: HttpRequest) -> HttpResponse:
    """Set the mail address of the user's account; an empty one ends mails."""
    address = request.POST.get("email", "").strip()
    try:
        if address:
            validate_email(address)
        if len(address) > 254:
            raise ValidationError("too long")
    except ValidationError:
        problem = f"Not saved: {address[:80]!r} is no mail address; use name@host."
        return _page(request, status=400, mail_problem=problem)
    user = cast(User, request.user)
    user.email = address
    user.save(update_fields=["email"])
    messages.success(request, f"Mails go to {address}." if address else "Your account has no mail address any more.")
    return redirect("notifications")


def _page(request: HttpRequest, *, status: int = 200, **more: Any) -> HttpResponse:
    user = cast(User, request.user)
    entered = more.pop("entered", None)
    topics = entered.getlist("topics") if entered else SUGGESTED
    context = {
        "section": "notifications",
        "subscriptions": [_subscription_row(subscription) for subscription in _subscriptions(user)],
        "topics": [(key, topic.title, key in topics) for key, topic in TOPICS.items()],
        "channel": entered.get("channel", "") if entered else "",
        "services": SERVICES,
        "entered": entered or {},
        "url": entered.get("url", "") if entered else "",
        "slug": (entered or request.GET).get("experiment", ""),
        "experiments": Experiment.objects.filter(archived_at=None).order_by("-updated_at")[:MAX_EXPERIMENTS],
        "sends_mail": settings.SENDS_MAIL,
        "may_post": user.has_perm("lab.add_run"),
        **_sent(user),
        **more,
    }
    return render(request, "pages/account/notifications.html", context, status=status)


def _subscriptions(user: User) -> list[Subscription]:
    return list(user.subscriptions.select_related("experiment", "user"))


def _subscription_row(subscription: Subscription) -> dict[str, Any]:
    return {
        "subscription": subscription,
        "topics": [(key, topic.title, key in subscription.topics) for key, topic in TOPICS.items()],
        "titles": ", ".join(topic.title for key, topic in TOPICS.items() if key in subscription.topics),
        "last": subscription.deliveries.exclude(tries=0).order_by("-last_try_at").first(),
        "open": subscription.deliveries.open().count(),
    }


def _sent(user: User) -> dict[str, Any]:
    rows = Delivery.objects.filter(subscription__user=user).select_related(
        "event", "subscription__experiment", "subscription__user"
    )
    deliveries = list(rows.order_by("-pk")[:MAX_DELIVERIES])
    return {
        "deliveries": deliveries,
        "is_open": any(delivery.is_open for delivery in deliveries),
        "is_stuck": any(delivery.has_long_waited and not delivery.tries for delivery in deliveries),
    }
