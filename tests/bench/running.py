"""Run benchmarks one after the other: each figure is printed and kept as soon as it is measured."""

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.result import Result, Scale, Unavailable

FAILED, INTERRUPTED = 1, 130
"""Exit codes."""
_ROW = "{:<32} {:>10} {:<10} {:>8} {:>7} {:>7}  {}"


def run_all(
    benchmarks: Mapping[str, Callable[[Scale], Result]], names: Iterable[str], scale: Scale, output: Path
) -> int:
    """Run the named benchmarks and return the exit code; figures that are not measured now stay in `output`.

    One that fails does not end the others.
    """
    _print(_ROW.format("name", "value", "unit", "ratio", "repeats", "took", "against"))
    results, taken, failed, code = _earlier(output), dict[str, float](), list[str](), 0
    for name in names:
        began = time.monotonic()
        try:
            result = benchmarks[name](scale)
        except Unavailable as error:
            _print(f"{name:<32} not measured: {error}")
            continue
        except KeyboardInterrupt:
            _print(f"{name:<32} interrupted; the figures above are kept")
            code = INTERRUPTED
            break
        except BaseException:  # those of pytest, which helpers of tests raise, are no Exception
            traceback.print_exc()
            _print(f"{name:<32} failed after {time.monotonic() - began:,.0f} s; an earlier figure is kept")
            failed.append(name)
            continue
        finally:
            taken[name] = time.monotonic() - began
        _print(_line(name, result, taken[name]))
        measured_at = datetime.now(UTC).isoformat(timespec="seconds")
        results[name] = {**result._asdict(), "took_s": round(taken[name], 1), "measured_at": measured_at}
        _write(output, results)
    _print(_sum(taken))
    if failed:
        _print(f"failed: {', '.join(failed)}")
    return code or (FAILED if failed else 0)


def on_postgres(name: str, scale: Scale) -> Result:
    """Run a benchmark in a process of its own that has a PostgreSQL server; raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory(prefix="parlab-bench-") as directory:
        output = Path(directory) / "result.json"
        command = [sys.executable, "-m", "tests.bench", name, f"--output={output}", *["--quick"] * scale.is_quick]
        environment = {**os.environ, "PARLAB_BENCH_DATABASE": "postgres"}
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
        result = _earlier(output).get(name)
    if result is None:
        raise RuntimeError(f"{name} has failed on PostgreSQL; its messages are above")
    return Result(**{field: result[field] for field in Result._fields})


def _line(name: str, result: Result, took_s: float) -> str:
    value = f"{result.value:,.0f}" if result.value >= 1000 else f"{result.value:.3g}"
    return _ROW.format(
        name, value, result.unit, f"{result.ratio:.3g} x", result.repeats, f"{took_s:,.0f} s", result.against
    )


def _sum(taken: Mapping[str, float]) -> str:
    longest = sorted(taken, key=lambda name: -taken[name])[:5]
    named = ", ".join(f"{name} {taken[name]:,.0f} s" for name in longest)
    return f"{len(taken)} benchmarks took {sum(taken.values()) / 60:.1f} minutes; longest: {named}"


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _earlier(output: Path) -> dict[str, Any]:
    """Return the figures of earlier calls; none if the file is absent or damaged."""
    try:
        results = json.loads(output.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return results if isinstance(results, dict) else {}


def _write(output: Path, results: Mapping[str, Any]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_suffix(".part")
    part.write_text(json.dumps(results, indent=1) + "\n")
    part.replace(output)
