"""How an imported number came about stands in the tables of reports and in their CSV."""

from __future__ import annotations

from typing import Any

from parlab.reports.facts import run_block
from parlab.reports.shapes import pivot_block, runs_block
from parlab.reports.tables import table_csv

RECORDS: list[dict[str, Any]] = [
    {"run": 1, "gpus": 8, "origin": "imported", "step_time_s": 1.5, "samples_per_s": 64.0, "figure.fps": 2.5,
     "kinds": {"step_time_s": "average"}},
    {"run": 2, "gpus": 16, "origin": "imported", "step_time_s": 0.8, "samples_per_s": 120.0,
     "kinds": {"samples_per_s": "derived"}},
    {"run": 3, "gpus": 16, "origin": "measured", "step_time_s": 0.9, "samples_per_s": 107.0},
]  # fmt: skip


def test_a_list_of_runs_has_a_column_of_kinds_for_each_imported_number() -> None:
    block = runs_block(RECORDS, {"columns": "run, gpus, step_time_s, samples_per_s"}, lambda doubt: 1)
    header, *rows = block.numbers
    assert header[4:] == ["kind of step_time_s", "kind of samples_per_s"]
    assert [row[4:] for row in rows] == [["average", "printed"], ["printed", "derived"], ["", ""]]
    assert block.caption == "Not printed as such: 1 average, 1 derived."
    assert block.rows[0][2].exact.endswith("; average")


def test_a_total_below_a_list_of_runs_has_no_kind() -> None:
    options = {"columns": "run, step_time_s", "total": "all, max"}
    csv = table_csv(runs_block(RECORDS, options, lambda doubt: 1).numbers)
    assert csv.splitlines()[0] == "run,step_time_s,kind of step_time_s"
    assert csv.splitlines()[-1].startswith("all,")


def test_a_pivot_table_names_the_kinds_of_its_cells() -> None:
    block = pivot_block(RECORDS, {"rows": "gpus", "value": "step_time_s", "aggregate": "min"}, lambda doubt: 1)
    assert block.numbers == [
        ["gpus", "step_time_s", "kind of step_time_s"], [8, 1.5, "average"], [16, 0.8, "printed"],
    ]  # fmt: skip
    assert block.caption.endswith(" Not printed as such: 1 average.")


def test_the_numbers_of_an_imported_run_have_their_kinds() -> None:
    numbers = run_block(RECORDS[0], {}, lambda doubt: 1).numbers
    assert numbers[0] == ["Number", "Value", "Kind"]
    assert ["Step time", 1.5, "average"] in numbers
    assert run_block(RECORDS[2], {}, lambda doubt: 1).numbers[0] == ["Number", "Value"]


def test_a_table_of_measured_runs_has_no_column_of_kinds() -> None:
    block = runs_block(RECORDS[2:], {"columns": "run, step_time_s"}, lambda doubt: 1)
    assert block.numbers[0] == ["run", "step_time_s"]
    assert block.caption == ""
