"""What a stolen secret is worth, row by row as docs/operate/security.md says it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from parlab.fleet import beats
from parlab.fleet.tasks import heartbeat
from parlab.lab.models import Node, NodeKey
from parlab.lab.services.access.node_keys import _padded, find_key, node_code_create, node_keys_revoke, signing_key
from parlab.refusals import PENDING
from runners.wire.protocol import Cancel, Heartbeat, sign, verify
from runners.wire.trust import Key, Untrusted, seal, shared_key
from tests.signed import sealed_heartbeat

PASSWORD = "correct horse battery"
OWN = bytes(range(32))


@pytest.fixture(autouse=True)
def _unknown_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    beats._beats.clear()
    PENDING.take()
    monkeypatch.setattr("parlab.fleet.tasks.store_refused", lambda: None)


@pytest.fixture
def enrolled(user: User) -> Callable[[str], Key]:
    """Give a node a key of its own, as an enrolment does: enrolled("gpu1")."""

    def enrol(name: str) -> Key:
        node_code_create(node_name=name, by=user)
        row = NodeKey.objects.get(node_name=name)
        now = timezone.now()
        wrapped = _padded(OWN, row.key_id).hex()
        NodeKey.objects.filter(pk=row.pk).update(wrapped=wrapped, enrolled_at=now, used_at=now)
        return Key(row.key_id, OWN)

    return enrol


def beat(name: str) -> Heartbeat:
    return Heartbeat(node=name, pool="default", sent_at=time.time(), slots=1, version="1", hardware={}, held=[])


def refused() -> str:
    return "; ".join(each.reason for each in PENDING.take())


def is_logged_in(client: Client) -> bool:
    return client.get("/account/").status_code == 200


# --- accounts --------------------------------------------------------------------------------------------------------


@pytest.fixture
def owner(db: None) -> User:
    return User.objects.create_user("grace", password=PASSWORD)


@pytest.fixture
def thief(owner: User) -> Client:
    """A browser with the copied cookie of a session."""
    original, copy = Client(), Client()
    assert original.login(username="grace", password=PASSWORD)
    copy.cookies["sessionid"] = original.cookies["sessionid"].value
    assert is_logged_in(copy)
    return copy


def test_a_new_password_ends_a_stolen_session_and_not_that_of_the_owner(owner: User, thief: Client) -> None:
    browser = Client()
    browser.login(username="grace", password=PASSWORD)
    new = {"new_password1": "another staple 7", "new_password2": "another staple 7"}
    assert browser.post("/account/password/", {"old_password": PASSWORD, **new}).status_code == 302
    assert is_logged_in(browser)
    assert not is_logged_in(thief)


def test_a_logout_of_the_owner_ends_a_stolen_session(owner: User, thief: Client) -> None:
    browser = Client()
    browser.cookies["sessionid"] = thief.cookies["sessionid"].value
    assert browser.post("/logout/").status_code == 302
    assert not is_logged_in(thief)


def test_a_disabled_account_ends_its_sessions(owner: User, thief: Client) -> None:
    User.objects.update(is_active=False)
    assert not is_logged_in(thief)


def test_another_secret_key_ends_all_sessions(thief: Client, settings: Any) -> None:
    settings.SECRET_KEY = "another one, as after the file was replaced and the server started again"
    assert not is_logged_in(thief)


def test_the_secret_key_alone_makes_no_session(owner: User, client: Client) -> None:
    """A session is a row of the database; the key only signs what the row says."""
    forged = SessionStore()
    content = {
        "_auth_user_id": str(owner.pk),
        "_auth_user_backend": "parlab.lab.services.access.passwords.PasswordLogins",
        "_auth_user_hash": owner.get_session_auth_hash(),
    }
    client.cookies["sessionid"] = forged.encode(content)
    assert not is_logged_in(client)
    client.cookies["sessionid"] = "chosenbytheattacker0123456789abc"
    assert not is_logged_in(client)
    forged.update(content)
    forged.save()  # who can also write to the database is anyone
    client.cookies["sessionid"] = str(forged.session_key)
    assert is_logged_in(client)
    Session.objects.all().delete()
    assert not is_logged_in(client)


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_the_key_of_a_node_acts_for_no_other_node(enrolled: Callable[[str], Key], db: None) -> None:
    stolen = enrolled("gpu1")
    heartbeat(sealed_heartbeat(beat("gpu1"), stolen))
    assert [node.name for node in Node.objects.all()] == ["gpu1"]
    for name in ("gpu2", "new"):
        heartbeat(sealed_heartbeat(beat(name), stolen))
        content = beat(name).model_dump(mode="json")
        heartbeat(seal("heartbeat", "gpu1", content, stolen, number=int(time.time() * 1e6)))
    assert [node.name for node in Node.objects.all()] == ["gpu1"]
    assert "gpu2" in refused()


def test_the_key_of_a_node_starts_and_stops_nothing_on_another(enrolled: Callable[[str], Key]) -> None:
    stolen = enrolled("gpu1")
    keys = {("gpu1", stolen.id): stolen.secret}
    order = sign(Cancel(run=1, attempt=1, node="gpu2"), stolen)

    def of_second_node(_: str, key_id: str) -> bytes:
        if key_id != "own key of gpu2":
            raise Untrusted("no such key")
        return b"2" * 32

    with pytest.raises(Untrusted):
        verify(order, of_second_node, Cancel, node="gpu2")
    # Nor as an order to its own node that is delivered to the other one.
    own = sign(Cancel(run=1, attempt=1, node="gpu1"), stolen)
    with pytest.raises(Untrusted):
        verify(own, of_second_node, Cancel, node="gpu2")
    with pytest.raises(Untrusted, match="gpu1"):
        verify(own, lambda node, key_id: keys[node, key_id], Cancel, node="gpu2")


def test_the_database_without_the_node_key_of_the_server_gives_no_key(
    enrolled: Callable[[str], Key], settings: Any
) -> None:
    stolen = enrolled("gpu1")
    row = NodeKey.objects.get()
    assert stolen.secret.hex() not in str(NodeKey.objects.values())
    assert signing_key("gpu1") == stolen  # with both, each key can be read
    settings.NODE_KEY = b"a key that the thief of the database has guessed"
    guess = signing_key("gpu1")
    assert guess is None or guess.secret != stolen.secret
    assert find_key("gpu1", row.key_id) != stolen.secret


def test_the_shared_key_acts_for_every_node_without_a_key_of_its_own(enrolled: Callable[[str], Key], db: None) -> None:
    own = enrolled("gpu1")
    for name in ("gpu1", "gpu2"):
        heartbeat(sealed_heartbeat(beat(name), settings.NODE_KEY))
    assert [node.name for node in Node.objects.all()] == ["gpu2"]
    assert "gpu1 signs with the shared key, but has a key of its own" in refused()
    assert find_key("gpu1", own.id) == own.secret


def test_deleting_the_keys_of_a_revoked_node_readmits_the_shared_key(
    enrolled: Callable[[str], Key], user: User
) -> None:
    enrolled("gpu1")
    node_keys_revoke(node_name="gpu1", by=user)
    assert signing_key("gpu1") is None
    NodeKey.objects.all().delete()
    assert signing_key("gpu1") == shared_key(settings.NODE_KEY, "gpu1")


def test_an_order_of_yesterday_starts_nothing_today(
    enrolled: Callable[[str], Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds the URL of Redis can keep what passes through and send it later."""
    key = enrolled("gpu1")
    then = time.time() - timedelta(minutes=11).total_seconds()
    with monkeypatch.context() as patch:
        patch.setattr("runners.wire.trust.time.time", lambda: then)
        kept = sign(Cancel(run=1, attempt=1, node="gpu1"), key)
    with pytest.raises(Untrusted, match="expired"):
        verify(kept, lambda *_: key.secret, Cancel, node="gpu1")
