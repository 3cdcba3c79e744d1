"""Run benchmarks one after the other: each figure is printed and kept as soon as it is measured."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from tests.bench.benchmark import Benchmark
from tests.bench.result import Result, Scale, Unavailable

FAILED, INTERRUPTED = 1, 130
"""Exit codes."""
_ROW = "{:<32} {:>10} {:<10} {:>12} {:>8} {:>7} {:>7}  {}"


def run_all(benchmarks: Iterable[Benchmark], scale: Scale, output: Path) -> int:
    """Run benchmarks and return the exit code; figures that are not measured now stay in `output`.

    One that fails does not end the others.
    """
    _print(_ROW.format("name", "value", "unit", "target", "ratio", "repeats", "took", "against"))
    results, taken, code = measured_before(output), dict[str, float](), 0
    failed, missed = list[str](), list[str]()
    for benchmark in benchmarks:
        name, began = benchmark.name, time.monotonic()
        try:
            result = benchmark.measure(scale)
        except Unavailable as error:
            _print(f"{name:<32} not measured: {error}")
            continue
        except KeyboardInterrupt:
            _print(f"{name:<32} interrupted; the figures above are kept")
            code = INTERRUPTED
            _end_children()
            break
        except BaseException:  # those of pytest, which helpers of tests raise, are no Exception
            traceback.print_exc()
            _print(f"{name:<32} failed after {time.monotonic() - began:,.0f} s; an earlier figure is kept")
            failed.append(name)
            continue
        finally:
            taken[name] = time.monotonic() - began
        _print(_line(benchmark, result, taken[name]))
        if benchmark.target and not benchmark.target.is_met(result.value):
            missed.append(f"{name} ({number(result.value)}, {benchmark.target})")
        results[name] = _kept(benchmark, result, taken[name])
        _write(output, results)
    _print(_sum(taken))
    if missed and not scale.is_quick:
        _print(f"missed: {', '.join(missed)}")
    if failed:
        _print(f"failed: {', '.join(failed)}")
    return code or (FAILED if failed else 0)


def on_postgres(name: str, scale: Scale) -> Result:
    """Run a benchmark in a process of its own that has a PostgreSQL server; raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory(prefix="parlab-bench-") as directory:
        output = Path(directory) / "result.json"
        command = [sys.executable, "-m", "tests.bench", name, f"--output={output}", *["--quick"] * scale.is_quick]
        environment = {**os.environ, "PARLAB_BENCH_DATABASE": "postgres"}
        _run_to_end(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        result = measured_before(output).get(name)
    if result is None:
        raise RuntimeError(f"{name} has failed on PostgreSQL; its messages are above")
    return Result(**{field: result[field] for field in Result._fields})


def interrupt(*_: object) -> None:
    """Handle SIGTERM as Ctrl-C, once: nothing may interrupt a benchmark while it ends what it has started."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    raise KeyboardInterrupt


def _end_children() -> None:
    """End what a benchmark was about to start when it was interrupted, and does not know yet."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        with suppress(psutil.Error):
            child.kill()
    psutil.wait_procs(children, timeout=5)


def _run_to_end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait()
    except KeyboardInterrupt:
        process.terminate()  # only Ctrl-C reaches it by itself
        process.wait()
        raise


def number(value: float) -> str:
    """Return a value as it is printed."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def measured_before(output: Path) -> dict[str, Any]:
    """Return the figures of earlier calls; none if the file is absent or damaged."""
    try:
        results = json.loads(output.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return results if isinstance(results, dict) else {}


def _kept(benchmark: Benchmark, result: Result, took_s: float) -> dict[str, Any]:
    return {
        "value": result.value,
        "unit": benchmark.unit,
        "target": benchmark.target.value if benchmark.target else None,
        "against": result.against,
        "ratio": benchmark.ratio(result),
        "repeats": result.repeats,
        "took_s": round(took_s, 1),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _line(benchmark: Benchmark, result: Result, took_s: float) -> str:
    target, ratio = benchmark.target or "", f"{number(benchmark.ratio(result))} x"
    value, took = number(result.value), f"{took_s:,.0f} s"
    return _ROW.format(benchmark.name, value, benchmark.unit, str(target), ratio, result.repeats, took, result.against)


def _sum(taken: Mapping[str, float]) -> str:
    longest = sorted(taken, key=lambda name: -taken[name])[:5]
    named = ", ".join(f"{name} {taken[name]:,.0f} s" for name in longest)
    return f"{len(taken)} benchmarks took {sum(taken.values()) / 60:.1f} minutes; longest: {named}"


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _write(output: Path, results: Mapping[str, Any]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_suffix(".part")
    part.write_text(json.dumps(results, indent=1) + "\n")
    part.replace(output)
