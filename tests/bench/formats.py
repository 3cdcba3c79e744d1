"""Reading a long Megatron-LM log to records, against reading its lines only."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from statistics import median

from parlab.formats import records
from parlab.formats.source import Lines, open_text
from tests.bench.result import Result, Scale

BLOCK_ITERATIONS = 2_000
MEGABYTES = 150
"""PARLAB_BENCH_LOG_MB chooses another size."""

_STEP = (
    " iteration {0:8d}/ 1000000 | consumed samples: {1:12d} | elapsed time per iteration (ms): {2:.1f} |"
    " learning rate: 1.471E-04 | global batch size:   512 | lm loss: {3:.6E} | loss scale: 16384.0 | grad norm: 3.312 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
_TIMERS = (
    "time (ms) | forward-compute: {0:.2f} | forward-recv: 126.22 | backward-compute: {1:.2f} | backward-send: 0.64 |"
    " backward-send-forward-recv: 4.74 | backward-params-all-reduce: 23.19 | backward-embedding-all-reduce: 418.05 |"
    " optimizer-copy-to-main-grad: 11.08 | optimizer-unscale-and-check-inf: 26.39 | optimizer-clip-main-grad: 19.51 |"
    " optimizer-copy-main-to-model-params: 11.34 | optimizer: 115.99 | batch-generator: 3.30\n"
)
# Reads a file in a separate process and prints its peak memory in KiB.
_PEAK = """
import sys
from pathlib import Path
from parlab.formats import read_document
from parlab.formats.source import Lines, open_text
with open_text(Path(sys.argv[2])) as stream:
    if sys.argv[1] == "document":
        read_document(Lines(stream), file="log")
    else:
        for line in Lines(stream):
            pass
status = Path("/proc/self/status").read_text()
print(status.partition("VmHWM:")[2].split()[0])
"""


def megatron_reader_mb_per_s(scale: Scale) -> Result:
    """Measure reading a log to records on one core, against reading its lines only."""
    rates, line_rates = [], []
    repeats = scale.repeats(3)
    path = _log(scale)
    for _ in range(repeats):
        line_rates.append(_lines_rate(path))
        rates.append(_records_rate(path))
    value, other = median(rates), median(line_rates)
    return Result(value, f"{other:,.0f} MB/s for the lines only", repeats, value / other)


def reader_peak_mib(scale: Scale) -> Result:
    """Measure the peak memory of reading a log to a document, against reading its lines only."""
    path = _log(scale)
    value, other = _peak("document", path), _peak("lines", path)
    against = f"{other:.0f} MiB for the lines only; {path.stat().st_size / 1e6:.0f} MB"
    return Result(value, against, 1, other / value)


@cache
def _log(scale: Scale) -> Path:
    """Write a log of about this size, with continuous iteration numbers, once per process."""
    size = 1_000_000 * scale.of(int(os.environ.get("PARLAB_BENCH_LOG_MB", MEGABYTES)))
    directory = tempfile.mkdtemp(prefix="parlab-log-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = Path(directory) / "megatron.log"
    first = 1
    with path.open("w") as stream:
        while stream.tell() < size:
            stream.write(_block(first))
            first += BLOCK_ITERATIONS
    return path


def _block(first: int) -> str:
    lines = []
    for n in range(first, first + BLOCK_ITERATIONS):
        lines.append(_STEP.format(n, n * 512, 1380 + n % 17 * 0.3, 2 + 10 / n))
        lines.append(_TIMERS.format(175 + n % 13 * 0.1, 513 + n % 7 * 0.2))
    return "".join(lines)


def _lines_rate(path: Path) -> float:
    begin = time.perf_counter()
    with open_text(path) as stream:
        for _ in Lines(stream):
            pass
    return path.stat().st_size / 1e6 / (time.perf_counter() - begin)


def _records_rate(path: Path) -> float:
    begin = time.perf_counter()
    with open_text(path) as stream:
        count = sum(1 for _ in records(Lines(stream), "megatron"))
    if not count:
        raise RuntimeError("the reader returned no record of the benchmark's log")
    return path.stat().st_size / 1e6 / (time.perf_counter() - begin)


def _peak(target: str, path: Path) -> float:
    command = [sys.executable, "-c", _PEAK, target, str(path)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(process.stdout) / 1024
