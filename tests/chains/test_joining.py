"""One curve of several attempts: each step once, as it was made last; what was made again is marked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from parlab.ingest.summaries.printed import is_sampled
from parlab.lab.models import Attempt, Run
from parlab.publishing.figures.chains import Joined, chain_of
from parlab.series import joining, store
from parlab.series.columns import Columns

pytestmark = pytest.mark.database


def columns(first: int, last: int, value: float) -> Columns:
    steps = np.arange(first, last + 1, dtype=np.int64)
    return Columns(steps, steps.astype(float), np.full(len(steps), value))


@pytest.fixture
def attempts(make_attempt: Callable[..., Attempt]) -> list[Attempt]:
    """A chain of three attempts: steps 1 to 10, 8 to 20 and 21 to 30; its values are the numbers of the attempts."""
    first = make_attempt()
    resolved = {**first.run.resolved, "launcher": {**first.run.resolved["launcher"], "chain": True}}
    Run.objects.filter(pk=first.run_id).update(resolved=resolved, attempt_number=3)
    more = [Attempt.objects.create(run=first.run, number=number, state="running") for number in (2, 3)]
    attempts = [first, *more]
    for attempt, (begin, end) in zip(attempts, [(1, 10), (8, 20), (21, 30)], strict=True):
        series = columns(begin, end, attempt.number)
        nodes = Columns(np.zeros(2, np.int64), np.array([1.0, 2.0]), np.full(2, attempt.number))
        store.append_all({attempt.pk: {("loss", 0): series, ("loss", 1): series, ("cpu_pct", -1): nodes}})
        Attempt.objects.filter(pk=attempt.pk).update(last_step=end)
    return list(Attempt.objects.select_related("run").order_by("number"))


def test_the_curve_of_the_current_attempt_has_all_steps_once(attempts: list[Attempt]) -> None:
    joined = Joined(attempts[2])
    for rank in (0, 1):
        series = joined.read_ranks("loss")[rank]
        assert series.steps.tolist() == list(range(1, 31))
        assert series.values.tolist() == [1.0] * 7 + [2.0] * 13 + [3.0] * 10
    assert joined.repeated("loss") == [(8, 10)]
    assert [info.points for info in joined.metrics() if info.metric == "loss"] == [33, 33]


def test_a_window_of_it_has_the_same_steps(attempts: list[Attempt]) -> None:
    part = Joined(attempts[2]).read_parts("loss", 100, first_step=6, last_step=22)[0]
    assert part.columns.steps.tolist() == list(range(6, 23))
    assert part.columns.values.tolist() == [1.0, 1.0, *[2.0] * 13, 3.0, 3.0]
    assert part.is_whole


def test_samples_of_nodes_belong_to_moments_and_are_all_there(attempts: list[Attempt]) -> None:
    assert Joined(attempts[2]).read_ranks("cpu_pct")[-1].values.tolist() == [1, 1, 2, 2, 3, 3]


def test_an_earlier_attempt_is_shown_alone(attempts: list[Attempt]) -> None:
    assert Joined(attempts[1]).read_ranks("loss")[0].steps.tolist() == list(range(8, 21))
    assert Joined(attempts[1]).repeated("loss") == []


def test_an_attempt_without_steps_yet_keeps_the_curve(attempts: list[Attempt]) -> None:
    last = Attempt.objects.create(run=attempts[0].run, number=4, state="queued")
    Run.objects.update(attempt_number=4)
    last = Attempt.objects.select_related("run").get(pk=last.pk)
    assert Joined(last).read_ranks("loss")[0].steps.tolist() == list(range(1, 31))


def test_the_attempts_in_numbers(attempts: list[Attempt]) -> None:
    chain = chain_of(attempts[0].run.__class__.objects.get())
    assert chain is not None
    assert [(each.first_step, each.last_step) for each in chain.attempts] == [(1, 10), (8, 20), (21, 30)]
    assert (chain.steps, chain.repeated) == (30, 3)
    assert chain.once_pct == pytest.approx(100 * 30 / 33)


def test_a_step_that_was_made_three_times_was_made_again_twice() -> None:
    bounds = [(1, 10), (5, 8), (5, 20)]
    assert joining.stretches(bounds) == [(5, 10)]
    assert joining.repeated_count(bounds) == 10 + 4 + 16 - 20


def test_without_a_chain_nothing_is_read_besides(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt()
    store.append_all({attempt.pk: {("loss", 0): columns(1, 3, 1.0)}})
    read = store.read_many([attempt.pk], ["loss"])
    assert joining.joined(read, {}, {}, is_sampled) is read
