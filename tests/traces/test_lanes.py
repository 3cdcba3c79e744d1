"""Lanes of a trace: nothing is lost between a kernel and the whole, at a bounded size of each window."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from parlab.traces.lanes import StoredLanes, store
from parlab.traces.reading import RankTrace, read_trace

from .generator import Plan, document, file_of

PLAN = Plan(steps=400)


@pytest.fixture(scope="module")
def trace() -> RankTrace:
    return read_trace(file_of(document(PLAN, 0)))


@pytest.fixture(scope="module")
def lanes(trace: RankTrace, tmp_path_factory: pytest.TempPathFactory) -> StoredLanes:
    directory = tmp_path_factory.mktemp("lanes") / "trace"
    store(trace, directory)
    store(trace, directory)  # again
    return StoredLanes(directory)


def test_the_whole_trace_and_a_step_cost_the_same(lanes: StoredLanes) -> None:
    assert lanes.events == 12 * 400
    whole = lanes.window(lanes.begin_s, lanes.end_s, most=300)
    assert all(len(bars.starts) <= 300 for bars in whole)
    # The busy time of the groups is that of the events.
    assert sum(sum(bars.busy) for bars in whole) == pytest.approx(400 * (1000 + 500 + 50) * 1e-6, rel=1e-5)
    assert not all(bars.is_exact for bars in whole)
    begin_s = 200 * PLAN.step_us * 1e-6
    step = lanes.window(begin_s, begin_s + PLAN.step_us * 1e-6, most=300)
    assert all(bars.is_exact for bars in step)
    names = {lanes.names[name] for bars in step for name in bars.names}
    assert "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" in names


def test_bars_of_a_lane_are_in_order_and_do_not_overlap(lanes: StoredLanes) -> None:
    for bars in lanes.window(lanes.begin_s, lanes.end_s, most=10**6):
        starts, ends = np.array(bars.starts), np.array(bars.ends)
        assert (starts[1:] >= ends[:-1] - 1e-9).all()


def test_a_search_counts_all_and_goes_on_from_a_position(lanes: StoredLanes) -> None:
    (match,) = lanes.search("ALLREDUCE", lanes.begin_s + 0.3)
    assert (match.calls, match.total_s) == pytest.approx((400, 400 * 500e-6))
    assert match.occurrences[0][1] > lanes.begin_s + 0.3
    assert len(match.occurrences) == 50
    assert lanes.search("nothing like it", 0) == []


def test_an_export_is_a_trace_with_the_same_events(lanes: StoredLanes) -> None:
    events = [json.loads(line) for line in lanes.exported(3, 1.0)]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == lanes.events
    assert {event["pid"] for event in events} == {3}
    assert sum(event["dur"] for event in spans) == pytest.approx(400 * 1550, rel=1e-6)
    assert [event["args"]["name"] for event in events[:1]] == ["rank 3"]


def test_nested_operations_are_lanes_of_their_own(tmp_path: Path) -> None:
    def operation(name: str, at: float, length: float) -> dict[str, object]:
        return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 5, "ts": at, "dur": length, "args": {}}

    events = [operation("outer", 0, 10), operation("inner", 0, 4), operation("inner", 5, 5), operation("outer", 10, 3)]
    span = {**operation("forward-compute", 0, 20), "cat": "user_annotation"}
    store(read_trace(file_of({"traceEvents": [*events, span]})), tmp_path / "trace")
    lanes = StoredLanes(tmp_path / "trace")
    assert [(lane.kind, lane.depth) for lane in lanes.lanes] == [("phases", 0), ("operations", 0), ("operations", 1)]
    shown = lanes.window(-1, 1, most=10)
    assert [[lanes.names[name] for name in bars.names] for bars in shown] == [
        ["forward-compute"],
        ["outer", "outer"],
        ["inner", "inner"],
    ]
    empty = read_trace(file_of({"traceEvents": []}))
    store(empty, tmp_path / "empty")
    assert StoredLanes(tmp_path / "empty").window(0, 1, most=10) == []
