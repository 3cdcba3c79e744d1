"""The sizes of batches: a backlog goes in larger ones to a server that keeps up."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from parlab.client import journal, shipping
from parlab.client.http import Connection
from parlab.client.spools import Stream
from parlab.tracking.stream_views import MAX_BODY_BYTES

LINE = b"x" * 350 + b"\n"
LINES = 30_000


class Server(Connection):
    """Stores every batch at once."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9", "")
        self.committed = 0
        self.bodies: list[bytes] = []

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        meanwhile: Callable[[], object] | None = None,
    ) -> tuple[bytes, Mapping[str, str]]:
        if method == "PUT":
            return json.dumps({"run": {"id": "first"}, "committed": 0}).encode(), {}
        query = parse_qs(path.partition("?")[2])
        assert int(query["position"][0]) == self.committed
        self.committed = int(query["next"][0])
        self.bodies.append(body or b"")
        if meanwhile is not None:
            meanwhile()
        return json.dumps({"committed": self.committed}).encode(), {}


@pytest.fixture
def sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Ship a backlog of 10 MB; sizes() -> the sizes of its batches."""
    monkeypatch.setenv("PARLAB_HOME", str(tmp_path))

    def ship() -> list[int]:
        stream = Stream.create({"url": "http://127.0.0.1:9", "run_id": "first"})
        with journal.Writer(stream.records) as writer:
            for _ in range(LINES):
                writer.append(journal.encode(journal.Kind.OUTPUT, LINE))
        server = Server()
        shipment = shipping.Shipment(stream, server)
        while shipment.send():
            pass
        assert shipment.is_complete
        stream.remove()
        assert sum(map(len, server.bodies)) - LINES * len(LINE) < 20 * journal.HEADER.size
        return [len(body) for body in server.bodies]

    return ship


def test_batches_grow_while_the_server_keeps_up(sizes: Callable[[], list[int]]) -> None:
    first, *others = sizes()
    assert first <= shipping.BATCH_BYTES + 100
    assert max(others) > 2 * shipping.BATCH_BYTES
    assert max(others) + journal.MAX_RECORD_BYTES < MAX_BODY_BYTES


def test_batches_stay_small_for_a_server_that_needs_its_time(
    sizes: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "LARGE_AFTER_S", -1.0)
    *full, _ = sizes()
    assert len(full) > 8
    assert all(abs(one - other) < 1_000 for one, other in pairwise(full))
