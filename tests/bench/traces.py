"""Reading and breaking down traces: own code, and HolisticTraceAnalysis in its own environment."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson

from parlab.traces.events import LAUNCH, Timeline
from parlab.traces.lanes import StoredLanes, store
from parlab.traces.reading import RankTrace
from parlab.traces.spool import Spool
from tests.bench import environments
from tests.bench.result import Result, Scale, Unavailable
from tests.traces.generator import Plan, document, events

_STEPS = 8_000
"""Steps of a generated trace: about 60 MB."""
_PIECES = 36
"""Of 60 MB."""
_PEER_STEPS = 500, 1_200
"""HolisticTraceAnalysis needs minutes for 5,000 steps (36 MB), and fails at 1,500 in its 16-bit columns."""
_FOLDER = Path(tempfile.gettempdir()) / f"parlab-traces-{os.getpid()}"
_MEMORY = """
from pathlib import Path
def status(name):
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name))
"""
_OWN = """
import json, sys, time
from parlab.traces.breakdown import breakdown
from parlab.traces.reading import read_trace
Path("/proc/self/clear_refs").write_text("5")
base = status("VmRSS")
began = time.process_time()
with open(sys.argv[1], "rb") as file:
    trace = read_trace(file)
result = breakdown(trace).whole
taken = time.process_time() - began
print(json.dumps({"s": taken, "peak_kib": status("VmHWM") - base,
    "bytes": trace.bytes_read, "idle": result.idle_s, "compute": result.compute_s,
    "other": result.exposed_s + result.exposed_copy_s,
    "overlap": 1 - result.exposed_s / result.communication_s if result.communication_s else 0.0}))
"""
_PEER = """
import json, resource, sys, time, warnings
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
Path("/proc/self/clear_refs").write_text("5")
base = status("VmRSS")
began = time.process_time()
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
parts = analysis.get_temporal_breakdown(visualize=False).iloc[0]
overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]
taken = time.process_time() - began
children = resource.getrusage(resource.RUSAGE_CHILDREN)
taken += children.ru_utime + children.ru_stime
peak = status("VmHWM") - base
print(json.dumps({"s": taken, "peak_kib": peak, "idle": parts["idle_time(us)"] / 1e6,
    "compute": parts["compute_time(us)"] / 1e6, "other": parts["non_compute_time(us)"] / 1e6,
    "overlap": overlap["comp_comm_overlap_pctg"] / 100}))
"""


def trace_mb_per_s(scale: Scale) -> Result:
    """Measure the reading and breakdown of a Kineto trace in a process of its own, by processor time."""
    measured = _readings(scale)
    seconds = median(result["s"] for result in measured)
    megabytes = measured[0]["bytes"] / 1e6
    return Result(megabytes / seconds, "MB/s", f"{megabytes:.0f} MB", 1.0, len(measured))


def trace_peak_mib(scale: Scale) -> Result:
    """Measure the memory that reading a trace adds to a process."""
    measured = _readings(scale)
    peak = median(result["peak_kib"] for result in measured) / 1024
    size = measured[0]["bytes"] / 2**20
    return Result(peak, "MiB", f"{size:.0f} MiB of JSON", size / max(peak, 0.1), len(measured))


@cache
def _readings(scale: Scale) -> list[dict[str, Any]]:
    """Read a trace of 60 MB, once for time and memory."""
    path = _written(scale)
    return [_own(path) for _ in range(scale.repeats(3))]


def trace_2gb_peak_mib(scale: Scale) -> Result:
    """Measure the memory that reading a trace of 2 GB adds to a process, beside one of a tenth of its size."""
    tenth, whole = (_large(scale, pieces) for pieces in (_PIECES // 10, _PIECES))
    peak, size = whole["peak_kib"] / 1024, whole["bytes"]
    against = (
        f"{size / 1e9:.2g} GB of JSON, {size / 1e6 / whole['s']:.0f} MB/s; {tenth['peak_kib'] / 1024:.0f} MiB for"
        f" {tenth['bytes'] / 1e9:.2g} GB"
    )
    return Result(peak, "MiB", against, size / 2**20 / peak, 1)


def _large(scale: Scale, pieces: int) -> dict[str, float]:
    """Write a trace of so many pieces of 60 MB, read it in a process of its own, and remove it."""
    path = _FOLDER / f"large-{pieces}.json"
    _FOLDER.mkdir(exist_ok=True)
    atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
    steps = scale.of(_STEPS)
    plan = Plan(steps=steps)
    try:
        rows = events(plan, 0, every=100)
        with path.open("wb") as file:
            file.write(b'{"traceEvents": [')
            for piece in range(pieces):
                for row in rows if piece else ():
                    row["ts"] += steps * plan.step_us
                    if row["cat"] == "gpu_user_annotation":
                        row["name"] = f"ProfilerStep#{row['args']['External id'] // 100 + piece * steps // 100}"
                text = orjson.dumps(rows, option=orjson.OPT_INDENT_2)
                file.write((b"," if piece else b"") + text.strip()[1:-1])
            file.write(b"]}")
        return _own(path)
    finally:
        path.unlink(missing_ok=True)


def trace_vs_hta(scale: Scale) -> Result:
    """Compare time and memory with HolisticTraceAnalysis on the same trace; the breakdowns must agree within 1 %."""
    if scale.is_quick:
        raise Unavailable("--quick installs nothing")
    python = os.environ.get("PARLAB_HTA_PYTHON") or environments.python_with("HolisticTraceAnalysis")
    steps = _PEER_STEPS[0], int(os.environ.get("PARLAB_HTA_STEPS", _PEER_STEPS[1]))
    results = [_beside_hta(python, _written(scale, count)) for count in steps]
    return Result.comparison(results[-1].ratio, "; ".join(result.against for result in results), 1)


def _beside_hta(python: str, path: Path) -> Result:
    own = sorted((_own(path) for _ in range(3)), key=lambda result: float(result["s"]))[1]
    peer = _run([python, "-c", _MEMORY + _PEER, str(path)], _environment())
    for part in ("compute", "other", "idle", "overlap"):
        whole = 1.0 if part == "overlap" else peer["compute"] + peer["other"] + peer["idle"]
        if abs(own[part] - peer[part]) > 0.01 * whole:
            raise AssertionError(f"{part}: {own[part]} here, {peer[part]} with HolisticTraceAnalysis")
    mib = [result["peak_kib"] / 1024 for result in (own, peer)]
    memory = f"{mib[1]:.3g} instead of {mib[0]:.3g} MiB ({mib[1] / max(1e-3, mib[0]):.1f} x)"
    ratio = peer["s"] / own["s"]
    against = (
        f"{path.stat().st_size / 1e6:.3g} MB: {own['s']:.2g} s, {peer['s']:.1f} s with HolisticTraceAnalysis"
        f" ({ratio:.3g} x), {memory}"
    )
    return Result.comparison(ratio, against, 1)


def _written(scale: Scale, steps: int = _STEPS) -> Path:
    """Write the trace of a rank, once per process."""
    path = _FOLDER / f"{scale.of(steps)}.json"
    if not path.exists():
        _FOLDER.mkdir(exist_ok=True)
        atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
        path.write_bytes(orjson.dumps(document(Plan(steps=scale.of(steps))), option=orjson.OPT_INDENT_2))
    return path


def _own(path: Path) -> dict[str, Any]:
    return _run([sys.executable, "-c", _MEMORY + _OWN, str(path)], {**os.environ})


def _run(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


_EVENTS = 10_000_000
_WINDOWS = 60


def trace_window_ms(scale: Scale) -> Result:
    """Measure the slowest window of the trace view over 10 million events, from the whole trace to a kernel."""
    count = scale.of(_EVENTS)
    generator = np.random.default_rng(1)
    lengths = generator.exponential(20e-6, count)
    starts = np.cumsum(lengths + generator.exponential(5e-6, count))
    streams, names = generator.integers(0, 8, count), generator.integers(0, 500, count)
    timeline = Timeline()
    for row in zip(starts.tolist(), (starts + lengths).tolist(), names.tolist(), streams.tolist(), strict=True):
        timeline.add(*row)
    trace = RankTrace(
        rank=0, world_size=1, host="", device="", origin_s=0.0, names=[f"kernel {number}" for number in range(500)],
        timeline=timeline, launches=Spool(LAUNCH, "number"), steps=[], messages=[], message_count=0, is_gpu=True,
        memory=[], events=count, bytes_read=0, operations=Timeline(), spans=Timeline(),
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="parlab-lanes-") as folder:
        began = time.perf_counter()
        store(trace, Path(folder) / "lanes")
        stored_s = time.perf_counter() - began
        taken = []
        for number in range(_WINDOWS):
            lanes = StoredLanes(Path(folder) / "lanes")
            width = (lanes.end_s - lanes.begin_s) / 1.3**number
            begin = float(generator.uniform(lanes.begin_s, lanes.end_s - width)) if number else lanes.begin_s
            began = time.perf_counter()
            lanes.window(begin, begin + width, most=700)
            taken.append(1e3 * (time.perf_counter() - began))
        began = time.perf_counter()
        lanes.search("kernel 42", 0.0)
        search_ms = 1e3 * (time.perf_counter() - began)
    print(f"stored in {stored_s:.1f} s; median window {median(taken):.1f} ms; search {search_ms:.0f} ms")
    return Result(max(taken), "ms", f"{count:,} events in 8 streams", 1.0, _WINDOWS)
