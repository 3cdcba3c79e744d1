"""Traces that do not belong together, and damaged files: said, and the rest is kept."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

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


def test_a_trace_is_read_as_a_stream(tmp_path: Path) -> None:
    """The events become columns of some bytes each: the text of the file is never in memory as a whole."""
    path = tmp_path / "trace.json"
    with path.open("wb") as file:
        file.writelines(pieces(300))
    tracemalloc.start()
    try:
        with path.open("rb") as file:
            trace = read_trace(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(trace.starts) == 300 * 4 * 12
    assert peak < path.stat().st_size / 2
