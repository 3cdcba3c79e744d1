"""A run that makes no steps any more: noticed by its silence, explained by the stacks of all its ranks.

The supervisor asks one process after the other for its Python stacks, so that they do not mix in the pipe they share,
and takes down what comes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import psutil

from runners import processes
from runners.processes import STACK_SIGNAL
from runners.protocol import EVENT_PREFIX

FIRST_STEP_FACTOR = 10
"""So many times the limit is left to the first step: it compiles, connects and draws the weights."""
SLOW_STEP_FACTOR = 10
"""A step may take so many times as long as the slowest one before it, whatever the limit."""
ANSWER_S = 0.5
"""How long one rank has to write its stacks before the next one is asked."""
LATE_ANSWER_S = 5.0
"""The same for one that has not begun to: on a busy machine it may wait for a processor."""
MAX_ASKED = 64
"""Ranks that are asked; more would fill the log with the same."""
MAX_STACK_BYTES = 64 << 10

_STEP = re.compile(rb"^" + re.escape(EVENT_PREFIX) + rb'[^\n]*"event":"step"[^\n]*?"step":(\d{1,10})\b', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) .*\(most recent call first\):", re.MULTILINE)
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


class Watch:
    """Tells from the events that pass whether steps still come; times are given by the caller, in seconds."""

    def __init__(self, limit_s: float | None, now: float) -> None:
        self.limit_s = limit_s
        self.last_step = 0
        self.steps = 0
        """Step events seen, of all ranks."""
        self._since = self._stepped = now
        self._slowest_s = 0.0

    def see(self, output: bytes, now: float) -> None:
        """Look at a piece of output that was cut at line ends."""
        if self.limit_s is None or b'"event":"step"' not in output:
            return
        for match in _STEP.finditer(output):
            step = int(match[1])
            if step > self.last_step:
                if self.last_step:
                    self._slowest_s = max(self._slowest_s, now - self._stepped)
                self.last_step, self._stepped = step, now
            # Also a step that is no new one: each rank tells its own, and engine allreduce begins again.
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
    """Find the processes below this one that answer STACK_SIGNAL, by rank; to others it could mean their end."""
    found = []
    for process in processes.descendants():
        with contextlib.suppress(psutil.Error, OSError):
            if _catches(process.pid, STACK_SIGNAL):
                number = process.environ().get("RANK", "")
                found.append(Rank(process, int(number) if number.isdecimal() else None))
    return sorted(found, key=lambda one: (one.rank is None, one.rank or 0, one.process.pid))


def _catches(pid: int, number: int) -> bool:
    with open(f"/proc/{pid}/status") as status:
        caught = next((line.split()[1] for line in status if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


class _Frame(NamedTuple):
    """One line of a stack."""

    path: str
    line: int
    name: str

    @property
    def is_ours(self) -> bool:
        """Neither of a package nor of Python itself."""
        return "site-packages" not in self.path and "/lib/python3" not in self.path

    @property
    def is_collective(self) -> bool:
        """One of torch's collectives, not what is wrapped around them."""
        return self.path.endswith("/torch/distributed/distributed_c10d.py") and not self.name.startswith("_")

    def __str__(self) -> str:
        return f"{self.name} ({'/'.join(self.path.split('/')[-2:])}:{self.line})"


class Inquiry:
    """Asks each rank of a silent run where it stands."""

    def __init__(self, ranks: Sequence[Rank], now: float) -> None:
        self._waiting = list(ranks[:MAX_ASKED])
        self._asked: list[Rank] = []
        self._heard: list[bytearray] = []
        self._next_at = self._last_at = now

    def step(self, now: float) -> Rank | None:
        """Ask the next rank if it is its turn, and return it."""
        if not self._waiting or not self._has_answered(now):
            return None
        rank = self._waiting.pop(0)
        self._asked.append(rank)
        self._heard.append(bytearray())
        self._next_at, self._last_at = now + ANSWER_S, now + LATE_ANSWER_S
        processes.signal_all([rank.process], STACK_SIGNAL)
        return rank

    def is_over(self, now: float) -> bool:
        """True once the last rank has had its time."""
        return not self._waiting and self._has_answered(now)

    def _has_answered(self, now: float) -> bool:
        """True once the rank that was asked last has had its time; one that is stopped will not use it."""
        if now < self._next_at or not self._asked:
            return now >= self._next_at
        return bool(self._heard[-1]) or now >= self._last_at or not _can_answer(self._asked[-1].process)

    def hear(self, output: bytes) -> None:
        """Take down what comes through the pipe: it belongs to the rank that was asked last."""
        if self._heard and len(self._heard[-1]) < MAX_STACK_BYTES:
            self._heard[-1] += output

    def stacks(self) -> str:
        """Return what the ranks wrote, each under its name."""
        return "\n".join(
            f"{rank.name}:\n{heard.decode(errors='replace').strip()}"
            for rank, heard in zip(self._asked, self._heard, strict=True)
        )

    def places(self) -> list[str]:
        """Say of each rank where it stands."""
        return [
            f"{rank.name} {_place(heard.decode(errors='replace'), rank.process)}"
            for rank, heard in zip(self._asked, self._heard, strict=True)
        ]


def reason(silence_s: float, watch: Watch, places: Sequence[str]) -> str:
    """Put a hang into one sentence: since when, who stands where, and what to do."""
    after = f"after step {watch.last_step}" if watch.last_step else "and none was ever made"
    stand = "; ".join(places)
    return (
        f"no step for {silence_s:.0f} s {after} (launcher.hang_timeout_s {watch.limit_s:g}): {stand}."
        " The stacks are in the log; raise hang_timeout_s if steps may take so long"
    )


def _place(stacks: str, process: psutil.Process) -> str:
    """Say where the main thread stands: in which of torch's operations, called by which function of ours."""
    frames = [_Frame(path, int(line), name) for path, line, name in _FRAME.findall(_main_thread(stacks))]
    if not frames:
        return f"gives no stack ({_state(process)})"
    collective = next((frame.name for frame in frames if frame.is_collective), None)
    ours = [str(frame) for frame in frames if frame.is_ours][:2] or [str(frames[0])]
    doing = f"waits in {collective}, called by" if collective else "stands in"
    return f"{doing} {', called by '.join(ours)}"


def _main_thread(stacks: str) -> str:
    """Cut out the last thread of a dump: Python writes the main one last."""
    begins = [match.end() for match in _THREAD.finditer(stacks)]
    return stacks[begins[-1] :] if begins else ""


def _can_answer(process: psutil.Process) -> bool:
    """True of a process that only needs a processor to do so."""
    with contextlib.suppress(psutil.Error):
        return process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_SLEEPING)
    return False


def _state(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"it is {process.status()}"
    return "it has ended"
