"""When runs are expected to end, and queued ones to start."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from parlab.fleet.forecast import Stay, queue_forecast
from parlab.lab.models import Attempt, Config, Node, Run
from tests.conftest import SMALL, place

pytestmark = pytest.mark.django_db
LIMIT_S = 600


@pytest.fixture
def now() -> datetime:
    return timezone.now()


@pytest.fixture
def config(make_config: Callable[..., Config]) -> Config:
    return make_config(data={**SMALL, "launcher": {"timeout_s": LIMIT_S}}, sweep={"train.seed": [1, 2, 3, 4]})


@pytest.fixture
def queued(make_attempt: Callable[..., Attempt], config: Config) -> Callable[..., Run]:
    def make(seed: int) -> Run:
        return make_attempt(state="queued", point={"train.seed": seed}, config=config).run

    return make


@pytest.fixture
def started(make_attempt: Callable[..., Attempt], config: Config, now: datetime) -> Callable[..., Attempt]:
    def make(node: Node, *, ago_s: float, **fields: Any) -> Attempt:
        attempt = make_attempt(state="running", point={"train.seed": 9 + Run.objects.count()}, config=config)
        attempt.started_at = now - timedelta(seconds=ago_s)
        for name, value in fields.items():
            setattr(attempt, name, value)
        attempt.save()
        place(attempt, node)
        return attempt

    return make


def seconds(stay: Stay, now: datetime) -> tuple[float | None, float | None]:
    return tuple(None if at is None else round((at - now).total_seconds()) for at in (stay.starts, stay.ends))  # type: ignore[return-value]


def test_a_running_run_ends_after_its_remaining_steps(
    started: Callable[..., Attempt], make_node: Callable[..., Node], now: datetime
) -> None:
    attempt = started(make_node("n1"), ago_s=30, last_step=2, summary={"step_time_s": {"median": 10.0}})
    iterations = attempt.run.iterations
    (stay,) = queue_forecast(list(Node.objects.all()), now)["default"]
    assert iterations
    assert seconds(stay, now) == (-30, 10 * (iterations - 2))
    assert not stay.is_limit


def test_without_steps_it_ends_at_its_limit(
    started: Callable[..., Attempt], make_node: Callable[..., Node], now: datetime
) -> None:
    started(make_node("n1"), ago_s=100)
    (stay,) = queue_forecast(list(Node.objects.all()), now)["default"]
    assert stay.is_limit
    assert seconds(stay, now)[1] == LIMIT_S - 100 + 60


def test_queued_runs_follow_each_other_on_the_nodes_that_become_free(
    started: Callable[..., Attempt], queued: Callable[[int], Run], make_node: Callable[..., Node], now: datetime
) -> None:
    started(make_node("n1"), ago_s=100)
    ended = started(Node.objects.get(), ago_s=1000)
    Run.objects.filter(pk=ended.run_id).update(
        state="finished", started_at=now - timedelta(seconds=300), ended_at=now - timedelta(seconds=180)
    )
    ended.members.update(state="finished")
    runs = [queued(1), queued(2)]
    running, *waiting = queue_forecast(list(Node.objects.all()), now)["default"]
    assert running.run.state == "running"
    assert [stay.run for stay in waiting] == runs
    assert [seconds(stay, now) for stay in waiting] == [(560, 680), (680, 800)]
    assert [stay.after for stay in waiting] == [running.run, None]
    assert all("busy" in stay.reason and not stay.is_limit for stay in waiting)


def test_a_run_that_no_node_can_take_has_no_start(queued: Callable[[int], Run], make_node: Callable[..., Node]) -> None:
    make_node("n1", pool="other")
    queued(1)
    (stay,) = queue_forecast(list(Node.objects.all()), timezone.now())["default"]
    assert (stay.starts, stay.ends) == (None, None)
    assert stay.reason


def test_a_free_node_takes_a_run_at_once(
    queued: Callable[[int], Run], make_node: Callable[..., Node], now: datetime
) -> None:
    make_node("n1")
    queued(1)
    (stay,) = queue_forecast(list(Node.objects.all()), now)["default"]
    assert seconds(stay, now) == (0, LIMIT_S)
    assert stay.is_limit


def test_a_job_in_the_queue_of_slurm_starts_when_slurm_says(
    make_attempt: Callable[..., Attempt], make_node: Callable[..., Node], config: Config, now: datetime
) -> None:
    attempt = make_attempt(state="dispatched", point={"train.seed": 5}, config=config)
    starts = (now + timedelta(hours=2)).replace(second=0, microsecond=0)
    reason = f"Slurm job 12 is PENDING: Priority, expected to start {starts.isoformat(' ', 'minutes')}"
    place(attempt, make_node("login"), state="dispatched", reason=reason)
    (stay,) = queue_forecast(list(Node.objects.all()), now)["default"]
    assert (stay.starts, stay.planned, stay.is_waiting) == (starts, starts, True)
    assert "job 12 is PENDING" in stay.reason
    assert stay.ends is not None
    assert stay.ends > starts
