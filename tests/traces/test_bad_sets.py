"""Traces that do not belong together, and damaged files: said, and the rest is kept."""

from __future__ import annotations

import io
import json
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.traces import events, lanes, spool, stored
from parlab.traces.breakdown import breakdown
from parlab.traces.chunks import BadTrace
from parlab.traces.reading import read_trace
from parlab.traces.stored import Analysis, analyse, contradictions

from .generator import Plan, document, file_of

BASE_NS = document(Plan())["baseTimeNanoseconds"]
"""When the generated traces were recorded (unix time)."""
RECORDED_S = BASE_NS / 1e9


def analysis_of(rank: int, *, world_size: int = 2, first_step: int = 0, base_ns: int = BASE_NS) -> Analysis:
    rows = document(Plan(), rank, world_size=world_size)
    for event in rows["traceEvents"]:
        name = event["name"]
        if name.startswith("ProfilerStep#"):
            event["name"] = f"ProfilerStep#{int(name.partition('#')[2]) + first_step}"
    return analyse(file_of(rows | {"baseTimeNanoseconds": base_ns}))


def said(*analyses: Analysis, ranks: int | None = 2, ran_s: tuple[float, float] | None = None) -> list[str]:
    return list(contradictions(dict(enumerate(analyses)), ranks, ran_s))


def test_ranks_without_a_trace_are_listed() -> None:
    assert said(analysis_of(0), analysis_of(1)) == []
    (missing,) = said(analysis_of(0, world_size=16), analysis_of(1, world_size=16), ranks=16)
    assert missing.startswith("14 of 16 ranks have no trace: 2, 3, 4, 5, 6, 7, 8, 9, ...")
    assert said(analysis_of(0), ranks=None) == ["1 of 2 ranks have no trace: 1; import them to compare all ranks"]


def test_traces_of_other_steps_were_not_recorded_together() -> None:
    assert said(analysis_of(0), analysis_of(1, first_step=2)) == []  # two steps in common
    (apart,) = said(analysis_of(0), analysis_of(1, first_step=100))
    assert apart == "the ranks have no step in common: their traces were not recorded together"


def test_a_trace_of_another_run_shows_by_its_time() -> None:
    ran_s = (RECORDED_S - 60, RECORDED_S + 60)
    inside = analysis_of(0)
    assert said(inside, analysis_of(1), ran_s=ran_s) == []
    (other,) = said(inside, analysis_of(1, base_ns=BASE_NS - 7 * 86_400 * 10**9), ran_s=ran_s)
    assert other == "the trace of rank 1 was not recorded while this run ran: it may be of another run"
    assert said(inside, analysis_of(1, base_ns=0), ran_s=ran_s) == []  # a clock without an epoch proves nothing


@given(st.data())
def test_damage_anywhere_is_refused_or_said_and_never_an_error(data: st.DataObject) -> None:
    content = bytearray(file_of(document(Plan(steps=3), 0)).getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        at, size = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 40))
        content[at : at + size] = data.draw(st.binary(max_size=40))
    try:
        trace = read_trace(io.BytesIO(bytes(content)))
    except BadTrace:
        return
    whole = breakdown(trace).whole
    parts = (whole.compute_s, whole.exposed_s, whole.exposed_copy_s, whole.idle_host_s, whole.idle_kernel_s)
    assert all(part >= -1e-9 for part in parts)


def pieces(count: int) -> Iterator[bytes]:
    """Yield a trace with `count` times the same four steps."""
    rows = json.dumps(document(Plan())["traceEvents"], indent=2).encode().strip()[1:-1]
    yield b'{"traceEvents": ['
    for piece in range(count):
        yield (b"," if piece else b"") + rows
    yield b"]}"


def keep_few(patch: pytest.MonkeyPatch) -> None:
    """Keep few events in memory, so that a small trace is read as a large one."""
    patch.setattr(spool, "RUN_ROWS", 700)
    patch.setattr(spool, "BLOCK_ROWS", 400)


def peak_bytes(path: Path, count: int) -> int:
    """Return the memory that the analysis and the lanes of a trace of so many pieces need."""
    with path.open("wb") as file:
        file.writelines(pieces(count))
    tracemalloc.start()
    try:
        with path.open("rb") as file:
            trace = read_trace(file, path.parent)
        analysis = stored.analysis_of(trace)
        lanes.store(trace, path.with_suffix(".lanes"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(row.calls for row in analysis.kernels) == count * 4 * 12
    return peak


@pytest.mark.slow
def test_memory_does_not_grow_with_the_events(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keep_few(monkeypatch)
    monkeypatch.setattr(events, "MAX_MESSAGES", 150)
    path = tmp_path / "trace.json"
    assert peak_bytes(path, 300) < 1.2 * peak_bytes(path, 100)
    assert {each.name for each in tmp_path.iterdir()} == {"trace.json", "trace.lanes"}


@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_of_the_events_does_not_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int) -> None:
    written = document(Plan(steps=300, kernels=9))
    for event in written["traceEvents"]:
        event["args"].pop("Seq", None)  # collectives are counted in the order of their start
    expected = stored.analyse(file_of(written)).model_dump()
    in_order, mixed = tmp_path / "in-order", tmp_path / "mixed"
    lanes.store(read_trace(file_of(written)), in_order)
    keep_few(monkeypatch)
    random.Random(seed).shuffle(written["traceEvents"])
    trace = read_trace(file_of(written))
    assert_same(stored.analysis_of(trace).model_dump(), expected)
    lanes.store(trace, mixed)
    for path in in_order.glob("[!n]*.npy"):  # numbers of names are those of their first event
        np.testing.assert_allclose(np.load(path), np.load(mixed / path.name), atol=1e-12)


def assert_same(one: Any, other: Any) -> None:
    """Compare nested values; times may differ by their rounding."""
    if isinstance(one, float):
        assert one == pytest.approx(other, abs=1e-9)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for each, its in zip(one, other, strict=True):
            assert_same(each, its)
    else:
        assert one == other


def test_a_wrong_value_leaves_out_its_event_alone() -> None:
    written = document(Plan())
    whole = stored.analyse(file_of(written))
    kernel = next(event for event in written["traceEvents"] if event["cat"] == "kernel")
    operation = {"ph": "X", "cat": "cpu_op", "name": 3, "ts": 0, "dur": 1}
    wrong = [
        {**kernel, "dur": "soon"},
        {**kernel, "ts": None},
        {**kernel, "args": [1]},
        {**kernel, "name": []},
        operation,
    ]
    written["traceEvents"] = [*wrong, *written["traceEvents"], {**kernel, "ts": 1e300, "name": "x"}]
    analysis = stored.analyse(file_of(written))
    assert "6 of 106 events have no valid name, time or duration" in analysis.problems
    assert analysis.kernels == whole.kernels


def test_a_step_contains_its_annotations_on_all_streams() -> None:
    written = document(Plan())
    steps = [event for event in written["traceEvents"] if event["name"].startswith("ProfilerStep#")]
    # The stream of collectives begins later and ends earlier.
    written["traceEvents"] += [{**step, "tid": 24, "ts": step["ts"] + 500, "dur": 100} for step in steps]
    analysis = stored.analyse(file_of(written))
    assert_same(analysis.model_dump()["steps"], stored.analyse(file_of(document(Plan()))).model_dump()["steps"])
    assert not analysis.problems
    written["traceEvents"] += [{**step, "ts": step["ts"] + 10**6} for step in steps]
    (problem,) = stored.analyse(file_of(written)).problems
    assert problem == "steps are recorded more than once (0, 1, 2, 3): the file may contain several traces"
