"""What launchers say of the processes that they lost: which rank, where, and of what. Pure."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple


class Death(NamedTuple):
    """One process that ended and should not have."""

    rank: int | None
    host: str
    """Empty where the launcher does not say."""
    code: int
    """Exit code; negative for a signal."""


# torchrun's block about one rank, in its summary of a failure (torch 2.x).
_TORCHRUN = re.compile(r"host\s+: (\S+)\s+rank\s+: (\d+) \(local_rank: \d+\)\s+exitcode\s+: (-?\d+)")
_TORCHRUN_SUMMARY = re.compile(r"^(?:\S+ )?FAILED\s*$|Root Cause \(first observed failure\)", re.MULTILINE)
# Open MPI 4 (mpirun) and 5 (prterun).
_OPEN_MPI_SIGNAL = re.compile(r"process rank (\d+) with PID \d+ on node\s+(\S+)\s+exited on\s+signal (\d+)", re.DOTALL)
_OPEN_MPI_CODE = re.compile(r"Process name: \[\S*,(\d+)\]\s+Exit code:\s+(\d+)")
# MPICH's Hydra, which does not say the rank.
_MPICH = re.compile(r"BAD TERMINATION OF ONE OF YOUR.*?PID \d+ RUNNING AT (\S+)\s+=\s+EXIT CODE: (\d+)", re.DOTALL)
_MPICH_SIGNAL = re.compile(r"TERMINATED WITH THE EXIT STRING: .*\(signal (\d+)\)")
# Slurm's srun; a signal is written in words.
_SRUN = re.compile(r"srun: error: (\S+): tasks? (\d+)\S*: (?:Exited with exit code (\d+)|(\w[\w ]*))")
_SRUN_WORDS = {"Killed": 9, "Segmentation fault": 11, "Aborted": 6, "Terminated": 15, "Bus error": 7}
_DEEPSPEED = re.compile(r"--local_rank=(\d+).*? exits with return code = (-?\d+)")
_ENDED_BY_THE_LAUNCHER = -signal.SIGTERM


def find_deaths(text: str) -> list[Death]:
    """Find what a launcher's last words tell, the first to die first; empty where it says nothing.

    Formats: torchrun of torch 2, mpirun of Open MPI 4 and 5, Hydra of MPICH 4, srun of Slurm 20 to 24, DeepSpeed's
    launcher 0.9 to 0.19.
    """
    return _of_torchrun(text) or _of_open_mpi(text) or _of_mpich(text) or _of_srun(text) or _of_deepspeed(text)


def dead_rank(deaths: list[Death], explained: set[int], *, only_consequences: bool) -> Death | None:
    """Choose the death that explains the others, or None where what the ranks told does.

    `explained` are the ranks that told what befell them. A signal tells nothing itself; an exit code without a word is
    the cause where all others complain of a rank that is gone (`only_consequences`).
    """
    silent = [death for death in deaths if death.rank not in explained and death.code != _ENDED_BY_THE_LAUNCHER]
    killed = [death for death in silent if death.code < 0]
    return next(iter(killed or (silent if only_consequences else [])), None)


def _of_torchrun(text: str) -> list[Death]:
    root = text.rfind("Root Cause")
    if root < 0:
        return []
    start = max((match.start() for match in _TORCHRUN_SUMMARY.finditer(text, 0, root)), default=root)
    # What was observed first stands last.
    parts = text[root:], text[start:root]
    return [Death(int(rank), host, int(code)) for part in parts for host, rank, code in _TORCHRUN.findall(part)]


def _of_open_mpi(text: str) -> list[Death]:
    if found := _OPEN_MPI_SIGNAL.search(text):
        return [Death(int(found[1]), found[2], -int(found[3]))]
    found = _OPEN_MPI_CODE.search(text)
    return [Death(int(found[1]), "", int(found[2]))] if found else []


def _of_mpich(text: str) -> list[Death]:
    found = _MPICH.search(text)
    if found is None:
        return []
    by_signal = _MPICH_SIGNAL.search(text, found.end())
    return [Death(None, found[1], -int(by_signal[1]) if by_signal else int(found[2]))]


def _of_srun(text: str) -> list[Death]:
    deaths = []
    for host, rank, code, words in _SRUN.findall(text):
        number = int(code) if code else -_SRUN_WORDS.get(words.strip(), 0)
        if number:
            deaths.append(Death(int(rank), host, number))
    return deaths


def _of_deepspeed(text: str) -> list[Death]:
    return [Death(int(rank), "", int(code)) for rank, code in _DEEPSPEED.findall(text)]
