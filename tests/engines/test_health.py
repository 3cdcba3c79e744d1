"""Health sweeps: rates of each rank and of each two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.engines.health import pairs
from tests.engines.started import run_engine


def test_all_pairs_of_few_ranks_and_neighbours_of_many_are_measured() -> None:
    assert pairs(3) == [(0, 1), (0, 2), (1, 2)]
    assert len(pairs(8)) == 28
    assert pairs(9) == [(rank, rank + 1) for rank in range(8)]


@pytest.mark.slow
def test_a_sweep_measures_each_rank_and_each_two_ranks(tmp_path: Path) -> None:
    data = {
        "parallel": {"engine": "health", "data_parallel_size": 3},
        "train": {"iterations": 2, "warmup_steps": 1},
        "cluster": {"device": "cpu"},
    }
    output = run_engine(data, tmp_path)
    assert output.code == 0, output.text
    links = {0: {"0-1", "0-2"}, 1: {"1-2"}, 2: set()}
    for rank, ends in links.items():
        steps = output.events("step", rank=rank)
        assert [step["warmup"] for step in steps] == [True, False]
        rates = {name: value for name, value in steps[1].items() if name.startswith("health/")}
        expected = {"matrix", "memory"} | {f"{name}:{end}" for name in ("link", "all-reduce") for end in ends}
        assert {name.removeprefix("health/") for name in rates} == expected
        assert all(value > 0 for value in rates.values())
