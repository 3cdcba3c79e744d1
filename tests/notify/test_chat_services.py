"""Slack and Teams get messages of their own kind; quiet hours and the mail of the day hold events back."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from parlab.notify import services
from parlab.notify.models import Delivery, Subscription
from parlab.notify.times import checked_hour, first_time

from .conftest import Receiver
from .test_webhooks import fail, make_due

NIGHT = datetime.fromisoformat("2026-01-31T23:30:00+00:00")


def sent(subscription: Subscription, receiver: Receiver, attempt: Any, style: str) -> dict[str, Any]:
    Subscription.objects.update(style=style)
    fail(attempt, "rank 0: <boom> & more")
    services.deliver()
    body: dict[str, Any] = json.loads(receiver.requests[-1].body)
    return body


@pytest.mark.django_db
def test_slack_gets_a_message_with_a_link(
    subscribe: Callable[..., Subscription], receiver: Receiver, make_attempt: Callable[..., Any]
) -> None:
    body = sent(subscribe(("failed",)), receiver, make_attempt(), "slack")
    assert set(body) == {"text", "blocks"}
    assert "&lt;boom&gt; &amp; more <http://parlab.test/" in body["text"]
    assert body["blocks"][0]["text"] == {"type": "mrkdwn", "text": body["text"]}


@pytest.mark.django_db
def test_teams_gets_an_adaptive_card(
    subscribe: Callable[..., Subscription], receiver: Receiver, make_attempt: Callable[..., Any]
) -> None:
    body = sent(subscribe(("failed",)), receiver, make_attempt(), "teams")
    (attachment,) = body["attachments"]
    card = attachment["content"]
    assert (body["type"], card["type"]) == ("message", "AdaptiveCard")
    assert "<boom> & more" in card["body"][0]["text"]
    assert card["actions"][0]["url"].startswith("http://parlab.test/")


@pytest.mark.parametrize(
    ("hours", "expected"),
    [
        ({}, "2026-01-31T23:30"),
        ({"quiet_from": 22, "quiet_until": 7}, "2026-02-01T07:00"),
        ({"quiet_from": 1, "quiet_until": 7}, "2026-01-31T23:30"),
        ({"digest_at": 8}, "2026-02-01T08:00"),
        ({"digest_at": 3, "quiet_from": 22, "quiet_until": 7}, "2026-02-01T07:00"),
    ],
)
def test_an_event_waits_for_the_end_of_quiet_hours_and_for_the_digest(hours: dict[str, int], expected: str) -> None:
    assert first_time(NIGHT, **hours).isoformat()[:16] == expected


@pytest.mark.parametrize("text", ["24", "-1", "noon", "7:30", "99999999"])
def test_what_is_no_hour_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is no hour; use 0 to 23"):
        checked_hour(text, "quiet from")


@pytest.mark.django_db
def test_quiet_hours_hold_a_webhook_back(
    subscribe: Callable[..., Subscription], receiver: Receiver, make_attempt: Callable[..., Any]
) -> None:
    hour = timezone.localtime().hour
    subscribe(("failed",))
    Subscription.objects.update(quiet_from=hour, quiet_until=(hour + 2) % 24)
    fail(make_attempt())
    services.deliver()
    assert not receiver.requests
    waiting = Delivery.objects.get()
    assert waiting.next_try_at is not None
    assert timedelta(hours=1) - timedelta(seconds=5) <= waiting.next_try_at - timezone.now() <= timedelta(hours=2)
    make_due()
    services.deliver()
    assert len(receiver.requests) == 1


@pytest.mark.django_db
def test_the_form_names_services_and_keeps_hours(admin: User, loopback_allowed: None) -> None:
    client = Client()
    client.force_login(admin)
    fields = {"channel": "slack", "url": "https://hooks.slack.com/services/x", "topics": ["failed"]}
    client.post("/notifications/subscribe/", {**fields, "quiet_from": "22", "quiet_until": "7"})
    made = Subscription.objects.get()
    assert (made.channel, made.style, made.quiet_from, made.quiet_until) == ("webhook", "slack", 22, 7)
    shown = client.get("/notifications/").content.decode()
    assert "Slack: https://hooks.slack.com" in shown
    assert "quiet from 22:00 to 7:00" in shown
    half = client.post("/notifications/subscribe/", {**fields, "quiet_from": "22"})
    assert "quiet hours need both ends" in half.content.decode()
    digest = client.post("/notifications/subscribe/", {**fields, "digest_at": "8"})
    assert "a digest is a mail" in digest.content.decode()
    assert Subscription.objects.count() == 1
