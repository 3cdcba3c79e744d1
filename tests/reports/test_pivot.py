"""Pivot: records by two axes, and what a cell says where there is no number."""

from __future__ import annotations

from typing import Any

import pytest

from parlab.charts.format import DASH
from parlab.reports.pivot import Table, pivot, with_best


def record(
    schedule: str, micro: int, seconds: float | None = None, state: str = "finished", **more: Any
) -> dict[str, Any]:
    fields: dict[str, Any] = {"parallel.schedule": schedule, "train.micro_batch_size": micro, "state": state, **more}
    return fields | ({} if seconds is None else {"step_time_s": seconds})


RECORDS = [
    record("gpipe", 4, 6.94),
    record("gpipe", 1, 6.64),
    record("1f1b", 1, 11.35),
    record("1f1b", 4, state="oom", reason="CUDA out of memory"),
    record("1f1b", 2),
    record("gpipe", 2, state="lost"),
]


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.cells]


def test_values_are_in_their_cells_and_empty_cells_give_the_reason() -> None:
    table = pivot(RECORDS, ["schedule"], ["micro_batch_size"], "step_time_s")

    assert table.row_texts == [["gpipe"], ["1f1b"]]
    assert table.column_texts == ["1", "2", "4"]
    assert table.column_title == "Micro batch size"
    assert texts(table) == [["6.64", "lost", "6.94"], ["11.35", DASH, "OOM"]]
    assert [[cell.state for cell in row] for row in table.cells] == [
        ["value", "lost", "value"],
        ["value", "missing", "oom"],
    ]
    assert table.cells[1][2].note == "CUDA out of memory"
    assert table.cells[0][0].records == (1,)
    assert table.unit.name == "s"


def test_a_table_states_whether_its_runs_were_emulated() -> None:
    emulated = [entry | {"marks": ("emulated",)} for entry in RECORDS]
    assert pivot(RECORDS, ["schedule"], ["micro_batch_size"], "step_time_s").emulation == ""
    assert pivot(emulated, ["schedule"], ["micro_batch_size"], "step_time_s").emulation == "emulated"
    both = [*RECORDS[:1], *emulated[1:]]
    assert pivot(both, ["schedule"], ["micro_batch_size"], "step_time_s").emulation == "partly emulated"


def test_cells_without_records_are_absent_and_records_without_an_axis_are_omitted() -> None:
    table = pivot(
        [record("gpipe", 1, 1.0), record("1f1b", 2, 2.0), {"state": "oom"}],
        ["schedule"],
        ["micro_batch_size"],
        "step_time_s",
    )

    assert table.cells[0][1].state == "absent"
    assert table.left_out == (2,)


def test_several_records_of_a_cell_are_aggregated_with_a_note() -> None:
    several = [record("gpipe", 1, seconds) for seconds in (1.0, 2.0, 9.0)] + [record("gpipe", 1, state="failed")]

    (cell,) = pivot(several, ["schedule"], [], "step_time_s").cells[0]
    (least,) = pivot(several, ["schedule"], [], "step_time_s", "min").cells[0]

    assert (cell.state, cell.value, cell.low, cell.high) == ("several", 2.0, 1.0, 9.0)
    assert cell.note == "median of 3; without 1 failed"
    assert cell.records == (0, 1, 2, 3)
    assert least.value == 1.0


def test_all_cells_share_a_unit_and_decimals_can_be_fixed() -> None:
    quick = [record("gpipe", 1, 0.00664), record("gpipe", 2, 0.01121)]

    assert pivot(quick, [], ["micro_batch_size"], "step_time_s").unit.name == "ms"
    assert texts(pivot(quick, [], ["micro_batch_size"], "step_time_s", unit="ms", decimals=3)) == [["6.640", "11.210"]]


def test_the_best_number_of_a_row_is_marked_once() -> None:
    table = with_best(pivot(RECORDS, ["schedule"], ["micro_batch_size"], "step_time_s"))

    assert [[cell.is_best for cell in row] for row in table.cells] == [[True, False, False], [False, False, False]]
    whole = with_best(pivot(RECORDS, ["schedule"], ["micro_batch_size"], "step_time_s"), per="table")
    assert [cell.is_best for row in whole.cells for cell in row].count(True) == 1


def test_findings_follow_the_number_they_refer_to() -> None:
    doubted = [{**record("gpipe", 1, 1.0), "doubts": {"step_time_s": (3,), "samples_per_s": (4,), "run": (5,)}}]

    assert pivot(doubted, ["schedule"], [], "step_time_s").cells[0][0].doubts == (3, 5)


def test_texts_and_counts_are_shown_unchanged() -> None:
    named = [{"space": "z0", "best": "z0_gas1", "number": 12345, "state": "finished"}]

    assert texts(pivot(named, ["space"], [], "best")) == [["z0_gas1"]]
    assert texts(pivot(named, ["space"], [], "number")) == [["12345"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["nonsense"], [], "step_time_s"), "unknown field 'nonsense'; use one of parallel.schedule"),
        ((["schedule"], ["schedule"], "step_time_s"), "duplicate field 'parallel.schedule'"),
        ((["schedule"], [], "step_time_s", "average"), "unknown aggregate 'average'; use one of median"),
        (([], [], "batch"), "unknown field 'batch'"),
    ],
)
def test_invalid_arguments_are_refused_with_the_valid_values(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pivot(RECORDS, *arguments)


def test_an_ambiguous_name_is_refused_with_the_full_names() -> None:
    with pytest.raises(ValueError, match=r"ambiguous field 'size'; use a\.size or b\.size"):
        pivot([{"a.size": 1, "b.size": 2, "state": "finished"}], ["size"], [], "a.size")


def test_an_invalid_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid unit 'GiB' for step_time_s; use one of h, min, ms, s, us"):
        pivot(RECORDS, ["schedule"], [], "step_time_s", unit="GiB")


def test_a_table_without_records_is_refused() -> None:
    with pytest.raises(ValueError, match="there are no runs"):
        pivot([], ["schedule"], [], "step_time_s")
