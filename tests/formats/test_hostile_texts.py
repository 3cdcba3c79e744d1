"""Texts that are made to exhaust the process that reads them: memory stays within a few lines' worth."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from parlab.formats.source import MAX_LINE

READ = """
import resource, sys
from pathlib import Path
from parlab.formats import read_document
from parlab.formats.source import Lines, open_text
def peak():
    return next(int(row.split()[1]) for row in open("/proc/self/status") if row.startswith("VmHWM")) / 1024
read_document(['{"loss": 1.5, "step": 1}\\n'] * 50, file="x")
before = peak()
with open_text(Path(sys.argv[1])) as stream:
    document = read_document(Lines(stream), file="x")
print(peak() - before, resource.getrusage(resource.RUSAGE_SELF).ru_utime, document.unread.lines)
"""
STEPS = "".join(json.dumps({"loss": 1.5, "step": step}) + "\n" for step in range(50))


def one_line(path: Path) -> None:
    path.write_text("a" * (50 << 20))


def one_value(path: Path) -> None:
    path.write_text(f'{STEPS}{{"loss": "{"a" * (50 << 20)}"}}\n')


def deep(path: Path) -> None:
    path.write_text(STEPS + ("[" * (MAX_LINE - 10) + "\n") * 3)


def deep_objects(path: Path) -> None:
    path.write_text(STEPS + ('{"a":' * (MAX_LINE // 5 - 10) + "\n") * 3)


def lists(path: Path) -> None:
    path.write_text(STEPS + ('{"a":[' + "[]," * (MAX_LINE // 3 - 10) + "[]]}\n") * 3)


def packed(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(1024):
            file.write(b"a" * (1 << 20))


@pytest.mark.parametrize(
    ("write", "peak_mib"),
    [
        pytest.param(one_line, 64, marks=pytest.mark.slow),
        pytest.param(one_value, 64, marks=pytest.mark.slow),
        (deep, 64),
        (deep_objects, 64),
        pytest.param(lists, 400, marks=pytest.mark.slow),
        pytest.param(packed, 64, marks=pytest.mark.slow),
    ],
)
def test_memory_and_time_of_a_hostile_text_are_bounded(
    write: Callable[[Path], None], peak_mib: float, tmp_path: Path
) -> None:
    path = tmp_path / "hostile"
    write(path)
    command = [sys.executable, "-c", READ, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, seconds, _ = map(float, done.stdout.split())
    assert peak < peak_mib
    assert seconds < 30
