"""The page of notifications: subscribe, test, change, delete; one's own only."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from parlab.notify import services
from parlab.notify.models import Delivery, Subscription

from .conftest import Receiver

pytestmark = pytest.mark.django_db
FORM = {"channel": "webhook", "topics": ["failed", "oom"]}


def test_a_person_subscribes_tests_changes_and_deletes_a_webhook(
    page: Client, receiver: Receiver, loopback_allowed: None, experiment: Any
) -> None:
    fields = {**FORM, "url": receiver.url, "experiment": experiment.slug}
    page.post(reverse("subscribe"), fields)
    subscription = Subscription.objects.get()
    shown = page.get(reverse("notifications")).content.decode()
    assert subscription.secret in shown
    assert "nothing sent yet" in shown
    assert subscription.base_url == "http://testserver/"

    page.post(reverse("subscription-act", args=[subscription.pk, "test"]))
    services.deliver()
    shown = page.get(reverse("notifications")).content.decode()
    assert len(receiver.requests) == 1
    assert "delivered" in shown
    assert "<code>204</code>" in shown

    changed = {"url": receiver.url, "topics": ["study"]}
    page.post(reverse("subscription-act", args=[subscription.pk, "change"]), changed)
    subscription.refresh_from_db()
    assert (subscription.topics, subscription.is_enabled) == (["study"], False)
    page.post(reverse("subscription-act", args=[subscription.pk, "delete"]))
    assert not Subscription.objects.exists()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"url": "nonsense"}, "is no web address"),
        ({"url": "https://example.org/", "topics": []}, "no event is selected"),
        ({"url": "https://example.org/", "topics": ["x"]}, "unknown event"),
        ({"channel": "pigeon"}, "unknown channel"),
        ({"channel": "mail"}, "sends no mail"),
    ],
)
def test_a_form_that_cannot_be_saved_names_the_field_and_the_remedy(
    page: Client, fields: dict[str, Any], problem: str
) -> None:
    answer = page.post(reverse("subscribe"), {**FORM, **fields})
    assert answer.status_code == 400
    assert problem in answer.content.decode()
    assert not Subscription.objects.exists()


def test_nobody_touches_the_subscriptions_of_others_and_viewers_create_no_webhooks(client: Client, admin: User) -> None:
    theirs = services.subscription_create(user=admin, channel="webhook", url="https://example.org/", topics=["ended"])
    delivery = services.subscription_test(subscription=theirs)
    client.force_login(User.objects.create_user("eve"))
    for action in ("test", "change", "delete"):
        assert client.post(reverse("subscription-act", args=[theirs.pk, action])).status_code == 404
    assert client.post(reverse("delivery-retry", args=[delivery.pk])).status_code == 404
    assert theirs.secret not in client.get(reverse("notifications")).content.decode()
    refused = client.post(reverse("subscribe"), {**FORM, "url": "https://example.org/"})
    assert "may not create webhooks" in refused.content.decode()
    assert Subscription.objects.count() == Delivery.objects.count() == 1


def test_a_mail_address_is_checked_and_a_test_mail_is_sent_at_once(
    page: Client, admin: User, settings: Any, mailoutbox: list[Any]
) -> None:
    settings.SENDS_MAIL = True
    assert "is no mail address" in page.post(reverse("mail-address"), {"email": "a\nb"}).content.decode()
    page.post(reverse("mail-address"), {"email": "ada@example.org"})
    page.post(reverse("subscribe"), {**FORM, "channel": "mail"})
    page.post(reverse("subscription-act", args=[Subscription.objects.get().pk, "test"]))
    services.deliver()
    assert [message.to for message in mailoutbox] == [["ada@example.org"]]


def test_the_admin_lists_subscriptions_and_sends_failed_deliveries_again(page: Client, admin: User) -> None:
    theirs = services.subscription_create(user=admin, channel="webhook", url="https://example.org/", topics=["ended"])
    delivery = services.subscription_test(subscription=theirs)
    Delivery.objects.update(state="failed", next_try_at=None)
    shown = page.get(reverse("admin:notify_subscription_change", args=[theirs.pk])).content.decode()
    assert theirs.secret not in shown
    action = {"action": "send_again", "_selected_action": [delivery.pk]}
    page.post(reverse("admin:notify_delivery_changelist"), action)
    assert Delivery.objects.get().state == "waiting"
