from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2000)]
PATIENCE_S = 1800
"""About thirty processes start one after the other, most of them with torch: a minute on an idle machine."""

ROOT = Path(__file__).resolve().parents[2]
UNITS = {
    "ingest_points_per_s": "points/s",
    "series_bytes_per_point": "bytes",
    "read_series_1000_ms": "ms",
    "read_20_runs_ms": "ms",
    "experiments_page_p95_ms": "ms",
    "first_figure_ms": "ms",
    "ingest_100k_iterations_s": "s",
}


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
    process = bench("--quick", "--output", str(output), data_dir=data_dir)
    assert process.returncode == 0, process.stderr
    results = json.loads(output.read_text())
    for name, unit in UNITS.items():
        assert set(results[name]) == {"value", "unit", "against", "ratio", "repeats", "took_s", "measured_at"}
        assert results[name]["unit"] == unit
        assert results[name]["value"] > 0
        assert results[name]["ratio"] > 0
        assert f"\n{name} " in process.stdout
    compared = [name for name in results if "_vs_" in name or name.endswith("_ratio")]
    assert {"pipeline_vs_torch", "pipeline_vs_deepspeed", "megatron_vs_ddp", "zero_vs_deepspeed"} <= {*compared}
    for name in compared:
        assert results[name]["value"] == results[name]["ratio"]
        assert results[name]["unit"] == "x"
    # Sizes, unlike times, do not depend on the load of the machine.
    assert 1 < results["series_bytes_per_point"]["value"] < 6
    assert results["series_bytes_per_point"]["ratio"] > 5
    assert not data_dir.exists()


def test_only_the_named_benchmarks_run_and_other_figures_are_kept(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    output.write_text('{"signature_us": {"value": 900}}')
    names = "series_bytes_per_point,read_series_1000_ms"
    process = bench(names, "--quick", "--output", str(output), data_dir=tmp_path / "data")
    assert process.returncode == 0, process.stderr
    results = json.loads(output.read_text())
    assert ",".join(results) == f"signature_us,{names}"
    assert results["signature_us"] == {"value": 900}


def test_an_unknown_benchmark_is_refused_with_the_list_of_benchmarks(tmp_path: Path) -> None:
    process = bench("speed", "--quick", data_dir=tmp_path / "data")
    assert process.returncode == 2
    assert "unknown benchmark speed; use ingest_points_per_s, " in process.stderr


def test_simulated_daemons_send_heartbeats_start_ship_and_end_on_postgres(tmp_path: Path) -> None:
    output, data_dir = tmp_path / "bench.json", tmp_path / "data"
    arguments = ["thousand_nodes_cores", "--quick", "--output", str(output)]
    # It fails unless all runs finish and every point is stored.
    process = bench(*arguments, data_dir=data_dir, PARLAB_BENCH_DATABASE="postgres", PARLAB_BENCH_WORKERS="2")
    assert process.returncode == 0, process.stderr
    assert json.loads(output.read_text())["thousand_nodes_cores"]["unit"] == "cores"
