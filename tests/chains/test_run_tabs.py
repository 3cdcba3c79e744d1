"""The tabs Ranks and System of a chain: all attempts on one axis."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import pytest
from django.test import Client

from parlab.charts.runs import telemetry as telemetry_charts
from parlab.lab.models import Attempt, Node, Run
from parlab.pages.reads.runs import ranks
from parlab.pages.reads.runs.ranks import STEP, Choice
from parlab.publishing.figures import telemetry
from parlab.publishing.figures.windows import WHOLE, Window
from parlab.series import store
from parlab.series.columns import Columns
from tests.conftest import place

pytestmark = pytest.mark.database

BOUNDS = [(1, 10), (8, 20), (15, 16)]


def columns(first: int, last: int, value: float) -> Columns:
    steps = np.arange(first, last + 1, dtype=np.int64)
    return Columns(steps, steps.astype(float), np.full(len(steps), value))


@pytest.fixture
def attempts(make_attempt: Callable[..., Attempt], make_node: Callable[..., Node]) -> list[Attempt]:
    """A chain of steps 1 to 10, 8 to 20 and 15 to 16 on two ranks, whose third attempt is on another node."""
    first = make_attempt()
    resolved = {**first.run.resolved, "launcher": {**first.run.resolved["launcher"], "chain": True}}
    Run.objects.update(resolved=resolved, attempt_number=3, state="running")
    Attempt.objects.bulk_create([Attempt(run=first.run, number=number, state="running") for number in (2, 3)])
    nodes = [make_node("n1"), make_node("n2")]
    for attempt, (begin, end), node in zip(
        Attempt.objects.order_by("number"), BOUNDS, [nodes[0], nodes[0], nodes[1]], strict=True
    ):
        slow = columns(begin, end, attempt.number + 0.5)
        samples = np.array([100.0 * attempt.number, 100.0 * attempt.number + 1])
        busy = Columns(np.zeros(2, np.int64), samples, np.full(2, 10.0 * attempt.number))
        own = {("step_time_s", 0): columns(begin, end, attempt.number), ("step_time_s", 1): slow, ("cpu_pct", -1): busy}
        store.append_all({attempt.pk: own})
        ended = datetime.fromtimestamp(100.0 * attempt.number + 50, UTC)
        Attempt.objects.filter(pk=attempt.pk).update(last_step=end, ended_at=ended)
        place(attempt, node, state="running")
    return list(Attempt.objects.select_related("run").order_by("number"))


def test_the_heat_map_has_each_step_as_it_was_made_last(attempts: list[Attempt]) -> None:
    source = ranks.source_of(attempts[2].run, attempts[2])
    cells = ranks.reading_of(source, Choice(STEP), Window(None)).cells
    assert (cells.first_step, cells.width) == (1, 1)
    assert cells.means[0].tolist() == [1.0] * 7 + [2.0] * 7 + [3.0] * 2
    assert cells.means[1].tolist() == [1.5] * 7 + [2.5] * 7 + [3.5] * 2
    alone = ranks.source_of(attempts[1].run, attempts[1])
    assert ranks.reading_of(alone, Choice(STEP), Window(None)).cells.means[0].tolist() == [2.0] * 13


def test_the_cursor_shows_the_attempt_that_made_a_step(attempts: list[Attempt], page: Client) -> None:
    source = ranks.source_of(attempts[2].run, attempts[2])
    made = [source.at(step).attempt.number for step in (1, 7, 8, 14, 15, 16)]
    assert made == [1, 1, 2, 2, 3, 3]
    assert (source.at(9).layout.nodes, source.at(15).layout.nodes) == (("n1",), ("n2",))
    text = page.get(f"{attempts[2].run.get_absolute_url()}ranks/?step=3&rank=1").content.decode()
    assert "at step 3" in text


def test_telemetry_has_all_attempts_on_one_axis_with_gaps(attempts: list[Attempt], page: Client) -> None:
    drawn = telemetry.drawing("processor", attempts[2].run, attempts[2], Window(1000))
    assert drawn.figure is not None
    (line,) = drawn.figure.data
    assert list(line.x) == [0, 1, 50, 100, 101, 150, 200, 201]
    values = [None if np.isnan(value) else value for value in line.y]
    assert values == [10, 10, None, 20, 20, None, 30, 30]
    whole = telemetry.drawing("processor", attempts[2].run, attempts[2], WHOLE)
    assert whole.table is not None
    assert len(whole.table.rows) == 6
    alone = telemetry.drawing("processor", attempts[1].run, attempts[1], Window(1000))
    assert alone.figure is not None
    assert list(alone.figure.data[0].y) == [20, 20]
    assert page.get(f"{attempts[2].run.get_absolute_url()}system/").status_code == 200


def test_what_ran_on_several_nodes_is_named_by_all_of_them(attempts: list[Attempt]) -> None:
    names = telemetry.names_of_all(attempts)
    assert names.nodes == ["n1, n2"]
    assert names.whose(("cpu_pct", -1)) == "n1, n2"
    assert telemetry.names_of_all(attempts[:2]) == telemetry_charts.Names([])
