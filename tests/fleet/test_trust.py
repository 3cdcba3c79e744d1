"""What counts of an enemy who reads, keeps, changes and repeats every message between server and nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from parlab.celery import app
from parlab.fleet import beats
from parlab.fleet.tasks import enrol, heartbeat
from parlab.ingest import tasks
from parlab.ingest.batches import orders
from parlab.ingest.tasks import apply_batch
from parlab.lab.models import Attempt, Node, NodeKey
from parlab.lab.services.access.node_keys import (
    node_code_create,
    node_key_rotate,
    node_keys_revoke,
    rotation_order,
    signing_key,
)
from parlab.refusals import PENDING
from parlab.series import log
from runners.wire import trust
from runners.wire.agreement import agreed_key, derived_pair, new_pair
from runners.wire.keys import NodeKeys
from runners.wire.protocol import (
    ACKNOWLEDGE_TASK,
    Acknowledge,
    Batch,
    Cancel,
    Enrol,
    Heartbeat,
    Report,
    Rotate,
    enrolled_key,
    verify,
)
from runners.wire.trust import Key, Seen, Untrusted, code_key, seal, shared_key
from tests.conftest import place
from tests.signed import sealed_batch, sealed_heartbeat


@pytest.fixture(autouse=True)
def _unknown_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no heartbeat of another test count, and keep refusals in memory."""
    beats._beats.clear()
    PENDING.take()
    for name in ("parlab.ingest.tasks.store_refused", "parlab.fleet.tasks.store_refused"):
        monkeypatch.setattr(name, lambda: None)
    yield
    beats._beats.clear()


def refused() -> str:
    return "; ".join(f"{each.sender}: {each.reason}" for each in PENDING.take())


def beat(name: str = "gpu1", **fields: Any) -> Heartbeat:
    facts: dict[str, Any] = {"pool": "default", "sent_at": time.time(), "slots": 1, "version": "1", "hardware": {}}
    return Heartbeat(node=name, **{**facts, "held": [], **fields})


def result_of(attempt: Attempt, node: str) -> Batch:
    report = Report(state="finished", at=time.time(), exit_code=0)
    return Batch(
        run=attempt.run_id,
        attempt=1,
        node=node,
        sequence=0,
        next_sequence=6,
        output=b"forge\n",
        reports=[report],
    )


def state_of(attempt: Attempt) -> str:
    attempt.refresh_from_db()
    return attempt.state


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.database
def test_results_of_a_queued_run_cannot_be_forged(
    make_attempt: Callable[..., Attempt], make_node: Callable[..., Node], broker: str
) -> None:
    attempt = make_attempt(state="queued")
    make_node("gpu1")
    apply_batch(result_of(attempt, "gpu1").to_wire())
    assert "node gpu1 sends unsigned messages (batch, wire version 1, here 2); update its daemon" in refused()
    # Even a genuine node may not report a run that was not given to it.
    apply_batch(sealed_batch(result_of(attempt, "gpu1"), settings.NODE_KEY))
    assert state_of(attempt) == "queued"
    assert not list(log.read_log(attempt.pk))
    assert not refused()


def test_batches_count_only_from_the_node_that_the_run_was_given_to(
    make_attempt: Callable[..., Attempt], make_node: Callable[..., Node], broker: str
) -> None:
    attempt = make_attempt(state="running")
    place(attempt, make_node("gpu1"))
    make_node("gpu2")
    apply_batch(sealed_batch(result_of(attempt, "gpu2"), settings.NODE_KEY))
    other = shared_key(settings.NODE_KEY, "gpu2")
    apply_batch(sealed_batch(result_of(attempt, "gpu1"), other))
    assert "gpu1: batch refused: signature does not match" in refused()
    apply_batch(seal("batch", "gpu2", result_of(attempt, "gpu1").to_wire(), other, lifetime_s=None))
    assert "gpu2: batch refused: batch of node gpu1, signed by node gpu2" in refused()
    beat_as_batch = sealed_heartbeat(beat("gpu1"), settings.NODE_KEY)
    apply_batch(beat_as_batch)
    assert "signed for node gpu1 and as heartbeat, but sent as batch" in refused()
    assert state_of(attempt) == "running"
    apply_batch(sealed_batch(result_of(attempt, "gpu1"), settings.NODE_KEY))
    apply_batch(sealed_batch(result_of(attempt, "gpu1"), settings.NODE_KEY))
    assert state_of(attempt) == "finished"
    assert b"".join(log.read_log(attempt.pk)) == b"forge\n"


@pytest.mark.database
def test_names_that_no_node_has_stop_no_batch_beside_them(
    make_attempt: Callable[..., Attempt], make_node: Callable[..., Node], broker: str
) -> None:
    attempt = make_attempt(state="running")
    place(attempt, make_node("gpu1"))
    genuine = sealed_batch(result_of(attempt, "gpu1"), settings.NODE_KEY)
    strange = [{**genuine, "node": name} for name in ("gpu1\x00", "\ud800", "x" * 10_000)]
    strange += [{**genuine, "key": key} for key in ("\x00", "x" * 10_000)]
    tasks._apply(list(tasks._opened([*strange, genuine])))
    assert "the name of the node or of its key is none that a node has" in refused()
    assert state_of(attempt) == "finished"
    for envelope in strange:
        enrol({**envelope})
    assert "the name of the node or of its key is none that a node has" in refused()


# --- heartbeats ------------------------------------------------------------------------------------------------------


def test_a_node_is_registered_only_by_a_signed_heartbeat(db: None) -> None:
    heartbeat(beat("fake").model_dump(mode="json"))
    assert "fake: heartbeat refused: node fake sends unsigned messages" in refused()
    heartbeat(sealed_heartbeat(beat("fake"), b"another key"))
    assert "fake: heartbeat refused: signature does not match" in refused()
    heartbeat(seal("heartbeat", "gpu1", beat("gpu2").model_dump(mode="json"), shared_key(settings.NODE_KEY, "gpu1")))
    assert "gpu1: heartbeat refused: heartbeat of node gpu2, signed by node gpu1" in refused()
    assert not Node.objects.exists()
    heartbeat(sealed_heartbeat(beat(), settings.NODE_KEY))
    assert Node.objects.get().is_online


@pytest.mark.parametrize("is_same_worker", [True, False])
def test_a_repeated_heartbeat_keeps_no_node_alive(is_same_worker: bool, db: None) -> None:
    first, second = (sealed_heartbeat(beat(), settings.NODE_KEY) for _ in range(2))
    heartbeat(first)
    heartbeat(second)
    long_ago = timezone.now() - timedelta(minutes=5)
    if not is_same_worker:
        beats._beats.clear()
        Node.objects.update(heartbeat_number=json.loads(second["payload"])["number"])
    Node.objects.update(last_heartbeat_at=long_ago)
    heartbeat(first)
    heartbeat(second)
    assert Node.objects.get().last_heartbeat_at == long_ago
    assert "heartbeat is older than the one before, or was sent twice" in refused()


def test_an_old_heartbeat_is_refused_with_a_hint_about_clocks(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        now = time.time()
        patch.setattr(time, "time", lambda: now - trust.LIFETIME_S - 60)
        old = sealed_heartbeat(beat(), settings.NODE_KEY)
    heartbeat(old)
    assert "expired 60 s ago; check the clocks of server and node" in refused()
    assert not Node.objects.exists()


def test_a_server_clock_that_was_set_back_does_not_lock_nodes_out(db: None) -> None:
    ahead = int((time.time() + 3600) * 1e6)
    heartbeat(sealed_heartbeat(beat(), settings.NODE_KEY, number=ahead))
    Node.objects.update(last_heartbeat_at=None)
    heartbeat(sealed_heartbeat(beat(slots=2), settings.NODE_KEY))
    assert Node.objects.get().slots == 2


@pytest.mark.database
def test_most_heartbeats_need_no_row_written(make_attempt: Callable[..., Attempt], db: None) -> None:
    heartbeat(sealed_heartbeat(beat(), settings.NODE_KEY))
    with CaptureQueriesContext(connection) as queries:
        for _ in range(5):
            heartbeat(sealed_heartbeat(beat(), settings.NODE_KEY))
    assert all(query["sql"].lstrip().startswith("SELECT") for query in queries)
    assert len(queries) <= 5
    heartbeat(sealed_heartbeat(beat(slots=3), settings.NODE_KEY))
    assert Node.objects.get().slots == 3


# --- keys ------------------------------------------------------------------------------------------------------------


def enrolled(name: str, code: str, broker: str, keys: NodeKeys) -> None:
    """Do what `runners.node.daemon enrol` does, with the server's task called here."""
    key_id, _, secret = code.partition("-")
    pair, signer = new_pair(), Key(key_id, code_key(secret, name, key_id))
    enrol(seal("enrol", name, Enrol(key_id=key_id, public=pair.public).model_dump(), signer))
    answer = json.loads(redis.Redis.from_url(broker).get(enrolled_key(key_id)) or b"null")
    opened = trust.open_envelope(answer, "enrolled", lambda *_: signer.secret)
    if opened.content["answers"] != pair.public:
        raise Untrusted("the answer is for another node")
    keys.enrol(pair, key_id, opened.content["public"])


def test_a_node_enrols_once_with_a_code_and_then_only_its_own_key_counts(
    user: User, broker: str, tmp_path: Any
) -> None:
    code = node_code_create(node_name="gpu1", by=user)
    heartbeat(sealed_heartbeat(beat(slots=1), settings.NODE_KEY))  # a code changes nothing before it is used
    keys = NodeKeys(tmp_path, "gpu1", None)
    enrolled("gpu1", code, broker, keys)
    heartbeat(sealed_heartbeat(beat(slots=2), keys.current()))
    assert Node.objects.get().slots == 2
    assert NodeKey.objects.get().state == "active"
    heartbeat(sealed_heartbeat(beat(slots=3), settings.NODE_KEY))
    assert "node gpu1 signs with the shared key, but has a key of its own" in refused()
    assert signing_key("gpu1") == keys.current()
    assert NodeKeys(tmp_path, "gpu1", None).current() == keys.current()
    assert (tmp_path / "key.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(Untrusted):
        enrolled("gpu1", code, broker, NodeKeys(tmp_path / "thief", "gpu1", None))
    assert "signature does not match" in refused()
    row = NodeKey.objects.get()
    assert keys.current().secret.hex() not in (row.wrapped, row.public_digest)


def test_a_stolen_code_is_worthless_for_another_name_and_after_its_time(user: User, broker: str, tmp_path: Any) -> None:
    code = node_code_create(node_name="gpu1", by=user)
    with pytest.raises(Untrusted):
        enrolled("gpu2", code, broker, NodeKeys(tmp_path, "gpu2", None))
    NodeKey.objects.update(code_expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(Untrusted):
        enrolled("gpu1", code, broker, NodeKeys(tmp_path, "gpu1", None))
    assert "the code of node gpu1 has expired; create another one" in refused()


def test_codes_are_required_where_the_shared_key_is_refused(db: None, settings: Any) -> None:
    settings.SHARED_NODE_KEY = False
    heartbeat(sealed_heartbeat(beat(), settings.NODE_KEY))
    assert "PARLAB_SHARED_NODE_KEY=0 refuses; enrol it with a code from the admin" in refused()
    assert not Node.objects.exists()


def rotated(name: str, keys: NodeKeys) -> None:
    """Do what a daemon and the server do between `Rotate` and the first message with the next key."""
    order = rotation_order(name)
    assert order is not None
    envelope = seal("rotate", name, order.model_dump(), signing_key(name) or keys.current())
    verify(envelope, keys.find, Rotate, node=name)
    answer = keys.offer(order.key_id, order.public)
    assert answer == keys.offer(order.key_id, order.public)
    assert answer is not None
    enrol(seal("enrol", name, Enrol(key_id=order.key_id, public=answer).model_dump(), keys.current()))
    newest = signing_key(name)
    assert newest is not None
    assert keys.find(name, newest.id) == newest.secret
    assert keys.promote(newest.id)
    assert keys.offer(order.key_id, order.public) is None


@pytest.mark.parametrize("shared", [True, False])
def test_rotation_replaces_the_key_without_a_visit_to_the_node(
    shared: bool, user: User, broker: str, tmp_path: Any
) -> None:
    keys = NodeKeys(tmp_path, "gpu1", settings.NODE_KEY if shared else None)
    if not shared:
        enrolled("gpu1", node_code_create(node_name="gpu1", by=user), broker, keys)
    before = keys.current()
    heartbeat(sealed_heartbeat(beat(), before))
    node_key_rotate(node_name="gpu1", by=user)
    heartbeat(sealed_heartbeat(beat(slots=2), before))
    rotated("gpu1", keys)
    heartbeat(sealed_heartbeat(beat(slots=3), before))  # still on its way when the key changed
    assert Node.objects.get().slots == 3
    heartbeat(sealed_heartbeat(beat(slots=4), keys.current()))
    heartbeat(sealed_heartbeat(beat(slots=5), before))
    assert Node.objects.get().slots == 4
    assert "gpu1" in refused()
    assert rotation_order("gpu1") is None


@pytest.mark.parametrize("shared", [True, False])
def test_a_revoked_node_is_refused_and_gets_no_orders(
    shared: bool, user: User, broker: str, tmp_path: Any, received: Callable[[str], list[Any]]
) -> None:
    keys = NodeKeys(tmp_path, "gpu1", settings.NODE_KEY if shared else None)
    if not shared:
        enrolled("gpu1", node_code_create(node_name="gpu1", by=user), broker, keys)
    heartbeat(sealed_heartbeat(beat(), keys.current()))
    node_keys_revoke(node_name="gpu1", by=user)
    heartbeat(sealed_heartbeat(beat(slots=7), keys.current()))
    assert "the key of node gpu1 was revoked; enrol it again with a code from the admin" in refused()
    assert Node.objects.get().slots == 1
    assert orders.send(Cancel(run=1, attempt=1, node="gpu1"))
    assert not redis.Redis.from_url(broker).llen("node.gpu1")
    enrolled("gpu1", node_code_create(node_name="gpu1", by=user), broker, keys)
    heartbeat(sealed_heartbeat(beat(slots=8), keys.current()))
    assert Node.objects.get().slots == 8


def test_an_answer_to_a_batch_is_signed_and_an_old_one_is_accepted_once(
    make_attempt: Callable[..., Attempt], make_node: Callable[..., Node], broker: str
) -> None:
    attempt = make_attempt(state="running")
    place(attempt, make_node("gpu1"))
    apply_batch(sealed_batch(result_of(attempt, "gpu1"), settings.NODE_KEY))
    with app.connection_for_read() as wire:
        raw = wire.SimpleQueue("node.gpu1").get_nowait()
        raw.ack()
    assert raw.headers["task"] == ACKNOWLEDGE_TASK
    (envelope,), _, _ = json.loads(raw.body or "")
    seen = Seen()
    answer = verify(envelope, settings.NODE_KEY, Acknowledge, node="gpu1", seen=seen)
    assert (answer.run, answer.position) == (attempt.run_id, 6)
    with pytest.raises(Untrusted, match="acknowledge was sent twice"):
        verify(envelope, settings.NODE_KEY, Acknowledge, node="gpu1", seen=seen)
    with pytest.raises(Untrusted, match="unsigned messages"):
        verify({"run": 1, "position": 9}, settings.NODE_KEY, Acknowledge, node="gpu1")


def test_administrators_create_rotate_and_revoke_keys_and_others_do_not(page: Client, user: User, db: None) -> None:
    heartbeat(sealed_heartbeat(beat(), settings.NODE_KEY))
    shown = page.post("/admin/lab/nodekey/add/", {"node_name": "gpu2"}, follow=True)
    code = f"{NodeKey.objects.get().key_id}-"
    assert code in shown.content.decode()
    assert "no-store" in shown.headers["Cache-Control"]
    node = Node.objects.get()
    picked = {"_selected_action": [node.pk], "action": "rotate_key"}
    assert "gpu1" in page.post("/admin/lab/node/", picked, follow=True).content.decode()
    assert rotation_order("gpu1") is not None
    page.post("/admin/lab/node/", {**picked, "action": "revoke_key", "confirmed": "yes"}, follow=True)
    assert signing_key("gpu1") is None
    User.objects.filter(pk=user.pk).update(is_superuser=False)
    for address in ("/admin/lab/nodekey/", "/admin/lab/nodekey/add/"):
        assert page.get(address).status_code == 403


@pytest.mark.parametrize("public", ["", "zz", "0" * 64, "ab" * 256])
def test_a_public_value_that_is_none_of_x25519_is_refused(public: str) -> None:
    with pytest.raises(Untrusted, match="public value"):
        agreed_key(new_pair(), public, "gpu1", "id")


def test_both_sides_agree_on_a_key_that_belongs_to_one_node_and_agreement() -> None:
    node, server = new_pair(), derived_pair(b"node key", "id")
    assert server == derived_pair(b"node key", "id") != derived_pair(b"node key", "other")
    key = agreed_key(node, server.public, "gpu1", "id")
    assert key == agreed_key(server, node.public, "gpu1", "id")
    assert key.secret != agreed_key(node, server.public, "gpu2", "id").secret
