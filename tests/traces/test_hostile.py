"""Damaged and hostile files: what is wrong is said, everything else counts, and nothing takes long or runs."""

from __future__ import annotations

import io
import json
import pickle
from typing import Any

import pytest

from parlab.traces import chunks
from parlab.traces.imported import read_any
from parlab.traces.reading import RankTrace
from parlab.traces.stored import Analysis, analyse, analysis_of, contradictions

from .generator import Plan, document, file_of

STEPS = 40
KERNELS = STEPS * 12


def content() -> bytes:
    return file_of(document(Plan(steps=STEPS), 1)).getvalue()


def analysed(data: bytes) -> Analysis:
    return analyse(io.BytesIO(data))


def calls(analysis: Analysis) -> int:
    return sum(row.calls for row in analysis.kernels)


def in_small_pieces(patch: pytest.MonkeyPatch) -> None:
    """Read a small file in as many pieces as a large one."""
    patch.setattr(chunks, "CHUNK_BYTES", 4 << 10)
    patch.setattr(chunks, "DAMAGED_BYTES", 16 << 10)


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize("wrong", [b"NaN", b"-Infinity", b"1e999", b'"50 us', b"\xff\xfe", b"}"])
def test_a_damaged_event_costs_only_its_neighbours(
    monkeypatch: pytest.MonkeyPatch, wrong: bytes, is_small: bool
) -> None:
    if is_small:
        in_small_pieces(monkeypatch)
    data = content()
    for at in (len(data) // 3, 2 * len(data) // 3):
        length = data.index(b'"dur": ', at) + len(b'"dur": ')
        data = data[:length] + wrong + data[data.index(b",", length) :]
    analysis = analysed(data)
    assert KERNELS - 20 <= calls(analysis) <= KERNELS
    assert any("are not valid JSON" in problem for problem in analysis.problems)
    assert (analysis.rank, analysis.world_size) == (1, 2)


@pytest.mark.parametrize("is_small", [True, False])
def test_two_traces_in_a_file_are_said(monkeypatch: pytest.MonkeyPatch, is_small: bool) -> None:
    if is_small:
        in_small_pieces(monkeypatch)
    analysis = analysed(content() + b"\n" + content())
    assert 2 * KERNELS - 20 <= calls(analysis) < 2 * KERNELS
    assert any("are not valid JSON" in problem for problem in analysis.problems)
    assert any("more than once" in problem for problem in analysis.problems)


@pytest.mark.parametrize("indent", [2, None])
def test_a_file_that_ends_within_a_text_keeps_what_is_before(indent: int | None) -> None:
    written = document(Plan(steps=STEPS), 1)
    for event in written["traceEvents"]:
        event["name"] += ' "quoted" {,} ]'
    data = file_of(written, indent).getvalue()
    cut = data.index(b"quoted", len(data) // 2) + 3
    analysis = analysed(data[:cut])
    assert "the file ends within an event; the events before it are used" in analysis.problems
    assert 0.45 * KERNELS < calls(analysis) < 0.55 * KERNELS


def test_a_mark_of_the_encoding_hides_nothing() -> None:
    assert analysed(b"\xef\xbb\xbf" + content()).rank == 1
    plain = json.dumps(document(Plan())["traceEvents"]).encode()
    assert calls(analysed(b"\xef\xbb\xbf" + plain)) == 4 * 12


@pytest.mark.parametrize("times", [{"dur": -5}, {"ts": 1e300}, {"ts": "12"}, {"dur": None}, {"ts": True, "dur": "x"}])
def test_times_that_no_clock_has_are_left_out(times: dict[str, Any]) -> None:
    written = document(Plan())
    kernel = next(event for event in written["traceEvents"] if event["cat"] == "kernel")
    whole = analyse(file_of(document(Plan())))
    written["traceEvents"].append(kernel | times)
    analysis = analyse(file_of(written))
    assert any("1 of 101 events have no valid name, time or duration" in problem for problem in analysis.problems)
    assert analysis.whole == whole.whole


def test_events_of_another_clock_are_said() -> None:
    written = document(Plan())
    kernel = next(event for event in written["traceEvents"] if event["cat"] == "kernel")
    written["traceEvents"].append(kernel | {"ts": kernel["ts"] + 9 * 3600e6})
    (problem,) = analyse(file_of(written)).problems
    assert problem == "nothing runs for 9 h between two events: some have wrong times or are of another trace"


def test_numbers_that_no_training_has_are_harmless() -> None:
    written = document(Plan())
    written["distributedInfo"] = {"rank": -3, "world_size": -5}
    for event in written["traceEvents"]:
        event["args"] |= {"Out msg nelems": 1e308, "Group size": 1e30}
    written["traceEvents"].append({**written["traceEvents"][0], "name": f"ProfilerStep#{10**30}"})
    analysis = analyse(file_of(written))
    assert (analysis.rank, analysis.world_size, len(analysis.steps)) == (None, None, 4)
    json.dumps(analysis.model_dump(mode="json"), allow_nan=False)
    # All ranks of such a run have no trace; they are not counted one by one.
    many = analysis.model_copy(update={"world_size": 2_000_000_000})
    (problem,) = contradictions({1: many}, None, None)
    assert problem.startswith("1999999999 of 2000000000 ranks have no trace: 0, 2, 3, 4, 5, 6, 7, 8, ...")


def entry(number: int = 0, **fields: Any) -> dict[str, Any]:
    return {"collective_seq_id": number, "profiling_name": "nccl:all_reduce", "process_group": ["0", ""],
            "state": "completed", "time_created_ns": 10**18, "input_sizes": [[4]], "input_dtypes": ["Float"],
            **fields}  # fmt: skip


def read_entries(*entries: dict[str, Any]) -> RankTrace:
    trace = read_any(io.BytesIO(pickle.dumps({"pg_config": {}, "entries": [entry(), *entries]})))
    json.dumps(analysis_of(trace).model_dump(mode="json"), allow_nan=False)
    return trace


@pytest.mark.parametrize(
    ("fields", "is_left_out"),
    [
        ({"time_created_ns": 10**400}, True),
        ({"collective_seq_id": 10**400}, True),
        ({"duration_ms": float("inf")}, False),
        ({"duration_ms": float("nan")}, False),
        ({"duration_ms": 1e300}, False),
        ({"input_sizes": [[10**400]]}, False),
        ({"input_sizes": [[10**18] * 40]}, False),
        ({"process_group": [10**5000]}, False),
    ],
)
def test_numbers_in_dumps_that_no_clock_has_are_left_out(fields: dict[str, Any], is_left_out: bool) -> None:
    trace = read_entries(entry(1, **fields))
    assert len(trace.messages) == 2 - is_left_out
    assert bool(trace.problems) == is_left_out


def test_a_name_of_nested_lists_is_not_written_out() -> None:
    nested: list[Any] = []
    for _ in range(60):  # 2^60 lists as text
        nested = [nested, nested]
    texts = read_entries(entry(1, profiling_name=nested, process_group=[nested], state=nested, input_dtypes=[nested]))
    assert texts.problems == ["not completed: collective 1 of group 0 (); compare the last ones of all ranks"]
