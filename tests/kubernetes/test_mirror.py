"""The copy of the objects of a server that forgets versions, or has never had them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from runners.node.kubernetes import mirror
from runners.node.kubernetes.api import Api, KubernetesAway, KubernetesRefused, Object
from runners.node.kubernetes.mirror import Copy, Mirror
from tests.patience import wait_for


class Forgetful(Api):
    """A server with one object, whose watches fail at a version that it does not know."""

    def __init__(self, error: Exception) -> None:
        super().__init__(None, "runs")
        self.error, self.version = error, "7"
        self.ends = threading.Event()

    def pages(self, path: str, **query: Any) -> Iterator[Object]:
        version, self.version = self.version, "9"
        yield {"metadata": {"resourceVersion": version}, "items": [{"metadata": {"uid": version}}]}

    def watch(self, path: str, timeout_s: int, **query: Any) -> Iterator[Object]:
        if query["resourceVersion"] == "7":
            raise self.error
        self.ends.wait(60)
        yield from ()


@pytest.mark.parametrize("error", [KubernetesRefused(410, "Expired", "too old"), KubernetesAway("answers 504")])
def test_all_is_listed_again_at_a_version_that_the_server_does_not_have(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "AGAIN_S", (0.01, 0.01))
    server, copy = Forgetful(error), Copy(lambda item: item["metadata"]["uid"])
    follower = Mirror(server, "/pods", {}, copy.take, copy.listed)
    follower.start()
    try:
        wait_for(lambda: copy.present() == ["9"], "what the server has now")
        wait_for(lambda: follower._error is None, "the copy is trusted again")
    finally:
        follower.stop()
        server.ends.set()
