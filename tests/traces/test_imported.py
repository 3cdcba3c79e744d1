"""Exports of Nsight Systems and dumps of NCCL's flight recorder."""

from __future__ import annotations

import io
import json
import os
import pickle
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from parlab.traces.breakdown import breakdown
from parlab.traces.chunks import BadTrace
from parlab.traces.imported import read_any
from parlab.traces.stored import analysis_of, meeting_of

US, MS = 1_000, 1_000_000


def nsight_export(path: Path, *, steps: int = 3, has_runtime: bool = True, extra: str = "") -> io.BytesIO:
    """Write steps of 1 ms: 600 us of a matrix product, 100 us of NCCL, a copy of 50 us, launched 20 us before."""
    database = sqlite3.connect(path)
    database.executescript(
        """
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
        INSERT INTO StringIds VALUES (1, 'nvjet_hsh_128x256'), (2, 'ncclDevKernel_AllReduce_Sum_f16_RING_LL(x)');
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, "end" INTEGER, deviceId INTEGER, streamId INTEGER,
            correlationId INTEGER, demangledName INTEGER, shortName INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, "end" INTEGER, streamId INTEGER, correlationId INTEGER,
            bytes INTEGER, copyKind INTEGER);
        CREATE TABLE NVTX_EVENTS (start INTEGER, "end" INTEGER, text TEXT, textId INTEGER, globalTid INTEGER);
        CREATE TABLE TARGET_INFO_GPU (name TEXT);
        INSERT INTO TARGET_INFO_GPU VALUES ('NVIDIA H100');
        """
        + extra
    )
    if has_runtime:
        database.execute(
            'CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, "end" INTEGER, correlationId INTEGER)'
        )
    for step in range(steps):
        at, number = 5 * MS + step * MS, 10 * step
        kernels = [(at, at + 600 * US, 0, 7, number, 1, 1), (at + 600 * US, at + 700 * US, 0, 9, number + 1, 2, 2)]
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", kernels)
        copy = (at + 700 * US, at + 750 * US, 7, number + 2, 1 << 20, 1)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, ?, ?, ?)", copy)
        database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?)", (at, at + MS, f"iteration {step}", None, 1))
        if has_runtime:
            rows = [(begin - 20 * US, begin, number + place) for place, begin in enumerate((at, at + 600 * US, at))]
            database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?)", rows)
    database.commit()
    database.close()
    return io.BytesIO(path.read_bytes())


def test_an_export_of_nsight_systems_is_broken_down_by_step(tmp_path: Path) -> None:
    trace = read_any(nsight_export(tmp_path / "report.sqlite"))
    assert trace.device == "NVIDIA H100"
    result = breakdown(trace)
    assert [step.step for step in result.steps] == [0, 1, 2]
    step = result.steps[0]
    assert (step.compute_s, step.exposed_s, step.exposed_copy_s) == pytest.approx((600e-6, 100e-6, 50e-6))
    # The next product is launched 20 us before it begins.
    assert (step.idle_host_s, step.idle_kernel_s) == pytest.approx((230e-6, 20e-6))
    assert {row.name for row in result.kernels} == {
        "nvjet_hsh_128x256",
        "ncclDevKernel_AllReduce_Sum_f16_RING_LL(x)",
        "Memcpy 1",
    }
    assert not trace.problems


def test_a_damaged_or_foreign_database_is_said(tmp_path: Path) -> None:
    whole = nsight_export(tmp_path / "whole.sqlite", steps=2000).getvalue()
    with pytest.raises(BadTrace, match="cannot be read"):
        read_any(io.BytesIO(whole[: len(whole) // 2]))
    with pytest.raises(BadTrace, match="cannot be read"):
        read_any(io.BytesIO(whole.replace(b"CREATE TABLE NVTX_EVENTS", b"CREATE \xef\x28\xffLE NVTX_EVENTS", 1)))
    sqlite3.connect(tmp_path / "other.sqlite").executescript("CREATE TABLE notes (text TEXT);")
    with pytest.raises(BadTrace, match="no tables of Nsight Systems"):
        read_any(io.BytesIO((tmp_path / "other.sqlite").read_bytes()))
    odd = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('soon', 3, 0, 7, 1, 1, 1), (9, 3, 0, 7, 1, 1, 1);"
    trace = read_any(nsight_export(tmp_path / "odd.sqlite", has_runtime=False, extra=odd))
    assert "2 rows of CUPTI_ACTIVITY_KIND_KERNEL have no valid time" in trace.problems[0]
    assert "cannot be split by cause" in trace.problems[1]
    assert len(trace.timeline) == 9


def dump(late_ns: int = 0, *, missing: int = 0, **fields: Any) -> dict[str, Any]:
    """Return the dump of a rank with ten all-reduces of 4 MB, 5 ms each; the last `missing` ones are not completed."""
    entries = []
    for number in range(10):
        begin = 1_790_000_000 * 10**9 + number * 100 * MS + late_ns
        is_open = number >= 10 - missing
        entries.append(
            {
                "collective_seq_id": number,
                "is_p2p": False,
                "profiling_name": "nccl:all_reduce",
                "process_group": ["0", "default_pg"],
                "state": "started" if is_open else "completed",
                "time_created_ns": begin,
                "time_discovered_started_ns": begin,
                "time_discovered_completed_ns": None if is_open else begin + 5 * MS - late_ns,
                "input_sizes": [[1024, 1024]],
                "input_dtypes": ["Float"],
                "output_sizes": [[1024, 1024]],
                "output_dtypes": ["Float"],
                **fields,
            }
        )
    return {"version": "2.10", "pg_config": {"0": {"name": "0", "ranks": "[0, 1]"}}, "entries": entries}


def test_dumps_of_the_flight_recorder_name_the_late_rank() -> None:
    on_time = read_any(io.BytesIO(json.dumps(dump()).encode()))
    late = read_any(io.BytesIO(pickle.dumps(dump(late_ns=2 * MS), protocol=2)))
    met = meeting_of({0: analysis_of(on_time), 1: analysis_of(late)})
    assert met.matched == 10
    assert met.ranks[1].late == 10
    collective = met.collectives[0]
    assert collective.bytes == 4 << 20
    assert collective.skew_s == pytest.approx(2e-3, abs=1e-6)
    assert late.world_size == 2


def test_collectives_that_were_not_completed_are_named() -> None:
    trace = read_any(io.BytesIO(json.dumps(dump(missing=7)).encode()))
    assert trace.problems[0].startswith("not completed: all_reduce 3 of group 0 (started), all_reduce 4")
    assert "and 2 more" in trace.problems[0]


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/never",)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pickle.dumps({"entries": [Harmful()]}), "is not plain data"),
        (b"\x80\x04truncated", "cannot be read"),
        (b'{"entries": 3, "pg_config": {}}', "no entries"),
        (b'{"entries": [', "cannot be read"),
    ],
)
def test_dumps_that_cannot_be_read_are_refused(content: bytes, reason: str) -> None:
    with pytest.raises(BadTrace, match=reason):
        read_any(io.BytesIO(content))


def test_entries_without_time_are_left_out() -> None:
    content = dump()
    content["entries"] += [3, {"collective_seq_id": "x"}]
    trace = read_any(io.BytesIO(json.dumps(content).encode()))
    assert "2 of 12 entries" in trace.problems[0]
    assert len(trace.messages) == 10
