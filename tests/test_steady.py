"""Periodic work goes on when the clock is set back by an hour."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache

from parlab.celery import app
from parlab.periodic import is_due
from parlab.steady import ServerCache, SteadyScheduler

HOUR_S = 3600.0


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[SteadyScheduler, list[str]]]:
    """Start beat with a file of its own; return it and the tasks that it sends."""
    sent: list[str] = []
    monkeypatch.setattr(SteadyScheduler, "producer", None)
    monkeypatch.setattr(SteadyScheduler, "apply_async", lambda self, entry, **_: sent.append(entry.name))

    def start() -> tuple[SteadyScheduler, list[str]]:
        return SteadyScheduler(app=app, schedule_filename=str(tmp_path / "beat")), sent

    return start


def set_clock(monkeypatch: pytest.MonkeyPatch, off_s: float) -> None:
    now, wall = type(app).now, time.time
    monkeypatch.setattr(type(app), "now", lambda self: now(self) + timedelta(seconds=off_s))
    monkeypatch.setattr(time, "time", lambda: wall() + off_s)


def ticks(beat: Any, sent: list[str], clock: pytest.MonkeyPatch, *, at_s: float) -> list[str]:
    """Let all be sent that is due so many seconds from now; return it."""
    sent.clear()
    with clock.context() as patch:
        set_clock(patch, at_s)
        while beat.tick() == 0:
            pass
    return sorted(sent)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_beat_sends_its_tasks_after_the_clock_was_set_back(
    scheduler: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    beat, sent = scheduler()
    assert "reap" in ticks(beat, sent, monkeypatch, at_s=HOUR_S)
    if is_restarted:
        beat.close()
        beat, sent = scheduler()
    # Back by an hour; only once the interval has passed is it due again.
    ticks(beat, sent, monkeypatch, at_s=0.0)
    assert "reap" in ticks(beat, sent, monkeypatch, at_s=60.0)
    beat.close()


def test_a_worker_does_periodic_work_after_its_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.clear()
    with monkeypatch.context() as patch:
        set_clock(patch, HOUR_S)
        assert is_due("reap", 0.01)
        cache.set("held", 1, 1000)
        cache.set("forever", 1, None)
        cache.set("never", 1, 0)
    time.sleep(0.02)
    assert is_due("reap", 1000)
    assert not is_due("reap", 1000)
    assert (cache.get("held"), cache.get("forever"), cache.get("never")) == (1, 1, None)
    cache.clear()


def test_a_code_is_used_once_by_all_processes(redis_url: str, settings: Any) -> None:
    settings.REDIS_URL = redis_url
    one, other = ServerCache("one", {}), ServerCache("other", {})
    key = f"{ServerCache.ONCE}?user=1&code=123456"
    assert (one.add(key, "y", timeout=90), other.add(key, "y", timeout=90)) == (True, False)
    assert (one.add("else", "y"), other.add("else", "y")) == (True, True)
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert (one.add(key, "y", timeout=90), one.add(key, "y", timeout=90)) == (True, False)
