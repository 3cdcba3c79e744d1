"""When scripts and `parlab follow` send empty batches, on a clock of their own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from parlab.client import beats, shipping
from parlab.client.beats import HEARTBEAT_S, SETTLE_S
from parlab.client.command import output
from parlab.client.command.output import Followed, follow
from parlab.client.http import Connection
from parlab.client.shipping import Shipment, Shipper
from parlab.client.spools import Stream


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Source:
    """A stream or followed file that gets data at given times; notes when empty batches are sent."""

    def __init__(self, clock: Clock, times: list[float]) -> None:
        self._clock, self._times = clock, times
        self.run: dict[str, Any] = {}
        self.beats: list[float] = []

    def open(self) -> bool:
        return True

    def send(self) -> bool:
        is_new = bool(self._times) and self._clock.now >= self._times[0]
        if is_new:
            self._times.pop(0)
        return is_new

    def send_file(self) -> bool:
        return False

    def beat(self) -> None:
        self.beats.append(self._clock.now)

    def finish(self, end: dict[str, Any]) -> None:
        pass


def follow_until(source: Source, clock: Clock, end: float) -> None:
    follow(cast(Followed, source), is_over=lambda _: clock.now > end)


def ship_until(source: Source, clock: Clock, end: float) -> None:
    stream = Stream.create({"url": "http://127.0.0.1:9", "run_id": "first"})
    shipper = Shipper(stream, Connection("http://127.0.0.1:9", ""), announce=lambda _: None)
    shipper.shipment = cast(Shipment, source)
    while clock.now <= end:
        clock.sleep(shipper._turn())
    stream.remove()


@pytest.mark.parametrize("send_until", [follow_until, ship_until])
def test_after_data_empty_batches_come_soon_then_rarely(
    send_until: Callable[[Source, Clock, float], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARLAB_HOME", str(tmp_path))
    clock = Clock()
    for module in (beats, output, shipping):
        monkeypatch.setattr(module, "time", clock)
    came_at = [clock.now, clock.now + 100]
    source = Source(clock, list(came_at))
    send_until(source, clock, came_at[1] + 5)
    turn_s = max(output.POLL_S, shipping.POLL_S)
    before = [came_at[0], *(at for at in source.beats if at < came_at[1])]
    gaps = [later - earlier for earlier, later in pairwise(before)]
    expected = [SETTLE_S * 2**n for n in range(5)] + [HEARTBEAT_S] * 3
    assert gaps == pytest.approx(expected, abs=2 * turn_s), "a slow server gets several before the heartbeat"
    assert next(at for at in source.beats if at > came_at[1]) - came_at[1] < SETTLE_S + 2 * turn_s
