"""The life cycle of an attempt: states move only forward, and its run follows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from parlab.lab.models import Attempt, Run, Snapshot
from parlab.lab.services.attempts import summary_store
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.members import attempt_lose, attempt_report
from parlab.lab.services.runs import config_launch, run_cancel_request, run_relaunch
from runners.config import digest
from runners.wire.protocol import FINAL_STATES, Report, RunState
from tests.conftest import SMALL

pytestmark = pytest.mark.database

NOW = 1_700_000_000.0


def report(state: str, **fields: Any) -> Report:
    return Report.model_validate({"state": state, "at": NOW} | fields)


def test_a_run_follows_its_attempt_from_start_to_end(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="dispatched")
    command, environment = ["python", "-m", "engine"], {"hostname": "gpu1", "gpus": []}
    assert attempt_report(attempt=attempt, report=report("running", command=command, environment=environment))
    assert attempt_report(
        attempt=attempt, report=report("failed", at=NOW + 5, exit_code=1, reason="ValueError: x", traceback="Trace")
    )
    attempt.refresh_from_db()
    run = attempt.run
    run.refresh_from_db()
    assert (run.state, run.reason, run.started_at, run.ended_at) == (
        "failed",
        "ValueError: x",
        attempt.started_at,
        attempt.ended_at,
    )
    assert (attempt.state, attempt.exit_code, attempt.traceback) == ("failed", 1, "Trace")
    assert (attempt.command, attempt.environment) == (command, environment), "the end takes nothing away"
    assert attempt.started_at is not None
    assert attempt.ended_at is not None
    assert (attempt.ended_at - attempt.started_at).total_seconds() == 5


def test_an_end_without_a_start_is_accepted(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="dispatched")
    assert attempt_report(attempt=attempt, report=report("oom", exit_code=77))
    attempt.run.refresh_from_db()
    assert attempt.run.state == RunState.OOM


@pytest.mark.parametrize("end", FINAL_STATES)
@pytest.mark.parametrize("late", ["running", "finished", "lost"])
def test_a_report_after_the_end_changes_nothing(end: str, late: str, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state=end)
    assert not attempt_report(attempt=attempt, report=report(late, reason="late", exit_code=3))
    attempt.refresh_from_db()
    assert (attempt.state, attempt.reason, attempt.exit_code) == (end, "", None)
    assert attempt.run.attempts.count() == 1


def test_a_lost_run_is_retried_until_max_attempts(make_attempt: Callable[..., Attempt]) -> None:
    first = make_attempt(state="running")
    run = first.run
    Run.objects.update(summary={"old": 1}, step_time_s=1.0, started_at=timezone.now())
    assert attempt_lose(attempt=first, reason="node gone")
    run.refresh_from_db()
    assert (run.state, run.attempt_number, run.summary, run.step_time_s, run.started_at) == (
        "queued",
        2,
        {},
        None,
        None,
    )
    second = run.current_attempt()
    Attempt.objects.filter(pk=second.pk).update(state="running")
    Run.objects.update(state="running")
    assert attempt_lose(attempt=second, reason="node gone again")
    run.refresh_from_db()
    assert (run.state, run.reason, run.attempt_number) == ("lost", "node gone again", 2), "max_attempts is 2"
    first.refresh_from_db()
    assert (first.state, first.reason) == ("lost", "node gone")


def test_a_run_lost_after_a_cancel_is_cancelled(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="running")
    run_cancel_request(run=attempt.run)
    attempt_lose(attempt=attempt, reason="node gone")
    attempt.refresh_from_db()
    attempt.run.refresh_from_db()
    assert (attempt.state, attempt.run.state, attempt.run.attempt_number) == ("cancelled", "cancelled", 1)
    assert attempt.reason == "cancelled; node gone"


def test_characters_that_databases_reject_are_replaced(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="dispatched")
    hostile = report(
        "failed",
        at=math.inf,
        exit_code=2**40,
        reason="nul \x00 in it",
        traceback="a\x00b",
        environment={"speed": math.nan, "half": "\ud800", "\x00": [math.inf]},
    )
    assert attempt_report(attempt=attempt, report=hostile)
    attempt.refresh_from_db()
    assert attempt.reason == "nul \N{REPLACEMENT CHARACTER} in it"
    assert attempt.environment == {"speed": None, "half": "?", "\N{REPLACEMENT CHARACTER}": [None]}
    assert attempt.exit_code is None
    assert attempt.ended_at is not None


def test_the_environment_is_stored_as_one_snapshot(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="dispatched")
    for state in ("running", "running", "finished"):
        attempt_report(attempt=attempt, report=report(state, environment={"hostname": "gpu1"}))
    snapshot = Snapshot.objects.get(run=attempt.run, kind=Snapshot.Kind.ENVIRONMENT)
    assert snapshot.content["environment"] == {"hostname": "gpu1"}
    assert snapshot.digest == digest(snapshot.content)


SUMMARY = {
    "step_time_s": {"median": 0.5, "mean": 0.6},
    "samples_per_s": 8.0,
    "tokens_per_s": 128.0,
    "memory_peak_bytes": {"min": 10, "max": 20, "by_rank": {"0": 10, "1": 20}},
    "loss": {"first": 4.0, "last": math.nan},
}


def test_a_summary_gives_the_run_its_headline_numbers(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="running")
    summary_store(attempt=attempt, summary=SUMMARY)
    attempt.refresh_from_db()
    run = attempt.run
    run.refresh_from_db()
    assert (run.step_time_s, run.samples_per_s, run.tokens_per_s, run.memory_max_bytes) == (0.5, 8.0, 128.0, 20.0)
    assert run.summary == attempt.summary
    assert run.summary["loss"] == {"first": 4.0, "last": None}
    assert not Snapshot.objects.filter(kind=Snapshot.Kind.RESULTS).exists(), "it has not ended"


def test_a_summary_of_an_earlier_attempt_does_not_change_the_run(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="running")
    attempt_lose(attempt=attempt, reason="node gone")
    summary_store(attempt=attempt, summary=SUMMARY)
    attempt.run.refresh_from_db()
    assert (attempt.run.summary, attempt.run.step_time_s) == ({}, None)
    attempt.refresh_from_db()
    assert attempt.summary["samples_per_s"] == 8.0


def test_equal_results_share_a_snapshot_and_different_ones_do_not(
    make_attempt: Callable[..., Attempt],
) -> None:
    attempt = make_attempt(state="finished")
    summary_store(attempt=attempt, summary=SUMMARY)
    summary_store(attempt=attempt, summary=dict(reversed(SUMMARY.items())))
    results = Snapshot.objects.filter(run=attempt.run, kind=Snapshot.Kind.RESULTS)
    assert results.count() == 1
    summary_store(attempt=attempt, summary={**SUMMARY, "samples_per_s": 9.0})
    assert results.count() == 2


def test_snapshots_cannot_be_changed_or_deleted(make_attempt: Callable[..., Attempt]) -> None:
    summary_store(attempt=make_attempt(state="finished"), summary=SUMMARY)
    with pytest.raises(TypeError, match="are immutable"):
        Snapshot.objects.update(content={})
    with pytest.raises(TypeError, match="are immutable"):
        Snapshot.objects.all().delete()
    assert Snapshot.objects.get().is_intact


def _consistent(run: Run) -> bool:
    attempts = list(run.attempts.order_by("number"))
    current = attempts[-1]
    return (
        [attempt.number for attempt in attempts] == list(range(1, len(attempts) + 1))
        and run.attempt_number == current.number
        and (run.state, run.reason, run.started_at, run.ended_at, run.summary)
        == (current.state, current.reason, current.started_at, current.ended_at, current.summary)
        and all(RunState(attempt.state).is_final for attempt in attempts[:-1])
    )


class StatesOnlyGoForward(TestCase):
    """Random sequences of reports, cancels, losses and relaunches."""

    ORDER = [RunState.QUEUED, RunState.DISPATCHED, RunState.RUNNING]

    def setUp(self) -> None:
        self.user = User.objects.create_user("ada")
        experiment = experiment_create(name="Any order", owner=self.user)
        config = config_save(experiment=experiment, data=SMALL, sweep={}, user=self.user)
        (self.run_,) = config_launch(config=config, user=self.user).created

    @pytest.mark.slow
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(
                    [
                        "dispatch",
                        "running",
                        "finished",
                        "oom",
                        "failed",
                        "cancelled",
                        "lost",
                        "lose",
                        "cancel",
                        "relaunch",
                        "summary",
                    ]
                ),
                st.integers(min_value=0, max_value=2),
            ),
            max_size=14,
        )
    )
    def test_any_sequence_of_events(self, events: list[tuple[str, int]]) -> None:
        for event, back in events:
            before = dict(self.run_.attempts.values_list("number", "state"))
            self._apply(event, back)
            for number, state in self.run_.attempts.values_list("number", "state"):
                if number in before:
                    self._assert_forward(RunState(before[number]), RunState(state))
            self.run_.refresh_from_db()
            assert _consistent(self.run_), f"run and attempts disagree after {event}"

    def _apply(self, event: str, back: int) -> None:
        attempts = list(self.run_.attempts.order_by("-number"))
        attempt = attempts[min(back, len(attempts) - 1)]
        try:
            if event == "dispatch":
                if Attempt.objects.filter(pk=attempt.pk, state="queued").update(state="dispatched"):
                    Run.objects.filter(pk=self.run_.pk, attempt_number=attempt.number).update(state="dispatched")
            elif event == "cancel":
                run_cancel_request(run=self.run_)
            elif event == "relaunch":
                run_relaunch(run=self.run_, user=self.user)
            elif event == "lose":
                attempt_lose(attempt=attempt, reason="lost")
            elif event == "summary":
                summary_store(attempt=attempt, summary={"samples_per_s": back})
            else:
                attempt_report(attempt=attempt, report=report(event, reason=event))
        except ValueError:
            assert event in ("cancel", "relaunch"), "only people are refused"

    def _assert_forward(self, before: RunState, after: RunState) -> None:
        if before.is_final:
            assert after == before
        elif not after.is_final:
            assert self.ORDER.index(after) >= self.ORDER.index(before)
