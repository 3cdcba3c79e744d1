"""Webhooks against a real HTTP server: signed, once, tried again, never to a private place."""

from __future__ import annotations

import ipaddress
import json
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Event, Experiment
from parlab.lab.services.members import attempt_report
from parlab.lab.services.runs import run_cancel_request
from parlab.notify import sending, services, signing
from parlab.notify.models import Delivery, Subscription
from runners.wire.protocol import Report

from .conftest import Receiver

pytestmark = pytest.mark.django_db
Subscribe = Callable[..., Subscription]
MakeAttempt = Callable[..., Any]


def fail(attempt: Any, reason: str = "rank 0: ValueError") -> None:
    attempt_report(attempt=attempt, report=Report(state="failed", at=time.time(), reason=reason, exit_code=1))


def make_due() -> None:
    Delivery.objects.open().update(next_try_at=timezone.now() - timedelta(seconds=1))


def test_a_failed_run_is_posted_once_signed_and_with_its_facts(
    subscribe: Subscribe, receiver: Receiver, make_attempt: MakeAttempt
) -> None:
    subscription, attempt = subscribe(("failed", "ended")), make_attempt()

    fail(attempt)
    services.deliver()
    services.deliver()

    (request,) = receiver.requests
    content = json.loads(request.body)
    assert request.path == "/hook?from=parlab"
    assert content["kind"] == "run.failed"
    assert content["run"] == {"number": 1, "label": "", "state": "failed", "summary": {}}
    assert content["text"] == "Run #1 of Pipeline schedules failed: rank 0: ValueError"
    assert content["url"] == f"http://parlab.test{attempt.run.get_absolute_url()}"
    assert request.headers["Idempotency-Key"] == content["id"] == str(Event.objects.get().uuid)
    header = request.headers[signing.HEADER]
    assert signing.is_valid(secret=subscription.secret, body=request.body, header=header, now=time.time())
    assert not signing.is_valid(secret=subscription.secret, body=request.body + b" ", header=header, now=time.time())
    assert not signing.is_valid(secret=subscription.secret, body=request.body, header=header, now=time.time() + 301)
    assert not signing.is_valid(secret=subscription.secret, body=request.body, header="v1=,t=x", now=time.time())
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.status, delivery.tries, delivery.next_try_at) == ("delivered", 204, 1, None)


@pytest.mark.database
def test_an_event_of_a_transaction_that_fails_is_never_announced(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt()

    with transaction.atomic():
        fail(attempt)
        transaction.set_rollback(True)

    assert not Event.objects.exists()


def test_a_subscription_gets_its_topics_of_its_experiment_from_its_creation_on(
    subscribe: Subscribe, receiver: Receiver, make_attempt: MakeAttempt, admin: User
) -> None:
    earlier = make_attempt(point={"a": 1})
    fail(earlier)
    other = Experiment.objects.create(name="Other", slug="other", owner=admin)
    subscribe(("oom",)), subscribe(("failed",), other)
    disabled = subscribe()
    services.subscription_change(subscription=disabled, topics=["ended"], is_enabled=False)

    fail(make_attempt(point={"a": 2}))
    services.deliver()
    assert receiver.requests == []

    subscribe(("ended",), earlier.run.experiment)
    run_cancel_request(run=make_attempt(state="queued", point={"a": 3}).run)
    services.deliver()
    assert [json.loads(request.body)["kind"] for request in receiver.requests] == ["run.cancelled"]


@pytest.mark.parametrize(("status", "state"), [(503, "waiting"), (429, "waiting"), (404, "failed"), (302, "failed")])
def test_answers_that_may_pass_are_tried_again_and_redirects_are_not_followed(
    subscribe: Subscribe, receiver: Receiver, make_attempt: MakeAttempt, status: int, state: str
) -> None:
    subscribe()
    receiver.answers = [(status, {"Location": receiver.url})]

    fail(make_attempt())
    services.deliver()
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.status, len(receiver.requests)) == (state, status, 1)

    make_due()
    services.deliver()
    keys = {request.headers["Idempotency-Key"] for request in receiver.requests}
    assert (len(receiver.requests), len(keys)) == (2 if state == "waiting" else 1, 1)


def test_a_receiver_that_is_away_gets_everything_later_and_is_asked_once_a_round(
    subscribe: Subscribe, receiver: Receiver, make_attempt: MakeAttempt
) -> None:
    subscribe()
    receiver.answers = [(500, {"Retry-After": "3600"})]
    for point in range(3):
        fail(make_attempt(point={"a": point}))

    services.deliver()
    services.deliver()
    assert len(receiver.requests) == 1
    waiting = Delivery.objects.filter(state="waiting", next_try_at__gt=timezone.now() + timedelta(minutes=59))
    assert waiting.count() == 3

    make_due()
    services.deliver()
    assert len({request.headers["Idempotency-Key"] for request in receiver.requests}) == 3
    assert Delivery.objects.filter(state="delivered").count() == 3


def test_a_delivery_has_failed_after_its_last_try_and_can_be_sent_again(
    subscribe: Subscribe, receiver: Receiver, make_attempt: MakeAttempt
) -> None:
    subscribe()
    tries = len(services.BACK_OFF_S) + 1
    receiver.answers = [(500, {})] * tries
    fail(make_attempt())
    for _ in range(tries + 1):
        services.deliver()
        make_due()
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.tries, len(receiver.requests)) == ("failed", tries, tries)

    assert services.delivery_retry(delivery=delivery)
    services.deliver()
    assert Delivery.objects.get().state == "delivered"


@pytest.mark.database
def test_a_delivery_of_a_killed_worker_is_sent_again_with_the_same_key(
    subscribe: Subscribe, receiver: Receiver, make_attempt: MakeAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe()
    fail(make_attempt())
    with monkeypatch.context() as patch:
        patch.setattr(services, "answer_store", lambda **_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            services.deliver()
    assert Delivery.objects.get().state == "sending"

    services.deliver()
    assert len(receiver.requests) == 1, "its claim has not run out"
    make_due()
    services.deliver()

    assert len({request.headers["Idempotency-Key"] for request in receiver.requests}) == 1
    assert (len(receiver.requests), Delivery.objects.get().state) == (2, "delivered")


@pytest.mark.database
def test_a_late_answer_of_a_slow_worker_does_not_undo_that_of_the_next(
    subscribe: Subscribe, make_attempt: MakeAttempt
) -> None:
    subscribe()
    fail(make_attempt())
    services.events_route()
    first, second = Delivery.objects.get(), Delivery.objects.get()
    assert services.claim_take(first)
    assert not services.claim_take(second), "two workers never claim one delivery"
    make_due()
    second = Delivery.objects.get()
    assert services.claim_take(second)
    services.answer_store(delivery=second, answer=sending.Answer(204, "", 1))
    services.answer_store(delivery=first, answer=sending.Answer(None, "no answer", 1))

    assert Delivery.objects.get().state == "delivered"


def test_a_drip_of_bytes_and_a_huge_answer_are_cut_off(receiver: Receiver) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(200):
            try:
                handler.wfile.write(f"X-{number}: 1\r\n".encode())
                time.sleep(0.05)
            except OSError:
                return

    allowed = [ipaddress.ip_network("127.0.0.0/8")]
    receiver.handle = drip
    answer = sending.post(receiver.url, b"{}", {}, allowed=allowed, timeout_s=0.5)
    assert answer.status is None
    assert answer.text == "no complete answer within 0.5 s"

    def flood(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + b"x" * 10_000)

    receiver.handle = flood
    answer = sending.post(receiver.url, b"{}", {}, allowed=allowed)
    assert (answer.status, answer.text) == (200, "x" * 300)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
     "fe80::1", "0.0.0.0", "224.0.0.1", "100.64.0.1", "fd00::1", "192.168.0.1"],
)  # fmt: skip
def test_no_request_goes_to_a_private_address(address: str) -> None:
    checked = ipaddress.ip_address(address)
    assert not sending.is_allowed(checked, [])
    assert sending.is_allowed(ipaddress.ip_address("93.184.216.34"), [])
    assert sending.is_allowed(ipaddress.ip_address("10.1.2.3"), [ipaddress.ip_network("10.0.0.0/8")])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "[::1]:8000", "10.1.2.3"])
def test_an_address_of_this_machine_or_network_is_refused_when_it_is_entered(
    admin: User, host: str, settings: Any
) -> None:
    settings.WEBHOOK_NETWORKS = []
    with pytest.raises(ValueError, match="no public address; add its network to PARLAB_WEBHOOK_NETWORKS"):
        services.subscription_create(user=admin, channel="webhook", topics=["alert"], url=f"http://{host}/hook")


def test_an_unknown_event_is_named_with_its_place(admin: User, client: Client) -> None:
    client.force_login(admin)
    data = {"channel": "webhook", "topics": ["alert", "sunshine"], "url": "https://example.org"}
    answer = client.post("/api/subscriptions/", data, "application/json").json()["errors"]
    assert [(each["field"], each["message"]) for each in answer] == [("topics.1", '"sunshine" is not a valid choice.')]


def test_a_name_that_leads_to_this_machine_is_refused_at_once_and_for_good(
    subscribe: Subscribe, receiver: Receiver, make_attempt: MakeAttempt, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = subscribe()
    settings.WEBHOOK_NETWORKS = []
    Subscription.objects.filter(pk=subscription.pk).update(url=receiver.url.replace("127.0.0.1", "localhost"))
    fail(make_attempt())
    services.deliver()
    delivery = Delivery.objects.get()
    assert (delivery.state, receiver.requests) == ("failed", [])
    assert "PARLAB_WEBHOOK_NETWORKS" in delivery.answer

    # A name that resolves to a public address when it is checked and to this machine afterwards: looked up once.
    lookups: list[str] = []

    def resolve(host: str, *args: Any, **_: Any) -> list[Any]:
        lookups.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1" if len(lookups) == 1 else "127.0.0.1", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    answer = sending.post("http://rebinding.test/", b"", {}, allowed=[ipaddress.ip_network("192.0.2.0/24")],
                          timeout_s=0.2)  # fmt: skip
    assert answer.status is None
    assert receiver.requests == []


@pytest.mark.parametrize(
    "url",
    ["ftp://host/", "file:///etc/passwd", "http://", "http://a b/", "http://user:secret@host/", "http://h:0/", "http://h:x/",
     "https://" + "a" * 2_000, "http://h/\r\nX: 1", "javascript:alert(1)", "http://ü.example/"],
)  # fmt: skip
def test_an_address_that_is_no_web_address_is_refused(admin: User, url: str) -> None:
    with pytest.raises(ValueError, match="url"):
        services.subscription_create(user=admin, channel="webhook", url=url, topics=["ended"])


def test_events_are_forgotten_after_a_month_unless_a_delivery_is_open(
    subscribe: Subscribe, make_attempt: MakeAttempt
) -> None:
    subscribe()
    fail(make_attempt(point={"a": 1}))
    services.deliver()
    fail(make_attempt(point={"a": 2}))
    services.events_route()
    Event.objects.update(at=timezone.now() - timedelta(days=31))

    services.prune()

    assert [delivery.state for delivery in Delivery.objects.all()] == ["waiting"]
    assert Event.objects.count() == 1
