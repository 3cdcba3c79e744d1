"""The page of the goodput: attempts of a run, checkpoints and energy."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Attempt, Run
from parlab.series import store
from parlab.series.columns import Columns

from .test_experiments import text

pytestmark = pytest.mark.django_db
START = timezone.now() - timedelta(hours=1)


def made(
    attempt: Attempt, number: int, first: int, count: int, begin_s: float, end_s: float, state: str,
    watts: float | None = 200.0,
) -> None:  # fmt: skip
    """Give an attempt steps of 1 s from 10 s after its beginning, with a checkpoint of 0.5 s in each, and a power."""
    at = START + timedelta(seconds=begin_s)
    Attempt.objects.filter(pk=attempt.pk).update(
        number=number, state=state, started_at=at, ended_at=START + timedelta(seconds=end_s)
    )
    steps = np.arange(first, first + count)
    times = at.timestamp() + 10 + np.arange(1.0, count + 1)
    values = {"step_time_s": 1.0, "timer/save-checkpoint": 0.5}
    values |= {} if watts is None else {"power_watts": watts}
    for rank in (0, 1):
        store.append(
            attempt.pk, {(name, rank): Columns(steps, times, np.full(count, value)) for name, value in values.items()}
        )


def test_steps_after_a_restart_are_lost_time(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    second = make_attempt()
    run = second.run
    Run.objects.filter(pk=run.pk).update(queued_at=START - timedelta(seconds=5), state="finished")
    run.refresh_from_db()
    run.summary = {**run.summary, "tokens_per_s": 100.0}
    run.save()
    made(second, 2, 11, 30, 100.0, 150.0, "finished")
    first = Attempt.objects.create(run=run, number=1)
    made(first, 1, 1, 20, 0.0, 90.0, "lost")
    shown = page.get(f"{run.get_absolute_url()}goodput/")
    rows = {row[0]: row[1] for row in shown.context["parts"]}
    assert rows["Lasting progress"] == "20.0\u202fs"  # 10 + 30 steps, half of each in a checkpoint
    assert rows["Steps that were made again"] == "5.00\u202fs"
    assert rows["Checkpoints"] == "25.0\u202fs"
    assert rows["Start-up"] == "20.0\u202fs"
    assert rows["Waiting in the queue"] == "15.0\u202fs"
    assert rows["Between the last step and a failure"] == "60.0\u202fs"
    body = text(shown)
    assert "10 steps were made again after 1 failure" in body
    assert "4.00 J per token" in body
    assert "Rank 1: GPU 200.0 W" in body
    assert "16,384" in body
    assert "median of timer save-checkpoint" in body
    odd = text(page.get(f"{run.get_absolute_url()}goodput/", {"checkpoint_s": "-3", "hours": "many"}))
    assert "hours &#x27;many&#x27; is not a number above 0" in odd or "hours 'many' is not a number above 0" in odd


def test_a_run_that_has_not_ended_has_a_table_of_intervals(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    run = make_attempt().run
    body = text(page.get(f"{run.get_absolute_url()}goodput/"))
    assert "No goodput" in body
    assert "Young" in body


def test_the_energy_of_processors_counts_and_costs(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt()
    made(attempt, 1, 1, 20, 0.0, 3600.0, "finished")
    power = Columns(np.arange(1, 3), START.timestamp() + np.arange(1.0, 3.0), np.full(2, 100.0))
    store.append(attempt.pk, {("cpu_power_watts", -1): power})
    shown = page.get(f"{attempt.run.get_absolute_url()}goodput/", {"kwh_price": "0.3"})
    body = text(shown)
    assert "Node 0: processors and memory 100.0 W" in body
    assert "0.500 kWh cost 0.150" in body  # two GPUs of 200 W and 100 W for an hour
    assert "includes all other programs of the node" in body


def test_the_absence_of_power_counters_is_stated(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt()
    made(attempt, 1, 1, 20, 0.0, 40.0, "finished", watts=None)
    url = f"{attempt.run.get_absolute_url()}goodput/"
    assert "Energy is not measured: no node of this run reports power counters" in text(page.get(url))
    made(attempt, 1, 21, 20, 0.0, 40.0, "finished")
    assert "Energy is not measured" not in text(page.get(url))
