"""The figure of a watch: results by node, levels and changes."""

from __future__ import annotations

import pytest

from parlab.charts.runs import watched
from parlab.charts.runs.watched import MAX_NODES, Point


def results(nodes: int) -> list[Point]:
    """Two results of each node."""
    return [Point(n, 0.1 * n, "today", f"node {n % nodes}", "abc") for n in range(1, 2 * nodes + 1)]


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        (MAX_NODES, [f"node {n}" for n in (*range(1, MAX_NODES), 0)]),
        (MAX_NODES + 1, ["all nodes"]),
    ],
)
def test_nodes_have_colours_of_their_own_up_to_as_many_as_can_be_told_apart(nodes: int, names: list[str]) -> None:
    drawing = watched.figure("Step time", "s", results(nodes))
    assert drawing.figure is not None
    assert [trace.name for trace in drawing.figure.data] == names
    assert len({trace.marker.color for trace in drawing.figure.data}) == len(names)
    assert sorted(x for trace in drawing.figure.data for x in trace.x) == list(range(1, 2 * nodes + 1))
