"""Checkpoints of ranks as series and summaries, and the loss after a reload beside that before it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.utils import timezone

from parlab.ingest.batches.services import batches_apply
from parlab.ingest.summaries.attempt_summaries import attempt_summarise
from parlab.ingest.summaries.loss import Series
from parlab.ingest.summaries.reloads import compared
from parlab.lab.models import Attempt, Finding, Run
from parlab.lab.selectors.analysis.failures import node_failures
from parlab.lab.services.findings import findings_refresh
from parlab.series import store
from parlab.series.columns import Columns

from .output import event
from .test_events import plain, read
from .test_services import batch

STEPS = np.arange(1, 101)
NOISE = np.random.default_rng(3).normal(0, 0.02, 400)


def checkpoint(kind: str, step: int, **fields: Any) -> bytes:
    return event("checkpoint", kind=kind, step=step, seconds=0.5, blocked_s=0.1, bytes=1000, valid=True, **fields)


def test_complete_checkpoints_are_series_at_their_steps() -> None:
    parsed = read(
        event("step", step=9, loss=1.0)
        + checkpoint("save", 4)
        + event("checkpoint", kind="save", step=8, seconds=1.0, blocked_s=0.2, bytes=0, valid=False, error="full")
        + checkpoint("load", 2)
    )
    series = {name: [(step, value) for step, _, value in rows] for (name, _), rows in plain(parsed.series).items()}
    assert series == {
        "loss": [(9, "1.0")],
        "checkpoint/save_s": [(4, "0.5")],
        "checkpoint/blocked_s": [(4, "0.1")],
        "checkpoint/bytes": [(4, "1000.0")],
        "checkpoint/load_s": [(2, "0.5")],
    }
    assert (parsed.steps, parsed.last_step) == (1, 9)


@pytest.mark.parametrize("odd", [{"kind": "neither"}, {"step": -1}, {"step": "4"}, {"step": True}, {"kind": None}])
def test_a_checkpoint_without_step_or_kind_stays_in_the_log(odd: dict[str, Any]) -> None:
    stated: dict[str, Any] = {"kind": "save", "step": 4, "seconds": 1.0, "valid": True}
    parsed = read(event("checkpoint", **(stated | odd)))
    assert not parsed.series
    assert sum(parsed.refused.values()) == 1


def curve(first: int, last: int, shift: float = 0.0, noise: np.ndarray = NOISE) -> Series:
    steps = np.arange(first, last + 1)
    return Series(steps, 5.0 * steps**-0.3 + noise[steps] + shift)


def test_an_exact_reload_differs_by_nothing() -> None:
    found = compared(curve(1, 50), curve(41, 100))
    assert (found["step"], found["steps"], found["difference"]) == (41, 10, 0.0)
    assert found["before"] == found["after"]


@pytest.mark.parametrize("seed", range(20))
def test_other_batches_after_a_reload_are_no_jump_and_lost_weights_are_one(seed: int) -> None:
    other = np.random.default_rng(100 + seed).normal(0, 0.02, 400)
    found = compared(curve(1, 90), curve(61, 100, noise=other))
    assert abs(found["difference"]) <= found["limit"]
    lost = compared(curve(1, 90), Series(np.arange(61, 101), curve(1, 40, noise=other).values))
    assert lost["difference"] > lost["limit"]


def test_a_new_start_and_an_attempt_without_repeated_steps_are_not_compared() -> None:
    assert compared(curve(1, 50), curve(1, 50, shift=3.0)) == {}
    assert compared(curve(1, 50), curve(51, 90, shift=3.0)) == {}
    assert compared(Series(STEPS[:0], NOISE[:0]), curve(2, 9)) == {}


def give(attempt: Attempt, first: int, last: int, shift: float) -> None:
    series = curve(first, last, shift)
    times = 1e9 + series.steps.astype(np.float64)
    ones = np.ones(len(times))
    store.append(
        attempt.pk,
        {
            ("loss", 0): Columns(series.steps, times, series.values),
            ("step_time_s", 0): Columns(series.steps, times, ones),
        },
    )
    Attempt.objects.filter(pk=attempt.pk).update(last_step=last)


@pytest.mark.django_db
@pytest.mark.parametrize(("shift", "findings"), [(0.0, 0), (2.0, 1)])
def test_a_jump_after_a_reload_is_a_finding_even_if_a_later_attempt_has_none(
    shift: float, findings: int, make_attempt: Callable[..., Attempt]
) -> None:
    first = make_attempt(state="lost")
    give(first, 1, 50, 0.0)
    for number, (begin, end) in ((2, (41, 80)), (3, (71, 100))):
        attempt = Attempt.objects.create(run=first.run, number=number, state="finished")
        Run.objects.filter(pk=first.run_id).update(attempt_number=number, state="finished")
        give(attempt, begin, end, shift)
        attempt_summarise(attempt=Attempt.objects.select_related("run").get(pk=attempt.pk))
    findings_refresh(experiment=first.run.experiment)
    found = Finding.objects.filter(run=first.run, rule="loss-after-reload")
    assert found.count() == findings
    if findings:
        assert "The loss of step 41 was" in found[0].message
        assert "in attempt 1 and is" in found[0].message
        assert "in attempt 2, after the reload" in found[0].message


@pytest.mark.django_db
def test_the_summary_has_size_and_times_of_the_checkpoints(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="running")
    output = event("step", step=1, loss=2.0, step_time_s=1.0) + event("step", step=2, loss=2.0, step_time_s=1.0)
    batches_apply(batches=[batch(attempt, 0, output + checkpoint("save", 1) + checkpoint("load", 0))])
    attempt = Attempt.objects.select_related("run").get(pk=attempt.pk)
    attempt_summarise(attempt=attempt)
    saved = Attempt.objects.get(pk=attempt.pk).summary["checkpoints"]
    assert saved == {"count": 1, "last_step": 1, "bytes": 1000, "save_s": 0.5, "blocked_s": 0.1, "load_s": 0.5}


@pytest.mark.django_db
def test_failures_of_nodes_are_those_of_the_pool(make_attempt: Callable[..., Attempt]) -> None:
    now = timezone.now()
    for number in range(4):
        attempt = make_attempt(state="lost" if number else "finished")
        Attempt.objects.filter(pk=attempt.pk).update(started_at=now - timedelta(hours=10), ended_at=now)
    other = make_attempt(state="lost")
    Run.objects.filter(pk=other.run_id).update(resolved={**other.run.resolved, "cluster": {"pool": "other"}})
    Attempt.objects.filter(pk=other.pk).update(started_at=now - timedelta(hours=1), ended_at=now)
    failures = node_failures(attempt.run)
    gpus = attempt.run.resolved["cluster"]["gpus_per_node"]
    assert failures.lost == 3
    assert failures.gpu_s == pytest.approx(4 * 36000 * gpus)
    assert failures.gpu_every_s == pytest.approx(4 * 36000 * gpus / 3)
    assert "3 attempts were lost" in failures.source
