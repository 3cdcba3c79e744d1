"""What follows the end of an attempt of a chain: the next one, or the end of the run with its reason."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from parlab.ingest.batches.orders import for_any_node, within_chain
from parlab.lab.models import Attempt, Config, Event, Run
from parlab.lab.services.chains import run_chain_end
from parlab.lab.services.members import attempt_report
from parlab.lab.services.runs import run_relaunch
from runners.config.sections import CheckpointSection, LauncherSection
from runners.wire.protocol import Report
from tests.conftest import SMALL

pytestmark = pytest.mark.database

COMMAND: dict[str, Any] = {"parallel": {"engine": "command"}, "command": {"argv": ["/opt/train"]}}


@pytest.fixture
def chain(make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]) -> Callable[..., Run]:
    """Make a run whose first attempt of a chain has just started."""

    def make(**launcher: Any) -> Run:
        data = {**SMALL, **COMMAND, "launcher": {"chain": True, **launcher}}
        return make_attempt(state="running", config=make_config(data=data)).run

    return make


def end(run: Run, state: str, last_step: int | None = None, ran_s: float = 5.0, **fields: Any) -> Run:
    """End the current attempt, which has run for a while and made steps up to one; return the run as it is then."""
    run.refresh_from_db()
    now = timezone.now()
    attempt = run.current_attempt()
    started = now - timedelta(seconds=ran_s)
    Attempt.objects.filter(pk=attempt.pk).update(state="running", last_step=last_step, started_at=started)
    Run.objects.filter(pk=run.pk).update(state="running", started_at=started)
    report = Report.model_validate({"state": state, "at": now.timestamp(), "reason": f"it {state}", **fields})
    assert attempt_report(attempt=attempt, report=report)
    run.refresh_from_db()
    return run


@pytest.mark.parametrize("state", ["checkpointed", "time-limit", "preempted", "lost", "failed", "oom"])
def test_an_attempt_that_made_steps_is_followed_by_the_next(chain: Callable[..., Run], state: str) -> None:
    run = end(chain(), state, 10)
    assert (run.state, run.attempt_number) == ("queued", 2)
    assert list(run.attempts.values_list("state", flat=True)) == [state, "queued"]
    assert not Event.objects.exists(), "the run goes on"


@pytest.mark.parametrize("state", ["finished", "cancelled"])
def test_a_training_that_has_ended_or_was_cancelled_has_no_next_attempt(chain: Callable[..., Run], state: str) -> None:
    run = end(chain(), state, 10)
    assert (run.state, run.attempt_number) == (state, 1)


def test_more_attempts_may_be_lost_in_a_chain_than_max_attempts_as_long_as_steps_are_made(
    chain: Callable[..., Run],
) -> None:
    run = chain(max_attempts=2)
    for number in range(1, 25):
        run = end(run, "lost", 10 * number)
    assert (run.state, run.attempt_number) == ("queued", 25)


def test_a_node_that_is_lost_again_before_a_new_step_counts_against_max_attempts(chain: Callable[..., Run]) -> None:
    run = end(chain(max_attempts=2), "lost", 10)
    run = end(run, "lost", 10)
    assert run.state == "queued"
    run = end(run, "lost", 8)
    assert (run.state, run.attempt_number) == ("lost", 3)
    assert run.reason == (
        "no new step in 2 attempts in a row (launcher.max_attempts 2), so the chain has ended: it lost"
    )


def test_a_crash_loop_stops_and_says_why(chain: Callable[..., Run]) -> None:
    run = chain(chain_max_stalled=3)
    for last_step in (10, 20, 20, 15, None):
        run = end(run, "failed", last_step, exit_code=1)
    assert (run.state, run.attempt_number) == ("failed", 5)
    assert run.reason == (
        "no new step in 3 attempts in a row (launcher.chain_max_stalled 3), so the chain has ended: it failed"
    )
    assert Event.objects.get().kind == Event.Kind.RUN_FAILED


def test_limits_without_progress_are_a_crash_loop_too(chain: Callable[..., Run]) -> None:
    run = chain(chain_max_stalled=2)
    for _ in range(2):
        run = end(run, "checkpointed", 0)
    assert run.state == "failed"


def test_an_attempt_with_unknown_steps_counts_by_its_time(chain: Callable[..., Run]) -> None:
    run = chain(chain_max_stalled=1)
    run = end(run, "checkpointed", None, ran_s=600)
    assert run.state == "queued"
    run = end(run, "checkpointed", None, ran_s=6)
    assert run.state == "failed"


def test_a_run_that_could_not_start_is_not_started_again(chain: Callable[..., Run]) -> None:
    run = chain()
    attempt = run.current_attempt()
    assert attempt_report(attempt=attempt, report=Report(state="failed", at=1e9, reason="no such file"))
    run.refresh_from_db()
    assert (run.state, run.attempt_number) == ("failed", 1)


def test_a_step_ends_a_chain(chain: Callable[..., Run]) -> None:
    run = end(chain(chain_until_step=20), "checkpointed", 19)
    assert run.state == "queued"
    run = end(run, "checkpointed", 20)
    assert (run.state, run.attempt_number) == ("finished", 2)
    assert run.reason.startswith("the chain has reached step 20 (launcher.chain_until_step 20)")


def test_an_exit_code_ends_a_chain(chain: Callable[..., Run]) -> None:
    run = end(chain(chain_until_exit_code=3), "failed", 10, exit_code=1)
    assert run.state == "queued"
    run = end(run, "failed", 12, exit_code=3)
    assert (run.state, run.attempt_number) == ("finished", 2)
    assert run.reason.startswith("the chain has ended with exit code 3")


def test_a_time_ends_a_chain_and_shortens_its_last_attempt(chain: Callable[..., Run]) -> None:
    run = chain(chain_until_s=100, timeout_s=60, grace_s=50, warn_before_s=40)
    run = end(run, "checkpointed", 10, ran_s=70)
    assert run.state == "queued"
    launcher = within_chain(run, run.resolved)["launcher"]
    assert (launcher["timeout_s"], launcher["grace_s"], launcher["warn_before_s"]) == (29, 29, 28)
    Attempt.objects.filter(run=run, number=1).update(started_at=timezone.now() - timedelta(seconds=101))
    run = end(run, "checkpointed", 20, ran_s=30)
    assert (run.state, run.attempt_number) == ("finished", 2)
    assert run.reason.startswith("the chain has run for launcher.chain_until_s 100")


def test_a_person_ends_a_chain_after_its_current_attempt(chain: Callable[..., Run]) -> None:
    run = chain()
    assert run_chain_end(run=run).state == "running"
    run = end(run, "checkpointed", 10)
    assert (run.state, run.attempt_number) == ("checkpointed", 1)
    assert run.reason == "the chain was ended by a person after attempt 1: it checkpointed"
    with pytest.raises(ValueError, match="run #1 has already ended: checkpointed"):
        run_chain_end(run=run)


def test_only_a_chain_can_be_ended(make_attempt: Callable[..., Attempt]) -> None:
    with pytest.raises(ValueError, match="run #1 is no chain"):
        run_chain_end(run=make_attempt().run)


def test_a_relaunched_chain_begins_to_count_again(chain: Callable[..., Run], user: User) -> None:
    run = chain(chain_max_stalled=1)
    run_chain_end(run=run)
    run = end(run, "failed", 0)
    assert run.state == "failed"
    run_relaunch(run=run, user=user)
    run = end(run, "failed", 5)
    assert (run.state, run.attempt_number) == ("queued", 3)


def test_without_a_chain_a_time_limit_is_the_end(make_attempt: Callable[..., Attempt]) -> None:
    run = end(make_attempt().run, "time-limit", 10)
    assert (run.state, run.attempt_number) == ("time-limit", 1)
    assert Event.objects.get().text.endswith("reached its time limit: it time-limit")


def test_without_a_chain_a_preempted_run_is_retried_like_a_lost_one(make_attempt: Callable[..., Attempt]) -> None:
    run = end(make_attempt().run, "preempted", 10)
    assert (run.state, run.attempt_number) == ("queued", 2)
    run = end(run, "preempted", 10)
    assert (run.state, run.attempt_number) == ("preempted", 2)


def test_daemons_of_earlier_releases_get_no_field_that_they_would_refuse(chain: Callable[..., Run]) -> None:
    defaults = LauncherSection().model_dump()
    sent = for_any_node({"launcher": defaults})["launcher"]
    assert not [name for name in sent if name.startswith(("chain", "warn_"))]
    assert for_any_node(chain().resolved)["launcher"]["chain"] is True
    assert for_any_node({"checkpoint": CheckpointSection().model_dump()}) == {}
    assert for_any_node({"checkpoint": CheckpointSection(every_steps=5).model_dump()}) == {
        "checkpoint": {"every_steps": 5}
    }
