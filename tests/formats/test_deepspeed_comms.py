"""DeepSpeed's communication logger, as its own code prints it: operations, and the summary with stragglers."""

from __future__ import annotations

from parlab.formats import records
from parlab.formats.grammar.records import Record
from parlab.formats.schema import Table

LOG = "[2026-02-01 10:00:01,101] [INFO] [logging.py:107:log_dist] [Rank 0]"
GATHER = "all_gather_into_tensor | [Caller Func: allgather_fn]"
CALLS = [
    f"{LOG} comm op: all_reduce | time (ms): 12.30 | msg size: 647.41 MB | algbw (Gbps): 883.07 | busbw (Gbps): 772.69",
    f"{LOG} comm op: {GATHER} | time (ms): 1.50 | msg size: 24.41 MB | algbw (Gbps): 1092.27 | busbw (Gbps): 955.73",
]


def row(*cells: str) -> str:
    """Return a row as the logger pads it."""
    return "".join(f"{cell:<20}" for cell in cells)


SUMMARY = [
    row("Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)",
        "busbw_avg (Gbps)"),
    "all_reduce",
    row("", "647.41 MB", "3", "37.20", "12.40", "875.99", "766.49"),
    GATHER,
    row("", "24.41 MB", "2", "3.20", "1.60", "1028.02", "899.51"),
    "broadcast",
    row("", "136.0 B", "3", "9.72", "3.24", "0.01", "0.01"),
    "_______________________________",
    "Breakdown with straggler effect",
    "-------------------------------",
    row("Comm. Op", "Message Size", "Count", "Total comm lat(ms)", "Total straggler(ms)", "Avg comm lat(ms)",
        "Avg straggler(ms)"),
    "all_reduce",
    row("", "647.41 MB", "3", "36.10", "1.10", "12.03", "0.37"),
    f"{LOG} step=10, skipped=0, lr=[0.0001], mom=[(0.9, 0.999)]",
]  # fmt: skip


def read(lines: list[str]) -> list[Record]:
    return list(records([f"{line}\n" for line in lines]))


def tables(lines: list[str]) -> list[Table]:
    return [record.data for record in read(lines) if record.kind == "table"]


def test_each_operation_has_its_time_size_and_bandwidth() -> None:
    reduced, gathered = (record for record in read(CALLS) if record.kind == "metrics")
    assert reduced.values["all_reduce_s"] == 0.0123
    assert reduced.values["all_reduce_bytes"] == 647.41 * 2**20
    assert reduced.values["all_reduce_busbw_bytes_per_s"] == 772.69e9 / 8
    assert set(gathered.values) == {f"all_gather_into_tensor_{name}" for name in (
        "s", "bytes", "algbw_bytes_per_s", "busbw_bytes_per_s"
    )}  # fmt: skip
    assert reduced.rank == 0


def test_the_summary_is_a_table_and_that_of_stragglers_another() -> None:
    summary, stragglers = tables(CALLS + SUMMARY)
    assert [[cell.text for cell in cells] for cells in summary.rows] == [
        ["all_reduce", "678858588", "3", "37.20", "12.40", "875.99", "766.49"],
        [GATHER, "25595740", "2", "3.20", "1.60", "1028.02", "899.51"],
        ["broadcast", "136", "3", "9.72", "3.24", "0.01", "0.01"],
    ]
    assert summary.columns[3:] == ["Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)", "busbw_avg (Gbps)"]
    assert stragglers.columns[3:] == [
        "Total comm lat(ms)", "Total straggler(ms)", "Avg comm lat(ms)", "Avg straggler(ms)"
    ]  # fmt: skip
    (best,) = (record for record in read(CALLS + SUMMARY) if record.kind == "figure")
    assert best.values == {"max_busbw_bytes_per_s": 899.51e9 / 8}
    # The lines around the tables are read as before, and none is passed over in silence.
    assert [record.iteration for record in read(CALLS + SUMMARY) if record.kind == "step"] == [10]
    assert not [record for record in read(CALLS + SUMMARY) if record.kind == "unread"]


def test_damaged_rows_end_the_table_and_what_came_before_is_kept() -> None:
    damaged = [*SUMMARY[:3], row("", "647.41 MB", "3", "37.2x", "12.40"), "", *SUMMARY[3:5]]
    (table,) = tables(CALLS + damaged)
    assert [cells[0].text for cells in table.rows] == ["all_reduce"]
