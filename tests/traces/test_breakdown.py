"""Traces with known answers, and traces that are damaged."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.traces import chunks
from parlab.traces.breakdown import OwnTimes, breakdown
from parlab.traces.chunks import BadTrace
from parlab.traces.collectives import Meeting, RankMessages, bus_factor
from parlab.traces.collectives import meeting as meeting_of
from parlab.traces.events import EVENT
from parlab.traces.intervals import gaps, union
from parlab.traces.kinds import class_of
from parlab.traces.reading import RankTrace, read_trace
from parlab.traces.stragglers import by_node, by_time

from .generator import Plan, document, file_of

US = 1e-6


def trace_of(plan: Plan | None = None, rank: int = 0, **more: Any) -> RankTrace:
    return read_trace(file_of(document(plan or Plan(), rank, **more)))


def meeting(traces: dict[int, RankTrace]) -> Meeting:
    return meeting_of({rank: RankMessages(trace.origin_s, trace.messages) for rank, trace in traces.items()})


@pytest.mark.parametrize("indent", [2, None])
@pytest.mark.parametrize("chunk", [1 << 10, 4 << 20])
def test_the_parts_of_a_step_are_those_of_the_generator(
    monkeypatch: pytest.MonkeyPatch, indent: int | None, chunk: int
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk)
    plan = Plan()
    trace = read_trace(file_of(document(plan), indent))
    result = breakdown(trace)
    assert (trace.rank, trace.world_size, trace.host, trace.device) == (0, 2, "node-0", "NVIDIA H100 80GB HBM3")
    assert [step.step for step in result.steps] == [0, 1, 2, 3]
    for step in result.steps[:-1]:  # the last one ends with its last kernel
        assert step.total_s == pytest.approx(plan.step_us * US)
        assert step.compute_s == pytest.approx(1000 * US)
        assert step.communication_s == pytest.approx(500 * US)
        assert step.exposed_s == pytest.approx(300 * US)
        assert step.copy_s == step.exposed_copy_s == pytest.approx(50 * US)
        assert step.idle_host_s == pytest.approx(80 * US)
        assert step.idle_kernel_s == pytest.approx(20 * US)
        parts = step.compute_s + step.exposed_s + step.exposed_copy_s + step.idle_host_s + step.idle_kernel_s
        assert parts == pytest.approx(step.total_s)
    counts = {row.name: (row.calls, row.total_s) for row in result.kernels}
    assert counts["ncclDevKernel_AllReduce_Sum_bf16_RING_LL"] == pytest.approx((4, 4 * 500 * US))
    assert counts["vectorized_elementwise_kernel<4, add>"] == pytest.approx((20, 20 * 100 * US))
    assert dict(result.classes)["matrix product"] == pytest.approx(4 * 500 * US)
    assert not trace.problems
    assert not result.problems


def test_the_late_rank_and_the_waits_of_the_other_are_named() -> None:
    # Rank 1 launches its all-reduce 400 us late; rank 0 waits for it in the collective.
    on_time = Plan(hidden_us=0.0, exposed_us=300.0, waits_us=400.0)
    late = Plan(hidden_us=0.0, exposed_us=300.0, late_us=400.0)
    traces = {0: trace_of(on_time, 0), 1: trace_of(late, 1, clock_us=5_000_000.0)}
    met = meeting(traces)
    assert met.matched == 4
    collective = met.collectives[0]
    assert collective.late_rank == 1
    assert collective.skew_s == pytest.approx(400 * US)
    assert collective.transfer_s == pytest.approx(300 * US)
    assert collective.bytes == 2 * 2**20
    assert collective.bus_bytes_s == pytest.approx(2 * 2**20 / (300 * US))
    assert met.ranks[0].waits_s == pytest.approx(4 * 400 * US)
    assert (met.ranks[1].late, met.ranks[1].waits_s) == pytest.approx((4, 0.0), abs=1e-9)
    assert met.path_share == {1: pytest.approx(1.0)}
    assert met.offsets_s[1] == pytest.approx(5.0)
    assert "clocks of the ranks differ, that of rank 1 by 5 s" in met.problems[0]


def test_stragglers_are_named_by_node_and_over_time() -> None:
    late, seconds = [0, 1, 1, 2, 2, 2], np.array([0.1, 0.1, 0.2, 0.3, 0.1, 0.1])
    periods = by_time(late, np.array([0.0, 1.0, 2.0, 10.0, 11.0, 12.0]), seconds)
    assert [(row.rank, row.late, row.late_by_s) for row in periods] == [
        (0, 1, 0.1), (1, 1, 0.1), (1, 1, 0.2), (2, 1, 0.3), (2, 2, pytest.approx(0.2)),
    ]  # fmt: skip
    assert (periods[0].begin_s, periods[-1].end_s, periods[-1].collectives) == (0.0, 12.0, 2)
    lateness = {0: (1, 0.1), 1: (2, 0.3), 2: (2, 0.4), 3: (1, 0.2)}
    rows = by_node(lateness, {0: "a", 1: "a", 2: "b", 3: "b"})
    assert [(row.node, row.ranks, row.late) for row in rows] == [("b", 2, 3), ("a", 2, 3)]
    assert [row.late_by_s for row in rows] == pytest.approx([0.6, 0.4])
    assert rows[0].share == pytest.approx(0.6)
    assert by_node(lateness, dict.fromkeys(range(4), "a")) == []
    assert by_time([], np.empty(0), np.empty(0)) == []


def test_ranks_without_a_common_collective_are_said() -> None:
    assert meeting({0: trace_of()}).matched == 0
    other = trace_of(rank=1)
    other.messages[:] = [message._replace(group="9") for message in other.messages]
    assert "share no collective" in meeting({0: trace_of(), 1: other}).problems[0]
    missing = trace_of(rank=1)
    del missing.messages[2]
    met = meeting({0: trace_of(), 1: missing})
    assert met.matched == 3
    assert "1 collectives are not in the traces of all ranks" in met.problems[0]


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("indent", [2, None])
def test_a_truncated_trace_keeps_its_whole_events(share: float, indent: int | None) -> None:
    whole = file_of(document(Plan(steps=20)), indent).getvalue()
    trace = read_trace(io.BytesIO(whole[: int(share * len(whole))]))
    assert any("ends" in problem for problem in trace.problems)
    assert 0.8 * share * 260 < len(trace.timeline) < 260
    assert breakdown(trace).whole.compute_s > 0


def test_a_gzipped_trace_and_a_damaged_one() -> None:
    packed = gzip.compress(file_of(document(Plan(steps=200))).getvalue())
    assert len(read_trace(io.BytesIO(packed)).timeline) == 200 * 12
    trace = read_trace(io.BytesIO(packed[: len(packed) * 2 // 3]))
    assert "is truncated" in trace.problems[0]
    assert len(trace.timeline) > 200


@pytest.mark.parametrize("content", [b"", b"{}", b"hello", b'{"traceEvents": 3}', gzip.compress(b"x", mtime=0)])
def test_a_file_that_is_no_trace_is_refused(content: bytes) -> None:
    with pytest.raises(BadTrace, match="no traceEvents"):
        read_trace(io.BytesIO(content))


def test_events_without_time_and_kernels_on_top_of_each_other_are_said() -> None:
    written = document(Plan())
    kernel = next(event for event in written["traceEvents"] if event["cat"] == "kernel")
    written["traceEvents"] += [{**kernel, "ts": kernel["ts"] + 50}, {"ph": "X", "cat": "kernel", "name": "x"}, 3, {}]
    trace = read_trace(file_of(written))
    assert "2 of" in trace.problems[0]
    result = breakdown(trace)
    assert "2 kernels overlap others on their stream" in result.problems[0]
    assert result.steps[0].compute_s == pytest.approx(1000 * US)


def test_a_plain_array_and_a_trace_without_steps() -> None:
    events = [event for event in document(Plan())["traceEvents"] if "ProfilerStep" not in event["name"]]
    trace = read_trace(io.BytesIO(json.dumps(events).encode()))
    result = breakdown(trace)
    assert trace.rank is None
    assert result.steps == ()
    assert "has no steps" in result.problems[0]
    assert result.whole.compute_s == pytest.approx(4 * 1000 * US)


def test_a_trace_of_the_processor_counts_nested_operations_once() -> None:
    def operation(name: str, at: float, length: float, cat: str = "cpu_op", thread: int = 1) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": at, "dur": length, "args": {}}

    written = {
        "traceEvents": [
            operation("ProfilerStep#3", 0, 100, "user_annotation"),
            operation("aten::linear", 10, 40),
            operation("aten::addmm", 15, 30),
            operation("c10d::allreduce_", 55, 2),
            operation("gloo:all_reduce", 45, 35, "user_annotation", 2),
            {"ph": "i", "name": "[memory]", "ts": 20, "args": {"Total Allocated": 64, "Total Reserved": 0,
             "Device Type": 0, "Device Id": -1}},
        ]
    }  # fmt: skip
    trace = read_trace(file_of(written))
    step = breakdown(trace).steps[0]
    assert (step.compute_s, step.communication_s, step.exposed_s) == pytest.approx((40 * US, 35 * US, 30 * US))
    assert (step.idle_host_s, step.idle_kernel_s) == pytest.approx((30 * US, 0.0), abs=1e-12)
    assert {row.name: row.total_s for row in breakdown(trace).kernels}["aten::linear"] == pytest.approx(10 * US)
    assert [point[1] for point in trace.memory] == [64.0]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=20), st.integers(0, 60), st.integers(0, 60))
def test_covered_time_in_a_window_is_that_of_a_count(pairs: list[tuple[int, int]], first: int, second: int) -> None:
    begin, end = min(first, second), max(first, second)
    starts = np.array([start for start, _ in pairs], float)
    ends = np.array([start + length for start, length in pairs], float)
    covered = {second for start, length in pairs for second in range(start, start + length)}
    merged = union(starts, ends)
    expected = len([second for second in covered if begin <= second < end])
    assert merged.inside(np.array([begin]), np.array([end]))[0] == pytest.approx(expected)
    assert gaps(merged, begin, end).total == pytest.approx(end - begin - expected)


def test_own_times_leave_out_what_is_nested() -> None:
    # (start, end, lane)
    events = [(0.0, 10.0, 1), (1.0, 5.0, 1), (2.0, 3.0, 1), (6.0, 7.0, 1), (0.0, 4.0, 2)]
    rows = np.zeros(len(events), EVENT)
    rows["start"], rows["end"], rows["lane"] = zip(*events, strict=True)
    rows["name"] = range(len(events))
    expected = {0: 5.0, 1: 3.0, 2: 1.0, 3: 1.0, 4: 4.0}
    for block in (1, 2, 5):
        own = OwnTimes()
        times: dict[int, float] = {}
        ordered = rows[np.argsort(rows["start"], kind="stable")]
        pieces = [own.add(ordered[first : first + block]) for first in range(0, len(rows), block)]
        for names, seconds in [*pieces, own.close()]:
            times |= dict(zip(names.tolist(), seconds.tolist(), strict=True))
        assert times == expected


def test_names_of_kernels_have_classes() -> None:
    assert class_of("ncclDevKernel_AllGather_RING_LL") == "communication"
    assert class_of("void flash_fwd_kernel<bf16>") == "attention"
    assert class_of("nvjet_hsh_128x256") == "matrix product"
    assert class_of("strange") == "other"
    assert bus_factor("_allgather_base", 8) == pytest.approx(7 / 8)
    assert bus_factor("allreduce", 4) == pytest.approx(1.5)
    assert bus_factor("broadcast", 4) == 1.0
