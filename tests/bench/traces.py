"""Reading and breaking down a trace of PyTorch's profiler."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from tests.bench.result import Result, Scale
from tests.traces.generator import Plan, document

_STEPS = 8_000
"""Steps of the generated trace: about 60 MB."""
_READ = """
import json, sys, time
from parlab.traces.breakdown import breakdown
from parlab.traces.reading import read_trace
began = time.process_time()
with open(sys.argv[1], "rb") as file:
    trace = read_trace(file)
breakdown(trace)
print(json.dumps({"s": time.process_time() - began, "bytes": trace.bytes_read}))
"""


def trace_mb_per_s(scale: Scale) -> Result:
    """Measure the reading and breakdown of a Kineto trace in a process of its own, by processor time."""
    repeats = scale.repeats(3)
    with tempfile.TemporaryDirectory(prefix="parlab-traces-") as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(orjson.dumps(document(Plan(steps=scale.of(_STEPS))), option=orjson.OPT_INDENT_2))
        measured = [_read(path) for _ in range(repeats)]
        megabytes = measured[0]["bytes"] / 1e6
        value, other = (megabytes / seconds for seconds in (median(row["s"] for row in measured), _parse_s(path)))
    return Result(value, f"{other:,.0f} MB/s of json.loads for the whole document", repeats, value / other)


def _read(path: Path) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", _READ, str(path)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _parse_s(path: Path) -> float:
    """Return the processor time in which the standard library parses the document."""
    text = path.read_bytes()
    began = time.process_time()
    json.loads(text)
    return time.process_time() - began
