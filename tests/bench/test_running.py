from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.bench import ROOT
from tests.bench.benchmark import Benchmark, at_least, at_most
from tests.bench.result import Result, Scale, Unavailable
from tests.bench.running import FAILED, INTERRUPTED, run_all
from tests.patience import wait_for

FULL = Scale(is_quick=False)
OUTPUT = "PARLAB_TEST_OUTPUT"


def measured(_: Scale) -> Result:
    return Result(2.0, "6 s otherwise", 5, 3.0)


def failing(_: Scale) -> Result:
    raise RuntimeError("the page answers 500")


def unavailable(_: Scale) -> Result:
    raise Unavailable("no namespaces here")


def interrupted(_: Scale) -> Result:
    raise KeyboardInterrupt


def starting(_: Scale) -> Result:
    """Start a process for a long time, and do not end it when interrupted."""
    process = subprocess.Popen(["sleep", "600"])
    Path(os.environ[OUTPUT]).write_text(str(process.pid))
    process.wait()
    return Result(1.0, "", 1)


def slow(_: Scale) -> Result:
    return Result(8.0, "", 1)


def reading(_: Scale) -> Result:
    """Return the value of the benchmark before it."""
    return Result(json.loads(Path(os.environ[OUTPUT]).read_text())["first_s"]["value"], "", 1)


def rows(**functions: str) -> list[Benchmark]:
    return [
        Benchmark(name, f"test_running:{function}", "s", at_most(4), "work", "", 1)
        for name, function in functions.items()
    ]


def test_a_failing_benchmark_ends_no_other_and_leaves_its_earlier_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "build" / "bench.json"
    output.parent.mkdir()
    earlier = {"failing_s": {"value": 1.5}, "missing_s": {"value": 2.5}, "other_s": {"value": 3.5}}
    output.write_text(json.dumps(earlier))
    names = ["first_s", "failing_s", "missing_s", "last_s"]
    benchmarks = rows(first_s="measured", failing_s="failing", missing_s="unavailable", last_s="measured")
    assert run_all(benchmarks, FULL, output) == FAILED
    results = json.loads(output.read_text())
    assert {name: results[name] for name in earlier} == earlier
    assert set(results) == {*earlier, "first_s", "last_s"}
    assert set(results["last_s"]) == {
        *("value", "unit", "target", "against", "ratio", "repeats", "took_s", "measured_at")
    }
    printed, errors = capsys.readouterr()
    assert [line.split()[0] for line in printed.splitlines()[1:5]] == names
    assert "not measured: no namespaces here" in printed
    assert "4 benchmarks took 0.0 minutes; longest: " in printed
    assert printed.endswith("failed: failing_s\n")
    assert "RuntimeError: the page answers 500" in errors


def test_an_interrupt_keeps_what_was_measured_before_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "bench.json"
    benchmarks = rows(first_s="measured", stopped_s="interrupted", never_s="measured")
    assert run_all(benchmarks, FULL, output) == INTERRUPTED
    assert list(json.loads(output.read_text())) == ["first_s"]
    printed = capsys.readouterr().out
    assert "stopped_s" in printed
    assert "interrupted; the figures above are kept" in printed
    assert "never_s" not in printed
    assert "2 benchmarks took" in printed


def test_each_figure_is_in_the_file_before_the_next_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "bench.json"

    monkeypatch.setenv(OUTPUT, str(output))
    assert run_all(rows(first_s="measured", reading_s="reading"), FULL, output) == 0
    assert json.loads(output.read_text())["reading_s"]["value"] == 2.0


def test_a_damaged_file_of_figures_is_replaced(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    output.write_text('{"first_s": ')
    assert run_all(rows(last_s="measured"), FULL, output) == 0
    assert list(json.loads(output.read_text())) == ["last_s"]


def test_missed_targets_are_named_with_both_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_all(rows(first_s="measured", slow_s="slow"), FULL, tmp_path / "bench.json") == 0
    printed = capsys.readouterr().out
    assert printed.endswith("missed: slow_s (8, ≤ 4)\n")
    assert re.search("^slow_s +8 s +≤ 4 +0.5 x ", printed, re.MULTILINE)


def test_a_target_is_met_by_the_value_itself_and_its_ratio_says_how_much_better_a_value_is() -> None:
    assert at_least(60).is_met(60)
    assert not at_least(60).is_met(59.9)
    assert at_most(2).is_met(2)
    assert not at_most(2).is_met(2.1)
    assert at_least(60).ratio(30) == at_most(2).ratio(4) == 0.5
    assert str(at_least(1_000_000)) == "≥ 1,000,000"
    assert str(at_most(0.98)) == "≤ 0.98"


def test_a_campaign_that_gets_sigterm_ends_what_it_has_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    program = (
        "import contextlib, sys; import tests.bench.__main__ as bench; from tests.bench.test_running import rows;"
        " bench.data_directory = contextlib.nullcontext;"
        " bench.CAMPAIGNS, bench.BENCHMARKS = (), rows(starting_s='starting');"
        f" sys.argv[1:] = ['--output', {str(tmp_path / 'bench.json')!r}]; sys.exit(bench.main())"
    )
    campaign = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, OUTPUT: str(started)}, cwd=ROOT)
    pid = wait_for(lambda: started.exists() and started.read_text(), "it has started a process")
    campaign.terminate()
    assert campaign.wait(30) == INTERRUPTED
    assert not psutil.pid_exists(int(pid))
