"""Run an engine as a process and collect its output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from runners.config import RunConfig
from runners.wire.protocol import EVENT_PREFIX
from tests.patience import TRAINING_S

ROOT = Path(__file__).parents[2]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1")


class Output(NamedTuple):
    """Exit code, and standard output and standard error in one string."""

    code: int
    text: str

    def events(self, name: str, rank: int | None = None) -> list[dict[str, Any]]:
        """Return the events with a name, of one rank or of all ranks."""
        lines = [line for line in self.text.splitlines() if line.encode().startswith(EVENT_PREFIX)]
        assert all(len(line) < 4095 for line in lines)
        return [event for event in map(json.loads, lines) if event["event"] == name and rank in (None, event["rank"])]

    def losses(self) -> list[float]:
        """Return the losses of the first rank that reports them, by step."""
        steps = [event for event in self.events("step") if "loss" in event]
        return [event["loss"] for event in steps if event["rank"] == steps[0]["rank"]]


def run_behind_links(data: Mapping[str, Any], directory: Path) -> str:
    """Run a configuration on emulated links to its end; return what it prints."""
    path = directory / "config.json"
    path.write_text(json.dumps(data))
    done = subprocess.run(
        [sys.executable, "-m", "runners.links", "--config", str(path)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TRAINING_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_engine(
    data: Mapping[str, Any],
    directory: Path,
    *,
    processes: int | None = None,
    timeout: float = TRAINING_S,
    variables: Mapping[str, str] | None = None,
) -> Output:
    """Run an engine: under torchrun with one process per rank of the layout, or without it if `processes` is 0.

    After `timeout` seconds the launcher is killed, and the kernel kills its ranks.
    """
    path = directory / "config.json"
    path.write_text(json.dumps(data))
    count = RunConfig.model_validate(data).world_size if processes is None else processes
    launcher = [*TORCHRUN, f"--nproc-per-node={count}"] if count else []
    command = [sys.executable, *launcher, "-m", f"runners.engines.{data['parallel']['engine']}", "--config", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(variables or {})}
    process = subprocess.run(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout
    )
    return Output(process.returncode, process.stdout)
