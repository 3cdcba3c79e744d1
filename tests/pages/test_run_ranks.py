"""The ranks of a run over its steps: heat map, slowest rank and node, numbers; by measure and by node."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.core.cache import cache
from django.test import Client

from parlab.lab.models import Attempt, Member, Node
from parlab.pages.reads import ranks as rank_reads
from parlab.series import store
from parlab.series.columns import Columns
from tests.conftest import place

from .test_experiments import EXPERIMENT, text

RUN = f"{EXPERIMENT}runs/1/"
FIGURE = f"{RUN}figures/ranks"
STEPS = 40


@pytest.fixture(autouse=True)
def _no_earlier_readings() -> None:
    cache.clear()


def store_ranks(attempt: Attempt, ranks: int, steps: int = STEPS) -> None:
    """Ranks that wait for each other: equal step times; rank 3 computes 20 % longer from step 21 on, and waits less."""
    numbers = np.arange(1, steps + 1)
    times = 1e9 + numbers.astype(float)
    series: dict[tuple[str, int], Columns] = {}
    for rank in range(ranks):
        compute = np.where((numbers > steps // 2) & (rank == 3), 0.060, 0.050)
        waiting = 0.080 - compute
        values = {"step_time_s": np.full(steps, 0.080), "timer/backward-params-all-reduce": waiting}
        values["timer/forward-compute"] = compute
        series |= {(metric, rank): Columns(numbers, times, column) for metric, column in values.items()}
    store.append(attempt.pk, series)


@pytest.fixture
def attempt(make_attempt: Callable[..., Attempt]) -> Attempt:
    attempt = make_attempt(state="finished")
    attempt.run.resolved["cluster"] |= {"nodes": 2, "gpus_per_node": 2}
    attempt.run.resolved["train"]["warmup_steps"] = 2
    attempt.run.save()
    for node_rank, name in enumerate("ab"):
        place(attempt, Node.objects.create(name=name), node_rank=node_rank)
    store_ranks(attempt, 4)
    return attempt


def drawn(page: Client, **query: Any) -> dict[str, Any]:
    answer: dict[str, Any] = page.get(f"{FIGURE}.json", query).json()
    return answer


@pytest.mark.usefixtures("attempt")
def test_synchronised_ranks_are_compared_without_their_waiting(page: Client) -> None:
    answer = drawn(page)
    assert answer["figure"]["layout"]["title"]["text"] == "Step time without waiting by rank and step"
    assert answer["caption"] == (
        "Rank 3 on node b is 20 % slower than the median of the others over steps 22 to 40; slowest node: b, 10 % above"
        " the median of the others (step time without waiting)."
    )
    assert answer["figure"]["data"][3]["marker"]["color"][20:22] == [60.0, 60.0]
    assert answer["figure"]["data"][0]["marker"]["color"][20:22] == [50.0, 50.0]
    equal = drawn(page, phase="step")["caption"]
    assert equal.startswith("No rank stands out")
    assert equal.endswith("(step time).")


@pytest.mark.usefixtures("attempt")
def test_measure_and_node_are_chosen_by_the_address(page: Client) -> None:
    waiting = drawn(page, phase="waiting", ranks_of="1")
    assert [trace["hovertemplate"].partition("<br>")[0] for trace in waiting["figure"]["data"]] == [
        "rank 2 on node b",
        "rank 3 on node b",
    ]
    timer = drawn(page, phase="timer/forward-compute")
    assert timer["figure"]["layout"]["title"]["text"] == "forward-compute by rank and step"
    # What does not exist is ignored.
    assert drawn(page, phase="<b>", ranks_of="9") == drawn(page)


def test_a_node_with_one_rank_is_drawn_too(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="finished")
    attempt.run.resolved["cluster"] |= {"nodes": 2, "gpus_per_node": 1}
    attempt.run.save()
    for node_rank, name in enumerate("ab"):
        place(attempt, Node.objects.create(name=name), node_rank=node_rank)
    store_ranks(attempt, 2)
    (trace,) = drawn(page, ranks_of="1")["figure"]["data"]
    assert trace["hovertemplate"].startswith("rank 1 on node b<br>")


@pytest.mark.usefixtures("attempt")
def test_the_page_names_the_slowest_rank_and_node_over_time(page: Client) -> None:
    shown = text(page.get(RUN))
    assert "Slowest rank" in shown
    assert "rank 3 on node b 60.0 ms 20 %" in shown.replace("\N{NARROW NO-BREAK SPACE}", " ")
    content = page.get(f"{RUN}?phase=waiting&ranks_of=0").content.decode()
    assert '<option value="waiting" selected>' in content
    assert "phase=waiting&amp;ranks_of=0" in content
    assert "Above the other nodes" not in content
    poll = page.get(f"{RUN}ranks/", {"phase": "step"})
    assert "Slowest node" in text(poll)
    assert page.get(f"{RUN}ranks/", {"seen": "None-finished"}).status_code == 204


@pytest.mark.usefixtures("attempt")
def test_the_numbers_are_those_of_each_rank_and_step(page: Client) -> None:
    rows = list(csv.reader(io.StringIO(page.get(f"{FIGURE}.csv").content.decode())))
    assert rows[0] == ["rank", "node", "first_step", "last_step", "mean_s", "max_s"]
    assert len(rows) == 1 + 4 * STEPS
    last = rows[-1]
    assert last[:4] == ["3", "b", "40", "40"]
    assert float(last[4]) == pytest.approx(0.06)


def test_long_runs_are_thinned_and_a_zoom_shows_single_steps(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="finished")
    attempt.run.resolved["cluster"] |= {"nodes": 1, "gpus_per_node": 4}
    attempt.run.save()
    store_ranks(attempt, 4, steps=4_000)
    whole = drawn(page)
    assert whole["thinned"]
    assert whole["figure"]["data"][0]["dx"] == 25
    part = drawn(page, **{"from": 2_000, "to": 2_050})["figure"]["data"][3]
    assert (part["dx"], part["x0"], len(part["y"])) == (1, 2_000, 51)
    assert part["marker"]["color"][:2] == [50.0, 60.0]


def test_a_run_of_one_rank_has_no_such_section(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    store_ranks(make_attempt(state="finished"), 1)
    assert 'id="ranks"' not in page.get(RUN).content.decode()
    assert "needs the step times of at least two ranks" in drawn(page)["empty"]


def test_repeated_steps_count_once_and_values_that_are_not_finite_never() -> None:
    steps, values = np.array([1, 2, 3, 2, 3]), np.array([1.0, 9.0, 9.0, 2.0, np.nan])
    points = rank_reads._values("step", {"step_time_s": (steps, values)})
    assert [column.tolist() for column in points] == [[1, 2, 3], [1.0, 2.0, 9.0]]


@pytest.mark.slow
def test_a_thousand_ranks_are_read_by_page_and_figure(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="finished")
    attempt.run.resolved["cluster"] |= {"nodes": 128, "gpus_per_node": 8}
    attempt.run.save()
    nodes = Node.objects.bulk_create([Node(name=f"gpu{number:03}") for number in range(128)])
    Member.objects.bulk_create([Member(attempt=attempt, node=node, node_rank=rank) for rank, node in enumerate(nodes)])
    store_ranks(attempt, 1_024)
    response = page.get(f"{FIGURE}.json")
    assert len(response.content) <= 200_000
    answer = response.json()
    assert "Rank 3 on node gpu000 is 20 % slower" in answer["caption"]
    assert len(answer["figure"]["data"]) == 128
    assert "rank 3 on node gpu000" in text(page.get(RUN))
    only = drawn(page, ranks_of="127")["figure"]["data"]
    assert [trace["hovertemplate"].partition(" on ")[0] for trace in only] == [f"rank {n}" for n in range(1016, 1024)]
