"""Tables of 200,000 rows or 20,000 columns and 3 million empty lines: time and memory, against half of each."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from parlab.formats import read_document
from tests.bench.result import Result, Scale


def rows_of_metrics(size: int) -> Iterator[str]:
    yield "_step,train/loss,perf/tokens_per_sec,val/loss\n"
    yield from (f"{n},{2 + 1 / (n + 1):.4f},{5000 + n % 97},{3 if n % 100 == 0 else ''}\n" for n in range(size))


def rows_of_two_runs(size: int) -> Iterator[str]:
    yield "Step,a - train/loss,b - train/loss\n"
    yield from (f"{n},{2 + 1 / (n + 1):.4f},{3 + 1 / (n + 1):.4f}\n" for n in range(size))


def rows_of_samples(size: int) -> Iterator[str]:
    yield from ("# gpu pwr sm fb\n", "# Idx W % MB\n")
    yield from (f" {n % 8} {100 + n % 7} {50 + n % 11} {n}\n" for n in range(size))


def columns_of_metrics(size: int) -> Iterator[str]:
    yield ",".join(["_step", *(f"metric_{n}" for n in range(size))]) + "\n"
    yield from (",".join([str(n), *(f"{column}.5" for column in range(size))]) + "\n" for n in range(20))


def columns_of_runs(size: int) -> Iterator[str]:
    yield ",".join(["Name,State,User", *(f"train/metric_{n}" for n in range(size))]) + "\n"
    yield from (",".join([f"run-{n},finished,ada", *["1.5"] * size]) + "\n" for n in range(20))


def columns_of_page(size: int) -> Iterator[str]:
    yield from ("# Table\n", "\n", "|" + "a|" * size + "\n", "|" + "-|" * size + "\n", "|" + "1|" * size + "\n")


def empty_lines(size: int) -> Iterator[str]:
    return ("\n" for _ in range(size))


CASES: dict[str, tuple[Callable[[int], Iterator[str]], int]] = {
    "200,000 rows of metrics": (rows_of_metrics, 200_000),
    "200,000 rows of two runs": (rows_of_two_runs, 200_000),
    "200,000 rows of GPU samples": (rows_of_samples, 200_000),
    "20,000 columns of metrics": (columns_of_metrics, 20_000),
    "20,000 columns of runs": (columns_of_runs, 20_000),
    "20,000 columns of a page": (columns_of_page, 20_000),
    "3 million empty lines": (empty_lines, 3_000_000),
}


def measured(case: str, size: int) -> tuple[float, float, float]:
    """Read half of a case and all of it in a process of its own; return both processor times and the peak in MiB."""
    command = [sys.executable, "-m", "tests.bench.large_inputs", case, str(size)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    half_s, whole_s, mebibytes = map(float, process.stdout.split())
    return half_s, whole_s, mebibytes


def large_inputs_growth(scale: Scale) -> Result:
    """Measure by what factor the time of each case grows when its size doubles; return the largest factor.

    The shortest times of half and whole are compared: other work only adds to a time. The repeats run side by side.
    """
    worst, name = 0.0, ""
    repeats = scale.repeats(2)
    for case, (_, full) in CASES.items():
        with ThreadPoolExecutor(repeats) as pool:
            results = list(pool.map(measured, [case] * repeats, [scale.of(full)] * repeats))
        halves, wholes, peaks = zip(*results, strict=True)
        half, whole, peak = min(halves), min(wholes), max(peaks)
        growth = whole / half
        sys.stdout.write(f"  {case:<28} {whole:>6.2f} s {peak:>6.0f} MiB   {growth:.2f} x of the half\n")
        if growth > worst:
            worst, name = growth, case
    return Result(worst, f"2 x is linear; {name}", repeats)


def _processor_s(case: str, size: int) -> float:
    began = time.process_time()
    read_document(CASES[case][0](size), file="large")
    return time.process_time() - began


if __name__ == "__main__":
    case, size = sys.argv[1], int(sys.argv[2])
    _processor_s(case, max(1, size // 100))  # imports
    times = [_processor_s(case, max(1, size // 2)), _processor_s(case, size)]
    peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    sys.stdout.write(f"{times[0]} {times[1]} {int(peak) / 1024}\n")
