"""Bandwidths of collective operations: events, nccl-tests' table, and invalid configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parlab.formats.tools import nccl_tests
from runners.config import check
from runners.engines.allreduce import OPERATIONS
from tests.engines.started import Output, run_engine

pytestmark = pytest.mark.slow

RANKS = 3
DATA: dict[str, Any] = {
    "parallel": {"engine": "allreduce", "data_parallel_size": RANKS},
    "collectives": {"operation": "all", "min_bytes": 1024, "max_bytes": 65536, "size_factor": 8},
    "train": {"iterations": 4, "warmup_steps": 1},
    "cluster": {"device": "cpu"},
}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Output:
    return run_engine(DATA, tmp_path_factory.mktemp("allreduce"))


def test_every_size_of_every_operation_has_a_step_with_nccl_tests_bandwidths(output: Output) -> None:
    assert output.code == 0, output.text
    factors = {"all-reduce": 4 / 3, "all-gather": 2 / 3, "reduce-scatter": 2 / 3, "point-to-point": 1.0}
    for name, factor in factors.items():
        steps = [event for event in output.events("step", rank=0) if f"busbw/{name}" in event]
        whole = 12 if OPERATIONS[name].is_split else 4
        assert [step["step"] for step in steps] == [size // whole * whole for size in (1024, 8192, 65536)]
        for step in steps:
            assert step[f"algbw/{name}"] == pytest.approx(step["step"] / step[f"time_s/{name}"])
            assert step[f"busbw/{name}"] == pytest.approx(factor * step[f"algbw/{name}"])
            assert step[f"first_time_s/{name}"] > 0
            assert step[f"wrong/{name}"] == 0
    assert len(output.events("end")) == RANKS


def test_the_reader_of_nccl_tests_reads_the_values_of_the_events_from_the_tables(output: Output) -> None:
    records = list(nccl_tests.read(output.text.splitlines()))
    tables = [record.data for record in records if record.kind == "table"]
    assert [table.title for table in tables] == [operation.test for operation in OPERATIONS.values()]
    for name, table in zip(OPERATIONS, tables, strict=True):
        steps = [event for event in output.events("step", rank=0) if f"busbw/{name}" in event]
        rows = [dict(zip(table.columns, (cell.value for cell in row), strict=True)) for row in table.rows]
        assert [row["size (B)"] for row in rows] == [step["step"] for step in steps]
        assert [row["time (us)"] for row in rows] == pytest.approx([s[f"time_s/{name}"] * 1e6 for s in steps], rel=1e-2)
        busbw = [step[f"busbw/{name}"] / 1e9 for step in steps]
        assert [row["busbw (GB/s)"] for row in rows] == pytest.approx(busbw, abs=1e-4)


def test_half_precision_numbers_are_exchanged_correctly(tmp_path: Path) -> None:
    data = {
        **DATA,
        "train": {**DATA["train"], "precision": "bf16"},
        "parallel": DATA["parallel"] | {"data_parallel_size": 2},
    }
    output = run_engine(data, tmp_path)
    assert output.code == 0, output.text
    wrong = [value for step in output.events("step") for name, value in step.items() if name.startswith("wrong/")]
    assert wrong == [0] * 12
    assert " bfloat16 " in output.text


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"parallel": {"engine": "allreduce"}}, "parallel.data_parallel_size"),
        ({"collectives": {"min_bytes": 4096, "max_bytes": 1024}}, "collectives.max_bytes"),
        ({"collectives": {"min_bytes": 8}}, "collectives.min_bytes"),
        ({"parallel": DATA["parallel"] | {"tensor_parallel_size": 2}}, "parallel.tensor_parallel_size"),
    ],
)
def test_an_invalid_configuration_is_refused_with_a_remedy(changes: dict[str, Any], field: str) -> None:
    config, problems = check({**DATA, **changes})
    assert config is None
    assert [problem.field for problem in problems] == [field]
    assert "use " in problems[0].message


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    output = run_engine(DATA, tmp_path, processes=0)
    assert output.code == 2
    assert (
        "parallel: the layout has 3 ranks, but 1 processes were started; use torchrun --nproc-per-node 3" in output.text
    )
