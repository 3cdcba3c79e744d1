"""Output of jobs: compute nodes that reach Redis ship it by themselves, otherwise the login node does; never twice."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import redis

from runners.node.jobs import reach
from runners.node.jobs.shipper import NodeShipper
from runners.node.jobs.state import JobDir, JobStateDir
from runners.supervisor.shipping import BrokerAway, Outgoing, Shipment
from runners.supervisor.spool import SpoolWriter
from runners.wire.protocol import Batch, Report, login_key
from runners.wire.trust import Key
from tests.patience import wait_for
from tests.runners.conftest import Server
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import WAITS, Jobs, LoginNode, config, start_own_redis


def shipped_by(server: Server, run: int) -> str:
    """Return what the page of a run says about who ships its output."""
    text: str = server.reports[run, 1][0].environment["slurm"]["shipped_by"]
    return text


@pytest.mark.slow
def test_a_compute_node_that_reaches_redis_ships_without_the_daemon(
    login: LoginNode, server: Server, jobs: Jobs
) -> None:
    run, _ = jobs.ready()
    assert shipped_by(server, run) == "compute node"
    login.kill_daemon()
    before = len(server.batches)
    login.open(run)
    assert server.end_of(run).state == "finished"
    assert all(batch.is_polled for batch in server.batches[before:]), "from the compute node"
    assert [line for line in server.lines(run) if line.startswith(b"started")] == server.lines(run)[:1]
    assert server.lines(run)[1:] == [b"done"]
    login.start_daemon()
    server.until(lambda: not login.run_dir(run).exists, "the daemon deletes the run without sending it again")
    assert server.lines(run)[1:] == [b"done"]


OWN = Key("k1", b"secret")


@pytest.fixture
def distant(cluster: Cluster, own_redis: str, tmp_path: Path) -> Iterator[tuple[LoginNode, Server]]:
    """A login node that alone resolves the name of its Redis, which has a database of its own."""
    url = own_redis.replace("/0", "/1")
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost redis-of-the-login-node\n")
    machine = LoginNode(cluster.home / tmp_path.name, url.replace("127.0.0.1", "redis-of-the-login-node"), cluster)
    machine.prefix = ["unshare", "--mount", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$0" "$@"']
    machine.start_daemon()
    server = Server(url)
    yield machine, server
    server.close()
    print(machine.log.read_text()[-8000:])  # shown when the test fails
    assert not machine.close()


@pytest.mark.slow
def test_the_login_node_ships_for_a_compute_node_that_does_not_reach_redis(
    distant: tuple[LoginNode, Server],
) -> None:
    login, server = distant
    login.script(1, WAITS)
    login.open(1)
    server.start(1, config=config())
    assert server.end_of(1).state == "finished"
    assert "login node, because this node does not reach Redis" in shipped_by(server, 1)
    assert server.lines(1)[1:] == [b"done"]
    assert not any(batch.is_polled for batch in server.batches)
    assert login.state.read_broker() is not None


class Stored:
    """What the server does: store a batch that continues what is stored, and answer with its position."""

    def __init__(self) -> None:
        self.committed, self.output, self.answers = 0, b"", 0

    def apply(self, wire: dict[str, Any]) -> None:
        batch = Batch.from_wire(wire)
        self.answers += 1
        if batch.sequence == self.committed:
            self.committed, self.output = batch.next_sequence, self.output + batch.output


@pytest.fixture
def job_dir(tmp_path: Path) -> JobDir:
    """A run on a compute node."""
    state = JobStateDir(tmp_path)
    return JobDir(state.put_in_place(state.prepare(7, 1)).path)


def test_nothing_is_doubled_when_both_ship_at_once(job_dir: JobDir) -> None:
    stored = Stored()

    def send_batches(batches: Sequence[Outgoing]) -> None:
        for batch in batches:
            stored.apply(batch.wire)

    broker: Any = SimpleNamespace(
        send_batches=send_batches,
        answer=lambda *_: f"{stored.committed} {stored.answers}",
        queue_age_s=lambda **_: 0.0,
        backlog_room=lambda: 1,
    )
    node, login = NodeShipper(job_dir, broker, "login1"), Shipment(job_dir, "login1")
    lines = [b"line %d\n" % number for number in range(60)]
    now = 0.0
    with SpoolWriter(job_dir.spool) as writer:
        for number, line in enumerate(lines):
            writer.append_output(line)
            now += 0.4
            # Each of them meets output that the other one has shipped already.
            if number % 3 < 2:
                node.turn(now)
            if number % 4:
                while batch := login.next_batch(now, queue_age_s=lambda **_: 0.0):
                    stored.apply(batch.to_wire())
                    login.was_sent(batch, now)
                login.was_stored(stored.committed, now)
        writer.append_report(Report(state="finished", at=1.0))
    for _ in range(20):
        now += 5.0
        node.turn(now)
    assert stored.output == b"".join(lines)


def test_a_node_gives_shipping_up_when_redis_stays_away(job_dir: JobDir) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise BrokerAway("connection refused")

    broker: Any = SimpleNamespace(send_batches=away, answer=away, queue_age_s=away, backlog_room=away)
    job_dir.take_over_shipping("c1")
    assert job_dir.is_shipped_elsewhere
    reader, writer = os.pipe()
    NodeShipper(job_dir, broker, "login1", give_up_s=0.0).ship(supervisor=reader)
    os.close(reader)
    os.close(writer)
    job_dir.give_back_shipping()
    assert not job_dir.is_shipped_elsewhere


def test_the_login_node_ships_after_the_end_of_the_job_whatever_was_noted(job_dir: JobDir) -> None:
    job_dir.take_over_shipping("c1")
    job_dir.end()
    assert not job_dir.is_shipped_elsewhere


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (lambda state, url: state.forget_broker(), "PARLAB_SLURM_SHIP=login"),
        (lambda state, url: state.write_broker("redis://127.0.0.1:1/0", "l", OWN), "this node does not reach Redis: "),
        (lambda state, url: state.write_broker(url, "l", OWN), "another Redis answers on this node"),
    ],
)
def test_why_the_login_node_ships(
    tmp_path: Path, redis_url: str, settings: Callable[[JobStateDir, str], None], reason: str
) -> None:
    state = JobStateDir(tmp_path)
    settings(state, redis_url)
    assert reason in reach.why_not(state)


@pytest.fixture
def closed_redis(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A Redis with a password; its URL, and the same without the password."""
    (tmp_path / "redis").mkdir()
    process, url = start_own_redis(tmp_path / "redis")
    password = "a:b@c/d"
    with redis.Redis.from_url(url) as client:
        wait_for(lambda: answers(client), "Redis answers")
        client.config_set("requirepass", password)
    yield url.replace("redis://", f"redis://:{quote(password, safe='')}@"), url
    process.kill()
    process.wait()


def answers(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.ConnectionError):
        return bool(client.ping())
    return False


def test_a_redis_with_a_password_is_asked_without_its_client(tmp_path: Path, closed_redis: tuple[str, str]) -> None:
    state, (url, without) = JobStateDir(tmp_path), closed_redis
    for number in (0, 1):
        own = url.replace("/0", f"/{number}")
        state.write_broker(own, "l", OWN)
        assert "another Redis answers" in reach.why_not(state)
        with redis.Redis.from_url(own) as client:
            client.set(login_key(state.id), "l")
        assert reach.why_not(state) == ""
    state.write_broker(without, "l", OWN)
    assert "this node does not reach Redis: NOAUTH" in reach.why_not(state)


PROBE = "tests.slurm.shipping_probe"


@pytest.mark.parametrize(
    ("is_at_once", "is_stored", "ships"), [(True, True, True), (False, True, False), (False, False, True)]
)
def test_shipping_from_the_node_loads_nothing_for_a_short_run_that_the_login_node_ships(
    job_dir: JobDir,
    monkeypatch: pytest.MonkeyPatch,
    is_at_once: bool,
    is_stored: bool,
    ships: bool,
) -> None:
    monkeypatch.setattr(reach, "ENDED_S", 0.2)
    with SpoolWriter(job_dir.spool) as writer:
        writer.append_output(b"hello")
        job_dir.acknowledge(writer.position if is_stored else 0)
    with reach.start(job_dir, reach.Shipping(PROBE, is_at_once=is_at_once)) as connection:
        connection.settimeout(20)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"", "it has ended"
    assert (job_dir.path / "probe").exists() == ships


def test_shipping_from_the_node_begins_a_while_after_the_ranks(
    job_dir: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "LOADING_S", 0.5)
    monkeypatch.setattr(reach, "LOOK_S", 0.05)
    with reach.start(job_dir, reach.Shipping(PROBE, is_at_once=False)):
        time.sleep(0.3)
        job_dir.write_go({})
        told_at = time.monotonic()
        wait_for((job_dir.path / "probe").exists, "it ships")
        assert time.monotonic() - told_at > 0.4


def test_the_file_with_the_password_of_redis_is_private(tmp_path: Path) -> None:
    state = JobStateDir(tmp_path)
    state.write_broker("redis://:secret@host:6379/0", "login1", OWN)
    assert (tmp_path / "broker.json").stat().st_mode & 0o777 == 0o600
