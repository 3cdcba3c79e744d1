from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.result import Result, Scale, Unavailable
from tests.bench.running import FAILED, INTERRUPTED, run_all

FULL = Scale(is_quick=False)


def measured(_: Scale) -> Result:
    return Result(2.0, "s", "6 s otherwise", 3.0, 5)


def failing(_: Scale) -> Result:
    raise RuntimeError("the page answers 500")


def unavailable(_: Scale) -> Result:
    raise Unavailable("no namespaces here")


def interrupted(_: Scale) -> Result:
    raise KeyboardInterrupt


BENCHMARKS = {
    "first_s": measured,
    "failing_s": failing,
    "missing_s": unavailable,
    "last_s": measured,
    "stopped_s": interrupted,
    "never_s": measured,
}


def test_a_failing_benchmark_ends_no_other_and_leaves_its_earlier_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "build" / "bench.json"
    output.parent.mkdir()
    earlier = {"failing_s": {"value": 1.5}, "missing_s": {"value": 2.5}, "other_s": {"value": 3.5}}
    output.write_text(json.dumps(earlier))
    names = ["first_s", "failing_s", "missing_s", "last_s"]
    assert run_all(BENCHMARKS, names, FULL, output) == FAILED
    results = json.loads(output.read_text())
    assert {name: results[name] for name in earlier} == earlier
    assert set(results) == {*earlier, "first_s", "last_s"}
    assert set(results["last_s"]) == {"value", "unit", "against", "ratio", "repeats", "took_s", "measured_at"}
    printed, errors = capsys.readouterr()
    assert [line.split()[0] for line in printed.splitlines()[1:5]] == names
    assert "not measured: no namespaces here" in printed
    assert "4 benchmarks took 0.0 minutes; longest: " in printed
    assert printed.endswith("failed: failing_s\n")
    assert "RuntimeError: the page answers 500" in errors


def test_an_interrupt_keeps_what_was_measured_before_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "bench.json"
    names = ["first_s", "stopped_s", "never_s"]
    assert run_all(BENCHMARKS, names, FULL, output) == INTERRUPTED
    assert list(json.loads(output.read_text())) == ["first_s"]
    printed = capsys.readouterr().out
    assert "stopped_s" in printed
    assert "interrupted; the figures above are kept" in printed
    assert "never_s" not in printed
    assert "2 benchmarks took" in printed


def test_each_figure_is_in_the_file_before_the_next_is_measured(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"

    def looks(_: Scale) -> Result:
        assert json.loads(output.read_text())["first_s"]["value"] == 2.0
        return Result(1.0, "s", "", 1.0, 1)

    assert run_all({"first_s": measured, "looks_s": looks}, ["first_s", "looks_s"], FULL, output) == 0
    assert set(json.loads(output.read_text())) == {"first_s", "looks_s"}


def test_a_damaged_file_of_figures_is_replaced(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    output.write_text('{"first_s": ')
    assert run_all(BENCHMARKS, ["last_s"], FULL, output) == 0
    assert list(json.loads(output.read_text())) == ["last_s"]
