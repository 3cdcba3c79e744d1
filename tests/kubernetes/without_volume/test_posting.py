"""A pod posts its spool to a server that answers, or does not, without a cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from parlab.client.http import Connection, Unreachable
from runners.node.jobs.state import JobDir, JobStateDir
from runners.node.kubernetes.without_volume.order import Server
from runners.node.kubernetes.without_volume.posting import GATHER_S, post_rest
from runners.supervisor import spool
from runners.supervisor.spool import SpoolWriter
from runners.wire.protocol import Acknowledge, Batch, Posted, Report, sign
from runners.wire.trust import Key, open_envelope

KEY = Key("k1", b"of one attempt")
SERVER = Server("http://127.0.0.1:9", "controller", KEY)


class Stored:
    """What the server does with what is posted to it."""

    def __init__(self) -> None:
        self.is_away, self.requests, self.committed = False, 0, 0
        self.output, self.posted = b"", list[Posted]()

    def json(self, method: str, path: str, body: Any) -> Any:
        """Answer a request."""
        self.requests += 1
        if self.is_away:
            raise Unreachable("connection refused")
        assert (method, path) == ("POST", "/api/spools/7/1/")
        posted = Posted.model_validate(open_envelope(body, "posted", lambda *_: KEY.secret).content)
        batch = Batch.from_wire(posted.batch)
        self.posted.append(posted)
        if batch.sequence == self.committed:
            self.committed, self.output = batch.next_sequence, self.output + batch.output
        return sign(Acknowledge(run=7, attempt=1, node="controller", position=self.committed), KEY)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    stored = Stored()
    monkeypatch.setattr(Connection, "json", stored.json)
    return stored


@pytest.fixture
def run(tmp_path: Path) -> JobDir:
    run = JobStateDir(tmp_path).find(7, 1)
    run.path.mkdir()
    with SpoolWriter(run.spool) as writer:
        writer.append_output(b"hello\n")
        writer.append_report(Report(state="finished", at=1.0))
    return run


def test_what_is_left_is_posted_once_and_the_end_is_noted(run: JobDir, stored: Stored) -> None:
    assert post_rest(run, SERVER, 5.0) == 0
    assert stored.output == b"hello\n"
    assert stored.posted[-1].note.end == stored.committed == spool.tail(run.spool)
    assert post_rest(run, SERVER, 5.0) == 0
    assert stored.output == b"hello\n"


def test_a_server_that_stays_away_is_asked_a_few_times_and_what_is_left_is_counted(run: JobDir, stored: Stored) -> None:
    stored.is_away = True
    began = time.monotonic()
    assert post_rest(run, SERVER, 0.8) == spool.tail(run.spool)
    assert time.monotonic() - began < 2
    assert stored.requests == 2, "at once, and after half a second"


def test_output_without_a_report_is_gathered(tmp_path: Path, stored: Stored) -> None:
    run = JobStateDir(tmp_path / "other").find(7, 1)
    run.path.mkdir()
    with SpoolWriter(run.spool) as writer:
        writer.append_output(b"hello\n")
    began = time.monotonic()
    assert post_rest(run, SERVER, 5.0) == 0
    assert time.monotonic() - began > GATHER_S
