"""When `parlab follow` sends, on a clock of its own."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pytest

from runners.client import output
from runners.client.output import Followed, follow
from runners.client.shipping import HEARTBEAT_S, SETTLE_S


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Growing:
    """A followed file that gets lines at given times; notes when empty batches are sent."""

    def __init__(self, clock: Clock, lines: list[float]) -> None:
        self._clock, self._lines = clock, lines
        self.run: dict[str, Any] = {}
        self.beats: list[float] = []

    def open(self) -> bool:
        return True

    def send(self) -> bool:
        is_new = bool(self._lines) and self._clock.now >= self._lines[0]
        if is_new:
            self._lines.pop(0)
        return is_new

    def beat(self) -> None:
        self.beats.append(self._clock.now)

    def finish(self, end: dict[str, Any]) -> None:
        pass


def test_after_a_line_empty_batches_come_soon_then_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(output, "time", clock)
    grew_at = [clock.now, clock.now + 100]
    file = Growing(clock, list(grew_at))
    follow(cast(Followed, file), is_over=lambda _: clock.now > grew_at[1] + 5)
    before = [grew_at[0], *(at for at in file.beats if at < grew_at[1])]
    gaps = [later - earlier for earlier, later in pairwise(before)]
    expected = [SETTLE_S * 2**n for n in range(5)] + [HEARTBEAT_S] * 3
    assert gaps == pytest.approx(expected, abs=3 * output.POLL_S), "a slow server gets several before the heartbeat"
    assert next(at for at in file.beats if at > grew_at[1]) - grew_at[1] < SETTLE_S + 3 * output.POLL_S
