"""A long campaign as stages: each starts everything anew, so that one that fails costs its own faults only."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys

from runners.supervisor.processes import die_with
from tests.faults import rows

MAX_IDLE = 3
"""Stages in sequence that may end without a single fault before the campaign gives up."""
STOPPED = 143


def run(arguments: argparse.Namespace) -> int:
    """Run stages until all faults have happened; return 1 if anything was wrong, or some are missing."""
    first = arguments.first
    if arguments.resume:
        first = rows.next_number(rows.read(arguments.rows), arguments.seed, arguments.database)
    # With --resume, --kills is the number that the whole campaign has to reach.
    last = arguments.kills if arguments.resume else first + arguments.kills - 1
    stops: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: stops.append(number))  # the stage has it too, and ends in order
    idle = 0
    while first <= last and idle < MAX_IDLE and not stops:
        before = len(rows.read_all(arguments.rows))
        code = _stage(arguments, first, min(arguments.stage, last - first + 1))
        done = rows.next_number(rows.read_all(arguments.rows)[before:], arguments.seed, arguments.database) - 1
        sys.stdout.write(f"stage from fault {first} to {done or 'none'} ended with {code}\n")
        sys.stdout.flush()
        idle = 0 if done else idle + 1
        first = max(first, done + 1)
        if code == STOPPED:
            break
    kept = [
        row for row in rows.read(arguments.rows) if (row.seed, row.database) == (arguments.seed, arguments.database)
    ]
    sys.stdout.write(f"\nseed {arguments.seed}: {rows.total(kept)}\n\n{rows.table(kept)}\n")
    return int(first <= last or any(row.wrong for row in kept))


def _stage(arguments: argparse.Namespace, first: int, count: int) -> int:
    """Run one stage in a process of its own; return its exit code."""
    command = [sys.executable, "-m", "tests.faults", "--first", str(first), "--kills", str(count)]
    for name in ("stage", "seed", "kinds", "database", "at_once", "output", "rows"):
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    command += ["--no-slurm"] if arguments.no_slurm else []
    # It ends in order with this process, and at once if this one is killed.
    stage = subprocess.Popen(command, preexec_fn=die_with(os.getpid()))  # noqa: PLW1509  no threads run here
    try:
        return stage.wait()
    except SystemExit:
        stage.terminate()
        stage.wait()
        raise


def commit() -> str:
    """Return the commit whose code the faults meet; empty outside of a repository."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip()
