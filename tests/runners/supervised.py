"""A supervisor in a process of its own, for tests of all that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from parlab.client.journal import NODE
from runners.node.rundir import RunDir
from runners.supervisor.processes import MARKER, marked
from runners.supervisor.spool import read_batch
from runners.wire.protocol import Report
from tests.patience import PATIENCE_S, wait_for
from tests.runners.conftest import ROOT

Prepare = Callable[..., RunDir]
Supervise = Callable[..., "Supervised"]


class Supervised:
    """A supervisor in a process of its own, as the daemon starts it."""

    def __init__(self, run: RunDir, environment: Mapping[str, str]) -> None:
        self.run = run
        self.marker = f"test-{os.getpid()}-{time.time_ns()}:7/1"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runners.supervisor.supervise", str(run.path)],
            cwd=ROOT,
            env={**os.environ, "REDIS_URL": "not for the training", MARKER: self.marker, **environment},
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def output(self) -> bytes:
        return self._read()[0]

    def reports(self) -> list[Report]:
        return self._read()[1]

    def _read(self) -> tuple[bytes, list[Report]]:
        output, reports, position = b"", list[Report](), 0
        while (piece := read_batch(self.run.spool, position)).next_position != position:
            output, reports, position = output + piece.output, reports + piece.reports, piece.next_position
        return output, reports

    def streams(self) -> dict[int, bytes]:
        """Return what each rank has printed, and the launcher as NODE."""
        printed: dict[int, bytes] = defaultdict(bytes)
        position = 0
        while (piece := read_batch(self.run.spool, position)).next_position != position:
            bounds = [(0, NODE, False), *piece.streams, (len(piece.output), NODE, False)]
            for (begin, rank, _), (end, _, _) in pairwise(bounds):
                printed[rank] += piece.output[begin:end]
            position = piece.next_position
        return printed

    def training(self) -> list[psutil.Process]:
        return [process for process, marker in marked().items() if marker == self.marker and process.pid != self.pid]

    @property
    def pid(self) -> int:
        return self.process.pid

    def says(self, text: bytes) -> None:
        wait_for(lambda: text in self.output(), f"the training says {text!r}")

    def ends(self, within_s: float = PATIENCE_S) -> Report:
        self.process.wait(within_s)
        return self.reports()[-1]


@pytest.fixture
def supervise() -> Iterator[Supervise]:
    started: list[Supervised] = []

    def start(run: RunDir, **environment: str) -> Supervised:
        started.append(Supervised(run, environment))
        return started[-1]

    yield start
    left = []
    for supervised in started:
        if supervised.process.poll() is None:
            supervised.process.kill()
        supervised.process.communicate()
        left += supervised.training()
    names = [f"{process.pid} {process.cmdline()}" for process in left]
    for process in left:
        process.kill()
    assert not names, f"left running: {names}"


def without_telemetry(output: bytes) -> bytes:
    return b"".join(line for line in output.splitlines(keepends=True) if b'"event":"telemetry"' not in line)


WAIT = """
    import os, time
    while not os.path.exists(os.path.join(os.path.dirname(__file__), "open")):
        time.sleep(0.05)
"""
"""A training that goes on for as long as the test wants: until open_gate."""


def open_gate(run: Supervised) -> None:
    (Path(run.run.read_launch()["argv"][-1]).parent / "open").touch()
