"""The ranks of a run over its steps: heat map, slowest rank and node, numbers; by measure and by node."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.core.cache import cache
from django.test import Client

from parlab.lab.models import Attempt, Member, Node
from parlab.pages.reads.runs import ranks as rank_reads
from parlab.series import store
from parlab.series.columns import Columns
from parlab.series.log import append_log
from tests.conftest import place

from .test_experiments import EXPERIMENT, text

RUN = f"{EXPERIMENT}runs/1/"
FIGURE = f"{RUN}figures/ranks"
RANKS = f"{RUN}ranks/"
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
    shown = text(page.get(RANKS))
    assert "Slowest rank" in shown
    assert "rank 3 on node b 60.0 ms 20 %" in shown.replace("\N{NARROW NO-BREAK SPACE}", " ")
    content = page.get(f"{RANKS}?phase=waiting&ranks_of=0").content.decode()
    assert '<option value="waiting" selected>' in content
    assert "phase=waiting&amp;ranks_of=0" in content
    assert "Above the other nodes" not in content
    assert "Slowest node" in text(page.get(RANKS, {"phase": "step"}))
    assert page.get(RANKS, {"seen": "None-finished"}).status_code == 204


@pytest.mark.usefixtures("attempt")
def test_one_cursor_is_in_the_address_of_all_parts(page: Client) -> None:
    view = page.get(RANKS, {"step": "30", "rank": "3"}).context["view"]
    assert (view.step, view.rank) == (30, 3)
    assert view.sentence == "Rank 3 on b computes 20 % longer than the others at step 30."
    assert view.others == "Ranks 0, 1 and 2 wait for it."
    [row] = [row for row in view.heat.rows if row.is_cursor]
    [cell] = [cell for cell in row.cells if cell.is_cursor]
    assert (row.name, cell.text, cell.heat) == ("rank 3", "60.0", 3)
    assert [row.rank for row in view.bars.rows if row.is_cursor] == [3]
    assert view.moves.left == "?step=29&rank=3"
    assert view.moves.up == "?step=30&rank=2"
    assert view.moves.down == ""
    # Where the ranks are equal, none is named.
    assert page.get(RANKS, {"step": "10"}).context["view"].sentence == "No rank stands out at step 10."


@pytest.mark.usefixtures("attempt")
def test_without_a_choice_the_cursor_is_where_a_rank_is_furthest_from_the_others(page: Client) -> None:
    view = page.get(RANKS, {"step": "4000", "rank": "x"}).context["view"]
    assert (view.step, view.rank) == (21, 3)


def test_a_long_run_shows_the_steps_around_the_cursor_and_all_of_them_above(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="finished")
    attempt.run.resolved["cluster"] |= {"nodes": 1, "gpus_per_node": 4}
    attempt.run.save()
    store_ranks(attempt, 4, steps=4_000)
    view = page.get(RANKS, {"step": "2100"}).context["view"]
    steps = [step for step, _ in view.heat.steps]
    assert steps == list(range(2084, 2116))
    assert [step for step, is_here in view.heat.steps if is_here] == [2100]
    assert sum(cell.is_cursor for cell in view.heat.strip) == 1
    assert view.heat.strip[0].address == "?step=1&rank=3"


def test_the_lines_of_the_step_are_reports_and_prints_with_their_ranks(page: Client, attempt: Attempt) -> None:
    event = {"parlab": 1, "t": 1.0, "rank": 2, "event": "step", "step": 7, "step_time_s": 0.471, "loss": 6.4771}
    report = json.dumps({**event, "timers_s": {"forward-compute": 0.017}}, separators=(",", ":"))
    append_log(attempt.pk, f"{report}\n iteration 7/ 8 | lm loss 1 |\nstep 7.5 of no step\nstep 70\n".encode())
    lines = page.get(RANKS, {"step": "7", "rank": "2"}).context["view"].lines
    assert [(line.number, line.rank, line.text) for line in lines] == [
        (1, 2, "step 7 step_time 471 ms forward-compute 17.0 loss 6.4771"),
        (2, None, " iteration 7/ 8 | lm loss 1 |"),
    ]


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


def test_a_run_of_one_rank_has_no_heat_map(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    store_ranks(make_attempt(state="finished"), 1)
    assert page.get(RANKS).context["view"].heat is None
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
    shown = page.get(RANKS)
    assert "rank 3 on node gpu000" in text(shown)
    # Rows are nodes; a click opens the ranks of one.
    rows = shown.context["view"].heat.rows
    assert [(row.name, row.place) for row in rows][:2] == [("gpu000", "8 ranks"), ("gpu001", "8 ranks")]
    assert "ranks_of=0" in rows[0].address
    opened = page.get(RANKS, {"ranks_of": "127"}).context["view"]
    assert [row.name for row in opened.heat.rows] == [f"rank {n}" for n in range(1016, 1024)]
    only = drawn(page, ranks_of="127")["figure"]["data"]
    assert [trace["hovertemplate"].partition(" on ")[0] for trace in only] == [f"rank {n}" for n in range(1016, 1024)]
