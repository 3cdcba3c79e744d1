"""Detect runs that make no more steps, and explain them by the stacks of all ranks.

The supervisor asks one process after the other for its Python stacks, so that they do not mix in the shared pipe.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import psutil

from runners.supervisor import processes
from runners.supervisor.processes import STACK_SIGNAL
from runners.wire.protocol import EVENT_PREFIX

FIRST_STEP_FACTOR = 10
"""The limit of the first step is larger by this factor, because it compiles, connects and initializes weights."""
SLOW_STEP_FACTOR = 10
"""A step may take this many times as long as the slowest one before it, whatever the limit."""
ANSWER_S = 0.5
"""Time for a rank to write its stacks before the next rank is asked."""
LATE_ANSWER_S = 5.0
"""The same for a rank that has not started to write: on a busy machine it may wait for a processor."""
MAX_ASKED = 64
"""Maximum number of ranks that are asked; more would repeat the same stacks."""
MAX_STACK_BYTES = 64 << 10

_STEP = re.compile(rb"^" + re.escape(EVENT_PREFIX) + rb'[^\n]*"event":"step"[^\n]*?"step":(\d{1,10})\b', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) .*\(most recent call first\):", re.MULTILINE)
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


class Watch:
    """Tracks step events in the output; the caller passes the times, in seconds."""

    def __init__(self, limit_s: float | None, now: float, *, counts_steps: bool = False) -> None:
        """`counts_steps`: note the last step also without a limit."""
        self.limit_s = limit_s
        self._is_blind = limit_s is None and not counts_steps
        self.last_step = 0
        self.steps = 0
        """Number of step events of all ranks."""
        self._since = self._stepped = now
        self._slowest_s = 0.0

    def see(self, output: bytes, now: float) -> None:
        """Read a piece of output that ends at a line end."""
        if self._is_blind:
            return
        if b'"event":"checkpoint"' in output:  # loading and saving may take as long as many steps
            self.pause(now)
        if b'"event":"step"' not in output:
            return
        for match in _STEP.finditer(output):
            step = int(match[1])
            if step > self.last_step:
                if self.last_step:
                    self._slowest_s = max(self._slowest_s, now - self._stepped)
                self.last_step, self._stepped = step, now
            # Also for steps that are not new: each rank prints its own, and engine allreduce starts again at 1.
            self._since = now
            self.steps += 1

    def pause(self, now: float) -> None:
        """The run was kept waiting by the supervisor itself: it is not silent."""
        self._since = now

    def silent_for(self, now: float) -> float | None:
        """Return for how long no step has come, where that is too long, else None."""
        if self.limit_s is None:
            return None
        limit = max(self.limit_s, SLOW_STEP_FACTOR * self._slowest_s)
        if not self.last_step:
            limit *= FIRST_STEP_FACTOR
        silence = now - self._since
        return silence if silence > limit else None


class Rank(NamedTuple):
    """One process of a run, as the system knows it."""

    process: psutil.Process
    rank: int | None
    """None where its environment names none: it is alone."""

    @property
    def name(self) -> str:
        return "the process" if self.rank is None else f"rank {self.rank}"


def find_ranks() -> list[Rank]:
    """Return the descendants that handle STACK_SIGNAL, by rank; the signal would end other processes."""
    ranks = []
    for process in processes.descendants():
        with contextlib.suppress(psutil.Error, OSError):
            if processes.catches(process.pid, STACK_SIGNAL):
                number = process.environ().get("RANK", "")
                ranks.append(Rank(process, int(number) if number.isdecimal() else None))
    return sorted(ranks, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.process.pid))


class _Frame(NamedTuple):
    """One line of a stack."""

    path: str
    line: int
    name: str

    @property
    def is_ours(self) -> bool:
        """Whether it is neither in a package nor in Python itself."""
        return "site-packages" not in self.path and "/lib/python3" not in self.path

    @property
    def is_collective(self) -> bool:
        """Whether it is one of torch's collectives, not a wrapper around one."""
        return self.path.endswith("/torch/distributed/distributed_c10d.py") and not self.name.startswith("_")

    def __str__(self) -> str:
        return f"{self.name} ({'/'.join(self.path.split('/')[-2:])}:{self.line})"


class Inquiry:
    """Asks each rank of a hanging run for its stacks."""

    def __init__(self, ranks: Sequence[Rank], now: float) -> None:
        self._waiting = list(ranks[:MAX_ASKED])
        self._asked: list[Rank] = []
        self._answers: list[bytearray] = []
        self._next_at = self._last_at = now

    def step(self, now: float) -> Rank | None:
        """Ask the next rank once the last one has had its time; return the rank that was asked."""
        if not self._waiting or not self._has_answered(now):
            return None
        rank = self._waiting.pop(0)
        self._asked.append(rank)
        self._answers.append(bytearray())
        self._next_at, self._last_at = now + ANSWER_S, now + LATE_ANSWER_S
        processes.signal_all([rank.process], STACK_SIGNAL)
        return rank

    def is_over(self, now: float) -> bool:
        """Return whether the last rank has had its time."""
        return not self._waiting and self._has_answered(now)

    def _has_answered(self, now: float) -> bool:
        """Return whether the last asked rank has answered, or had its time; a stopped process cannot answer."""
        if now < self._next_at or not self._asked:
            return now >= self._next_at
        return bool(self._answers[-1]) or now >= self._last_at or not _can_answer(self._asked[-1].process)

    def hear(self, output: bytes) -> None:
        """Record output of the pipe as the answer of the rank that was asked last."""
        if self._answers and len(self._answers[-1]) < MAX_STACK_BYTES:
            self._answers[-1] += output

    def stacks(self) -> str:
        """Return the stacks of the ranks, each under its name."""
        return "\n".join(
            f"{rank.name}:\n{answer.decode(errors='replace').strip()}"
            for rank, answer in zip(self._asked, self._answers, strict=True)
        )

    def places(self) -> list[str]:
        return [
            f"{rank.name} {_place(answer.decode(errors='replace'), rank.process)}"
            for rank, answer in zip(self._asked, self._answers, strict=True)
        ]


def reason(silence_s: float, watch: Watch, places: Sequence[str]) -> str:
    """Return the reason of a hang: its duration, the place of each rank, and the remedy."""
    after = f"after step {watch.last_step}" if watch.last_step else "since the start"
    where = "; ".join(places)
    return (
        f"no step for {silence_s:.0f} s {after} (launcher.hang_timeout_s {watch.limit_s:g}): {where}."
        " The stacks are in the log; raise hang_timeout_s if steps can take this long"
    )


def _place(stacks: str, process: psutil.Process) -> str:
    """Return where the main thread is: the collective of torch, and the functions that called it."""
    frames = [_Frame(path, int(line), name) for path, line, name in _FRAME.findall(_main_thread(stacks))]
    if not frames:
        return f"gave no stack ({_state(process)})"
    collective = next((frame.name for frame in frames if frame.is_collective), None)
    ours = [str(frame) for frame in frames if frame.is_ours][:2] or [str(frames[0])]
    doing = f"waits in {collective}, called by" if collective else "is in"
    return f"{doing} {', called by '.join(ours)}"


def _main_thread(stacks: str) -> str:
    """Return the last thread of a dump: Python writes the main thread last."""
    begins = [match.end() for match in _THREAD.finditer(stacks)]
    return stacks[begins[-1] :] if begins else ""


def _can_answer(process: psutil.Process) -> bool:
    """Return whether a process is running or sleeping, not stopped or stuck in the kernel."""
    with contextlib.suppress(psutil.Error):
        return process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_SLEEPING)
    return False


def _state(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"it is {process.status()}"
    return "it has ended"
