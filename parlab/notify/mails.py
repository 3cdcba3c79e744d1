"""Mails: what happens within a short time goes to a person as one mail.

A mail waits until SETTLE_S have passed without a further event, at most LONGEST_S, and EVERY_S after the one before. So
500 failing runs of a sweep are one mail, and a person hears of a single failure within half a minute.
"""

from __future__ import annotations

import logging
import secrets
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import F, Max, Min
from django.utils import timezone

from parlab.lab.models import Event
from parlab.lab.services import storable

from . import messages
from .models import Delivery, DeliveryQuerySet, Subscription

logger = logging.getLogger(__name__)

SETTLE_S, LONGEST_S, EVERY_S = 30.0, 300.0, 600.0
CLAIM_S = 120
"""Time after which another worker sends a mail again whose worker has died."""
BACK_OFF_S = (30, 120, 600, 1_800, 3_600, 7_200)


def mails_send() -> int:
    """Send the mails that are due, one per user at most; return their number."""
    now = timezone.now()
    due = _mails().due().order_by("subscription__user").values_list("subscription__user", flat=True)
    return sum(_mail_send(user_id, now) for user_id in list(due.distinct()))


def _mails() -> DeliveryQuerySet:
    return Delivery.objects.filter(subscription__channel=Subscription.Channel.MAIL)


def _mail_send(user_id: int, now: datetime) -> bool:
    """Send a user what is due; False if it should wait for more, or another worker sends it."""
    with transaction.atomic():
        user = User.objects.select_for_update(no_key=True).get(pk=user_id)
        mail = _claim(user, now)
    deliveries = Delivery.objects.filter(mail=mail, state=Delivery.State.SENDING) if mail else Delivery.objects.none()
    rows = list(deliveries.select_related("event__experiment", "subscription").order_by("event_id", "pk"))
    if not rows:
        return False
    # A user can be subscribed both to an experiment and to all experiments.
    pairs = {row.event_id: (row.event, row.subscription) for row in reversed(rows)}
    subject, text = messages.mail_of([pairs[event_id] for event_id in sorted(pairs)])
    # The ID stays the same if the worker dies now: mail programs show a repeated mail once.
    headers = {"Message-ID": f"<{mail}@parlab>", "Auto-Submitted": "auto-generated"}
    try:
        EmailMessage(subject, text, to=[user.email], headers=headers).send()
    except (OSError, ValueError) as problem:  # errors of smtplib are OSErrors
        logger.warning("mail to user %s: %s", user, problem)
        _postpone(deliveries, rows[0].tries, f"not sent: {problem}")
    else:
        deliveries.update(state=Delivery.State.DELIVERED, next_try_at=None, answer=f"mail to {user.email}"[:300])
    return True


def _claim(user: User, now: datetime) -> str:
    """Claim deliveries of a locked user for one mail; return its ID, empty if there is nothing to send yet."""
    mine = _mails().filter(subscription__user=user)
    interrupted = mine.due().filter(state=Delivery.State.SENDING).first()
    if interrupted is not None:
        mail, rows = interrupted.mail, mine.filter(mail=interrupted.mail)
    else:
        mail, rows = secrets.token_hex(16), _ready(mine, now)
    if not user.is_active or not user.email:
        why = "the account has no mail address" if user.is_active else "the user is not active"
        _update(rows, state=Delivery.State.FAILED, next_try_at=None, answer=f"not sent: {why}")
        return ""
    claim = {"state": Delivery.State.SENDING, "mail": mail, "tries": F("tries") + 1, "last_try_at": now}
    return mail if _update(rows, **claim, next_try_at=now + timedelta(seconds=CLAIM_S)) else ""


def _update(rows: DeliveryQuerySet, **fields: Any) -> int:
    """Update rows that were selected through other tables, in blocks: databases limit the length of a list."""
    ids = list(rows.values_list("pk", flat=True))
    blocks = (ids[start : start + 500] for start in range(0, len(ids), 500))
    return sum(Delivery.objects.filter(pk__in=block).update(**fields) for block in blocks)


def _ready(mine: DeliveryQuerySet, now: datetime) -> DeliveryQuerySet:
    """Return what a mail should contain now: a test at once, otherwise everything once a burst is over."""
    due = mine.due().filter(state=Delivery.State.WAITING)
    tests = due.filter(event__kind=Event.Kind.TEST)
    if tests.exists():
        return tests
    times = due.filter(tries=0).aggregate(first=Min("created_at"), last=Max("created_at"))
    if times["first"] is None:
        return due  # a mail that could not be sent
    is_settled = now - times["last"] >= timedelta(seconds=SETTLE_S)
    has_waited = now - times["first"] >= timedelta(seconds=LONGEST_S)
    sent = mine.filter(state=Delivery.State.DELIVERED).exclude(event__kind=Event.Kind.TEST)
    is_soon = sent.filter(last_try_at__gt=now - timedelta(seconds=EVERY_S)).exists()
    return due if (is_settled or has_waited) and not is_soon else due.none()


def _postpone(deliveries: DeliveryQuerySet, tries: int, problem: str) -> None:
    """Try a mail again later; after the last try it has failed."""
    answer = storable.text(problem)[:300]
    if tries > len(BACK_OFF_S):
        deliveries.update(state=Delivery.State.FAILED, next_try_at=None, answer=answer)
        return
    next_try_at = timezone.now() + timedelta(seconds=BACK_OFF_S[tries - 1])
    deliveries.update(state=Delivery.State.WAITING, next_try_at=next_try_at, answer=answer)
