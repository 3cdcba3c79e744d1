"""The heat map of ranks, and the sentence that names the slowest."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from parlab.charts.runs.ranks import (
    MAX_ROWS,
    Cells,
    Ranks,
    Slow,
    Values,
    columns_for,
    figure,
    numbers,
    sentence,
    slowest,
)


def cells_of(means: Values, nodes: int = 1, width: int = 1) -> Cells:
    count = len(means)
    names = tuple("abcdefghijklmnopqrstuvwxyz"[at] if nodes < 27 else f"node{at:03}" for at in range(nodes))
    ranks = Ranks(range(count), [rank // (count // nodes) for rank in range(count)], names)
    return Cells("Step time", ranks, 1, width, means, means * 1.5)


def payload(cells: Cells) -> bytes:
    return figure(cells, "A sentence.").to_json().encode()


def test_each_cell_names_rank_node_step_and_value() -> None:
    means = np.array([[0.010, 0.020], [0.030, np.nan], [0.010, 0.010], [0.010, 0.010]])
    drawn = json.loads(figure(cells_of(means, nodes=2)).to_json())["figure"]
    second = drawn["data"][1]
    assert second["hovertemplate"].startswith("rank 1 on node a<br>step %{x}<br>%{marker.color:.3~g} ms")
    assert (second["marker"]["color"], second["y"], second["base"]) == ([30.0, 0], [1, None], 0.5)
    assert (second["x0"], second["dx"], second["width"]) == (1, 1, 1)
    assert drawn["data"][2]["hovertemplate"].startswith("rank 2 on node b")
    assert drawn["layout"]["coloraxis"]["showscale"] is False  # its colour bar would need inline styles
    assert numbers(cells_of(means, nodes=2)).rows[2] == [1, "a", 1, 1, 0.03, pytest.approx(0.045)]


def test_cells_of_several_steps_name_their_slowest_step_and_those_of_one_step_and_rank_nothing_more() -> None:
    means = np.array([[0.010, 0.020], [0.030, 0.040]])
    single = json.loads(figure(cells_of(means)).to_json())["figure"]["data"][1]
    assert "slowest" not in single["hovertemplate"]
    assert "customdata" not in single
    several = json.loads(figure(cells_of(means, width=5)).to_json())["figure"]["data"][1]
    assert "slowest step %{customdata[0]" in several["hovertemplate"]
    assert several["customdata"] == [[45.0], [60.0]]


def test_a_thousand_ranks_share_rows_of_one_node_and_fit_into_200_kb() -> None:
    columns = columns_for(1024)
    means = np.random.default_rng(1).normal(0.123456, 0.01, (1024, columns))
    means[517] += 0.2
    cells = cells_of(means, nodes=128, width=5)
    text = payload(cells)
    assert len(text) <= 200_000
    assert len(gzip.compress(text)) < 80_000
    drawn = json.loads(text)
    rows = drawn["figure"]["data"]
    assert len(rows) == MAX_ROWS
    assert rows[64]["hovertemplate"].startswith("rank 512 on node node064 to 519<br>5 steps from %{x}<br>slowest: rank")
    assert {about[1] for about in rows[64]["customdata"]} == {517}
    assert drawn["thinned"]


def test_ranks_of_a_row_never_belong_to_two_nodes() -> None:
    for ranks, nodes in ((1000, 125), (600, 100), (144, 9), (1024, 1), (513, 513)):
        drawn = figure(cells_of(np.full((ranks, 2), 0.1), nodes=nodes)).figure
        assert drawn is not None
        assert len(drawn.data) <= MAX_ROWS
        per_node, size = ranks // nodes, -(-ranks // len(drawn.data))
        assert per_node % size == 0 or size % per_node == 0


def test_without_times_the_figure_tells_what_it_needs() -> None:
    assert figure(cells_of(np.full((2, 3), np.nan))).empty == (
        "Ranks over steps: needs the step times of at least two ranks."
    )


def test_the_slowest_rank_and_node_are_named_with_their_size() -> None:
    medians = np.full((6, 3), 0.100)
    medians[5, 1:] = 0.112
    medians[4, 1:] = 0.108
    slow = slowest(cells_of(medians, nodes=3).ranks, [(1, 99), (100, 150), (151, 200)], medians)
    assert [window.rank for window in slow[1:]] == ["rank 5 on node c"] * 2
    assert slow[1].above == pytest.approx(0.12)
    assert slow[1].node == "c"
    assert slow[1].node_above == pytest.approx(0.10)
    assert sentence(slow, "step time") == (
        "Rank 5 on node c is 12 % slower than the median of the others over steps 100 to 200;"
        " slowest node: c, 10 % above the median of the others (step time)."
    )


def test_ranks_of_equal_speed_are_not_blamed() -> None:
    medians = np.array([[0.100], [0.101], [0.100]])
    slow = slowest(cells_of(medians).ranks, [(1, 9)], medians)
    assert sentence(slow, "step time") == (
        "No rank stands out: the slowest, rank 1, is 1.0 % above the median of the others over steps 1 to 9"
        " (step time)."
    )
    assert sentence([], "step time") == ""


def test_a_window_with_a_single_rank_names_nobody() -> None:
    medians = np.array([[0.1, np.nan], [np.nan, np.nan]])
    assert slowest(cells_of(medians).ranks, [(1, 9), (10, 19)], medians) == list[Slow]()
