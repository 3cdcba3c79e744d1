"""Subscriptions, and the way of an event: routed to deliveries, claimed, sent, answered.

Every step is one committed change of rows, so that a worker may be killed between any two of them: an event that is
not routed is routed later, and a delivery whose worker has died is due again when its claim runs out. Only then may a
receiver get an event twice, with the same idempotency key.
"""

from __future__ import annotations

import ipaddress
import logging
import random
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from parlab.lab.models import Event, Experiment
from parlab.lab.models.access.viewer import Viewer, viewer_of
from parlab.lab.services import storable
from parlab.lab.services.events import event_add

from . import mails, messages, sending, signing
from .models import Delivery, Subscription
from .times import checked_hour, first_time
from .topics import TOPICS, kinds_of

logger = logging.getLogger(__name__)

BACK_OFF_S = (10, 30, 120, 600, 1_800, 3_600, 7_200, 14_400)
"""Time between two tries; after the last one a delivery has failed."""
CLAIM_S = 60
"""Time after which another worker takes over a delivery that a worker has claimed."""
TRANSIENT = {408, 409, 425, 429}
"""Answers besides 5xx after which another try makes sense."""
ROUNDS_S = 20.0
"""Time after which other tasks of the worker get their turn."""
KEPT = timedelta(days=30)
MAX_SUBSCRIPTIONS = 50
_ROUTED_AT_ONCE = 200
_SENT_AT_ONCE = 8


class Times(NamedTuple):
    """When a subscription sends: hours of the day in the time zone of the server."""

    quiet_from: int | None = None
    quiet_until: int | None = None
    digest_at: int | None = None


def checked_times(quiet_from: str, quiet_until: str, digest_at: str) -> Times:
    """Read the hours of a form. Raises ValueError."""
    times = Times(
        checked_hour(quiet_from, "quiet from"),
        checked_hour(quiet_until, "quiet until"),
        checked_hour(digest_at, "digest"),
    )
    if (times.quiet_from is None) != (times.quiet_until is None):
        raise ValueError("quiet hours need both ends; enter the other one too")
    return times


# --- subscriptions ---------------------------------------------------------------------------------------------------


def subscription_create(
    *,
    user: User,
    channel: str,
    topics: Sequence[str],
    url: str = "",
    experiment: Experiment | None = None,
    base_url: str = "",
    style: str = Subscription.Style.PARLAB,
    times: Times | None = None,
) -> Subscription:
    """Subscribe a user; raises ValueError with field, value and remedy."""
    if channel not in Subscription.Channel.values:
        raise ValueError(f"unknown channel {channel[:40]!r}; use {' or '.join(Subscription.Channel.values)}")
    if channel == Subscription.Channel.WEBHOOK:
        if not user.has_perm("lab.add_run"):
            raise ValueError(f"user {user} may not create webhooks (permission lab.add_run); ask an administrator")
        sending.check_literal(sending.check_url(url), allowed_networks())
    elif not settings.SENDS_MAIL:
        raise ValueError("this server sends no mail; have EMAIL_URL set, or use a webhook")
    elif not user.email:
        raise ValueError("your account has no mail address; enter one first")
    if style not in Subscription.Style.values:
        raise ValueError(f"unknown service {style[:40]!r}; use {', '.join(Subscription.Style.values)}")
    when = times or Times()
    if when.digest_at is not None and channel != Subscription.Channel.MAIL:
        raise ValueError("a digest is a mail; choose a mail, or leave the hour of the digest empty")
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user.pk)
        if user.subscriptions.count() >= MAX_SUBSCRIPTIONS:
            raise ValueError(f"you have {MAX_SUBSCRIPTIONS} subscriptions; delete one first")
        return Subscription.objects.create(
            user=user,
            channel=channel,
            url=url if channel == Subscription.Channel.WEBHOOK else "",
            secret=secrets.token_hex(24) if channel == Subscription.Channel.WEBHOOK else "",
            topics=checked_topics(topics),
            experiment=experiment,
            base_url=base_url[:300],
            style=style,
            **when._asdict(),
        )


def subscription_change(
    *,
    subscription: Subscription,
    topics: Sequence[str],
    is_enabled: bool,
    url: str | None = None,
    times: Times | None = None,
) -> Subscription:
    """Change topics, address or whether it is enabled; raises ValueError."""
    if subscription.is_webhook and url is not None:
        sending.check_literal(sending.check_url(url), allowed_networks())
        subscription.url = url
    subscription.topics, subscription.is_enabled = checked_topics(topics), is_enabled
    for name, value in (times._asdict() if times else {}).items():
        setattr(subscription, name, value)
    subscription.save(update_fields=["topics", "is_enabled", "url", *Times._fields])
    return subscription


def checked_topics(topics: Sequence[str]) -> list[str]:
    """Return topics in the order of the table; raises ValueError for none or an unknown one."""
    unknown = [topic for topic in topics if topic not in TOPICS]
    if unknown or not topics:
        name = f"unknown event {unknown[0][:40]!r}" if unknown else "no event is selected"
        raise ValueError(f"{name}; use one or more of {', '.join(TOPICS)}")
    return [topic for topic in TOPICS if topic in topics]


@transaction.atomic
def subscription_test(*, subscription: Subscription) -> Delivery:
    """Queue a test event for one subscription, sent like every other event."""
    event = event_add(
        kind=Event.Kind.TEST,
        text=f"Test of parlab's notifications by {subscription.user}",
        path="/notifications/",
        experiment=subscription.experiment,
    )
    now = timezone.now()
    Event.objects.filter(pk=event.pk).update(routed_at=now)
    return Delivery.objects.create(subscription=subscription, event=event, next_try_at=now)


@transaction.atomic
def delivery_retry(*, delivery: Delivery) -> bool:
    """Queue a failed delivery again; returns whether it had failed."""
    failed = Delivery.objects.filter(pk=delivery.pk, state=Delivery.State.FAILED)
    return bool(failed.update(state=Delivery.State.WAITING, tries=0, next_try_at=timezone.now()))


# --- routing ---------------------------------------------------------------------------------------------------------


def events_route() -> int:
    """Create the deliveries of new events; return the number of events."""
    count = 0
    while Event.objects.filter(routed_at=None).exists():
        with transaction.atomic():
            rows = Event.objects.filter(routed_at=None).order_by("pk")
            events = list(rows.select_for_update(skip_locked=True, no_key=True)[:_ROUTED_AT_ONCE])
            _deliveries_create(events)
            Event.objects.filter(pk__in=[event.pk for event in events]).update(routed_at=timezone.now())
        count += len(events)
        if len(events) < _ROUTED_AT_ONCE:
            break
    return count


def _deliveries_create(events: Sequence[Event]) -> None:
    if not events:
        return
    subscriptions = Subscription.objects.filter(is_enabled=True, user__is_active=True).select_related("user")
    viewers = {subscription.user_id: viewer_of(subscription.user) for subscription in subscriptions}
    receivers = [(each, kinds_of(each.topics), viewers[each.user_id]) for each in subscriptions]
    of_events = Experiment.objects.filter(pk__in=[event.experiment_id for event in events if event.experiment_id])
    projects = dict(of_events.values_list("pk", "project"))
    now = timezone.now()
    Delivery.objects.bulk_create(
        [
            Delivery(subscription=subscription, event=event, next_try_at=_first_time(subscription, now))
            for event in events
            for subscription, kinds, viewer in receivers
            if event.kind in kinds
            and _sees(viewer, projects.get(event.experiment_id or 0))
            and subscription.experiment_id in (None, event.experiment_id)
            and subscription.created_at <= event.at
        ],
        batch_size=200,
        ignore_conflicts=True,
    )


def _first_time(subscription: Subscription, now: datetime) -> datetime:
    return first_time(
        timezone.localtime(now),
        quiet_from=subscription.quiet_from,
        quiet_until=subscription.quiet_until,
        digest_at=subscription.digest_at,
    )


def _sees(viewer: Viewer, project_id: int | None) -> bool:
    return project_id is None or viewer.visible is None or project_id in viewer.visible


# --- sending ---------------------------------------------------------------------------------------------------------


class _Claim(NamedTuple):
    """A delivery that this worker sends, as the request that it becomes."""

    delivery: Delivery
    body: bytes
    headers: dict[str, str]


def deliver() -> int:
    """Route new events and send what is due, for at most ROUNDS_S; return the number of tries."""
    events_route()
    count = mails.mails_send()
    until = time.monotonic() + ROUNDS_S
    while time.monotonic() < until and (claims := _claim()):
        with ThreadPoolExecutor(len(claims)) as pool:
            answers = list(pool.map(_post, claims))
        for claim, answer in zip(claims, answers, strict=True):
            answer_store(delivery=claim.delivery, answer=answer)
        count += len(claims)
    return count


def _claim() -> list[_Claim]:
    """Claim the oldest due delivery of each of some webhooks."""
    due = Delivery.objects.due().filter(subscription__channel=Subscription.Channel.WEBHOOK)
    by_receiver: dict[int, Delivery] = {}
    for delivery in due.select_related("subscription__user", "event__experiment", "event__run").order_by("pk")[:500]:
        if len(by_receiver) < _SENT_AT_ONCE:
            by_receiver.setdefault(delivery.subscription_id, delivery)
    claims = []
    for delivery in by_receiver.values():
        subscription = delivery.subscription
        if not (subscription.is_enabled and subscription.user.is_active):
            _end(delivery, Delivery.State.FAILED, answer="not sent: the subscription is disabled")
        elif claim_take(delivery):
            headers = dict(messages.headers_of(delivery.event, delivery.tries))
            claims.append(_Claim(delivery, messages.body_of(delivery.event, subscription), headers))
    return claims


def claim_take(delivery: Delivery, **fields: Any) -> bool:
    """Take a due delivery for this worker; False if another one was faster."""
    now = timezone.now()
    same = Delivery.objects.filter(pk=delivery.pk, next_try_at=delivery.next_try_at, state__in=Delivery.OPEN)
    delivery.tries += 1
    return bool(
        same.update(
            state=Delivery.State.SENDING,
            tries=delivery.tries,
            last_try_at=now,
            next_try_at=now + timedelta(seconds=CLAIM_S),
            **fields,
        )
    )


def _post(claim: _Claim) -> sending.Answer:
    """Send a claimed delivery; runs in a thread and touches no database."""
    subscription = claim.delivery.subscription
    at = int(time.time())
    signed = {signing.HEADER: signing.signature(secret=subscription.secret, body=claim.body, at=at)}
    return sending.post(subscription.url, claim.body, {**claim.headers, **signed}, allowed=allowed_networks())


def allowed_networks() -> list[sending.Network]:
    return [ipaddress.ip_network(text, strict=False) for text in settings.WEBHOOK_NETWORKS]


@transaction.atomic
def answer_store(*, delivery: Delivery, answer: sending.Answer) -> None:
    """Store the answer to a try: delivered, failed, or waiting for the next one."""
    fields: dict[str, Any] = {
        "status": answer.status,
        "answer": storable.text(answer.text)[:300],
        "took_ms": min(answer.took_ms, 2**31 - 1),
    }
    if answer.status is not None and 200 <= answer.status < 300:
        _end(delivery, Delivery.State.DELIVERED, **fields)
        return
    is_transient = not answer.is_forbidden and (
        answer.status is None or answer.status >= 500 or answer.status in TRANSIENT
    )
    if not is_transient or delivery.tries > len(BACK_OFF_S):
        _end(delivery, Delivery.State.FAILED, **fields)
        return
    pause_s = BACK_OFF_S[delivery.tries - 1] * random.uniform(0.9, 1.1)
    next_try_at = timezone.now() + timedelta(seconds=max(pause_s, min(answer.retry_after_s or 0.0, BACK_OFF_S[-1])))
    _sending(delivery).update(state=Delivery.State.WAITING, next_try_at=next_try_at, **fields)
    # A receiver that does not answer is asked again with one request, not with everything that waits for it.
    others = Delivery.objects.filter(subscription_id=delivery.subscription_id, state=Delivery.State.WAITING)
    others.filter(Q(next_try_at__lt=next_try_at)).update(next_try_at=next_try_at)


def _end(delivery: Delivery, state: str, **fields: Any) -> None:
    _sending(delivery).update(state=state, next_try_at=None, **fields)
    logger.info("delivery %s (%s): %s", delivery.pk, delivery, state)


def _sending(delivery: Delivery) -> Any:
    """Select a delivery if it is still open and no other worker has taken it over."""
    return Delivery.objects.filter(pk=delivery.pk, state__in=Delivery.OPEN, tries=delivery.tries)


def prune() -> int:
    """Delete routed events older than KEPT, with their deliveries, unless one of these is still open."""
    old = Event.objects.filter(at__lt=timezone.now() - KEPT).exclude(routed_at=None)
    count, _ = old.exclude(deliveries__in=Delivery.objects.open()).delete()
    return count
