"""Learning the format of a log of 100 MB, against reading its lines only."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from parlab.formats.learnt import learnt
from parlab.formats.source import Lines, open_text
from tests.bench.result import Result, Scale

BYTES = 100_000_000


def short_line(n: int) -> str:
    """Return a line with six numbers."""
    return (
        f"[trainer] update {n} took {n % 97}.25 s, pushed {n % 89}00.5 tok/s, objective {8 - n % 71 * 0.013:.4f},"
        f" held {n % 7}.5 GiB\n"
    )


def wide_line(n: int) -> str:
    """Return a line with sixty metrics."""
    return f"update {n} took {n % 97}.25 s " + " ".join(f"m{place}={n % (place + 2)}.25" for place in range(60)) + "\n"


LOGS: dict[str, Callable[[int], str]] = {"short lines": short_line, "lines of 60 metrics": wide_line}


def learn_100mb_s(scale: Scale) -> Result:
    """Measure learning a log of short lines and one of wide lines; return the slower one."""
    repeats = scale.repeats(3)
    slowest, baseline, name = 0.0, 1.0, ""
    for log, line in LOGS.items():
        with tempfile.NamedTemporaryFile("w", suffix=".log") as stream:
            size = n = 0
            while size < scale.of(BYTES):
                size += stream.write(line(n))
                n += 1
            stream.flush()
            path = Path(stream.name)
            lines_s = median(_seconds(path, lambda lines: sum(1 for _ in lines)) for _ in range(repeats))
            took_s = median(_seconds(path, lambda lines: learnt.learn(lines, "bench")) for _ in range(repeats))
        sys.stdout.write(f"  {log}: {size / 1e6:.0f} MB learnt in {took_s:.2f} s, its lines read in {lines_s:.2f} s\n")
        if took_s > slowest:
            slowest, baseline, name = took_s, lines_s, log
    against = f"{baseline:.2f} s for reading all lines; {name}"
    return Result(slowest, against, repeats, baseline / slowest)


def _seconds(path: Path, work: Callable[[Lines], object]) -> float:
    began = time.perf_counter()
    with open_text(path) as stream:
        work(Lines(stream))
    return time.perf_counter() - began
