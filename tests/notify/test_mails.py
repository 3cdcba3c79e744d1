"""Mails: a burst is one mail, a mail that cannot be sent is tried again, a killed worker repeats the same mail."""

from __future__ import annotations

import smtplib
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django.core.mail import EmailMessage
from django.db.models import F
from django.utils import timezone

from parlab.lab.models import Event
from parlab.lab.services.events import event_add
from parlab.notify import mails, services
from parlab.notify.models import Delivery

pytestmark = pytest.mark.django_db


@pytest.fixture
def subscribed(mailer: User) -> User:
    services.subscription_create(user=mailer, channel="mail", topics=["failed"], base_url="https://parlab.example.org/")
    return mailer


def fail(experiment: Any, count: int) -> None:
    for number in range(count):
        event_add(kind=Event.Kind.RUN_FAILED, text=f"Run #{number} failed", path="/x/", experiment=experiment)


def later(seconds: float) -> None:
    """Let time pass: move everything that was stored back."""
    back = timedelta(seconds=seconds)
    Delivery.objects.update(
        created_at=F("created_at") - back, next_try_at=F("next_try_at") - back, last_try_at=F("last_try_at") - back
    )


def test_a_sweep_of_500_failing_runs_is_one_mail(subscribed: User, experiment: Any) -> None:
    fail(experiment, 500)
    services.deliver()
    assert mail.outbox == []

    later(mails.SETTLE_S + 1)
    services.deliver()
    services.deliver()

    (message,) = mail.outbox
    assert message.to == ["ada@example.org"]
    assert message.subject == "[parlab] 500 events: run failed in Pipeline schedules: 500"
    body = str(message.body)
    assert body.count("https://parlab.example.org/x/") == 20
    assert "and 480 more." in body
    assert set(Delivery.objects.values_list("state", flat=True)) == {"delivered"}

    fail(experiment, 1)
    services.deliver()
    later(mails.SETTLE_S + 1)
    services.deliver()
    assert len(mail.outbox) == 1, "the next mail waits for its time"
    later(mails.EVERY_S)
    services.deliver()
    assert mail.outbox[1].subject == "[parlab] Run #0 failed"


def test_an_event_of_two_subscriptions_is_in_a_mail_once(subscribed: User, experiment: Any) -> None:
    services.subscription_create(user=subscribed, channel="mail", topics=["failed"], experiment=experiment)
    fail(experiment, 1)
    services.events_route()
    later(mails.SETTLE_S + 1)
    services.deliver()

    assert [message.subject for message in mail.outbox] == ["[parlab] Run #0 failed"]
    assert Delivery.objects.filter(state="delivered").count() == 2


def test_a_mail_that_cannot_be_sent_is_tried_again_and_a_killed_worker_repeats_it(
    subscribed: User, experiment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[BaseException] = [smtplib.SMTPServerDisconnected("gone"), KeyboardInterrupt()]
    ids: list[str] = []
    send = EmailMessage.send

    def failing(self: EmailMessage, fail_silently: bool = False) -> int:
        ids.append(self.extra_headers["Message-ID"])
        if problems:
            raise problems.pop(0)
        return send(self)

    monkeypatch.setattr(EmailMessage, "send", failing)
    fail(experiment, 2)
    services.events_route()
    later(mails.SETTLE_S + 1)
    services.deliver()
    delivery = Delivery.objects.earliest("pk")
    assert (delivery.state, delivery.answer) == ("waiting", "not sent: gone")

    later(mails.BACK_OFF_S[0] + 1)
    with pytest.raises(KeyboardInterrupt):
        services.deliver()
    services.deliver()
    assert mail.outbox == [], "the claim of the killed worker has not run out"
    later(mails.CLAIM_S + 1)
    services.deliver()
    assert len(mail.outbox) == 1
    assert ids[1] == ids[2], "the same mail"


def test_mail_needs_a_server_that_sends_it_and_an_address(admin: User, settings: Any) -> None:
    settings.SENDS_MAIL = False
    with pytest.raises(ValueError, match="EMAIL_URL"):
        services.subscription_create(user=admin, channel="mail", topics=["failed"])
    settings.SENDS_MAIL = True
    with pytest.raises(ValueError, match="no mail address"):
        services.subscription_create(user=admin, channel="mail", topics=["failed"])


def test_a_user_who_left_gets_nothing(subscribed: User, experiment: Any) -> None:
    fail(experiment, 1)
    services.events_route()
    User.objects.filter(pk=subscribed.pk).update(is_active=False)
    later(mails.SETTLE_S + 1)
    services.deliver()
    assert (mail.outbox, Delivery.objects.get().state) == ([], "failed")
    assert Delivery.objects.get().next_try_at is None
    assert timezone.now()
