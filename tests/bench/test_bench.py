from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import ROOT
from tests.bench.registry import BENCHMARKS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2000)]
PATIENCE_S = 1800
"""About thirty processes start one after the other, most of them with torch: two minutes on an idle machine."""
LEFT_OUT = {"first_figure_ms", "multi_node_start_overhead_s"}
"""They start a demo and three daemons, as tests/browser and tests/fleet do, for a minute of the processor."""


def bench(*arguments: str, data_dir: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.bench", *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "PARLAB_DATA_DIR": str(data_dir),
            "DATABASE_URL": f"sqlite:///{data_dir / 'mine.sqlite3'}",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_each_benchmark_runs_with_plausible_values_and_leaves_user_data_unchanged(tmp_path: Path) -> None:
    output, data_dir = tmp_path / "build" / "bench.json", tmp_path / "data"
    names = [benchmark.name for benchmark in BENCHMARKS if benchmark.name not in LEFT_OUT]
    process = bench(*names, "--quick", "--output", str(output), data_dir=data_dir)
    assert process.returncode == 0, process.stderr
    results = json.loads(output.read_text())
    assert list(results) == names
    for name, row in results.items():
        assert row["value"] > 0 or name == "telemetry_overhead_pct"  # a difference, which noise makes negative
        assert row["ratio"] > 0
        assert f"\n{name} " in process.stdout
    for name in [name for name in results if "_vs_" in name]:
        assert results[name]["value"] == results[name]["ratio"]
    # Sizes, unlike times, do not depend on the load of the machine.
    assert 1 < results["series_bytes_per_point"]["value"] < 6
    assert results["series_bytes_per_point"]["ratio"] > 5
    assert not data_dir.exists()


def test_only_the_named_benchmarks_run_and_other_figures_are_kept(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    output.write_text('{"client_log_us": {"value": 9}}')
    names = "series_bytes_per_point,read_series_1000_ms"
    process = bench(names, "--quick", "--output", str(output), data_dir=tmp_path / "data")
    assert process.returncode == 0, process.stderr
    results = json.loads(output.read_text())
    assert ",".join(results) == f"client_log_us,{names}"
    assert results["client_log_us"] == {"value": 9}


def test_simulated_daemons_send_heartbeats_start_ship_and_end_on_postgres(tmp_path: Path) -> None:
    output, data_dir = tmp_path / "bench.json", tmp_path / "data"
    arguments = ["cluster", "--quick", "--output", str(output)]
    # It fails unless all runs finish and every point is stored.
    process = bench(*arguments, data_dir=data_dir, PARLAB_BENCH_DATABASE="postgres", PARLAB_BENCH_WORKERS="2")
    assert process.returncode == 0, process.stderr
    results = json.loads(output.read_text())
    assert results["thousand_nodes_cores"]["unit"] == "cores"
    assert "32 ranks on 4 nodes" in results["thousand_ranks_page_s"]["against"]
