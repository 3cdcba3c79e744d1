"""Samples once a second what a script uses: memory and processor of its processes, the node's network, its GPUs.

The names are those of engines (`runners/telemetry`), which use psutil and pynvml; here the standard library reads /proc
and calls NVML. All of it happens in threads of its own, so that a driver that hangs holds up nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parlab.client import nvml
from parlab.client.launch import Launch, RankCount, node_rank
from parlab.client.nvml import Device, Library
from parlab.client.traffic import Counts, Rates

EVERY_S = 1.0
MAX_PROCESSES = 2_000
MAX_GPUS = 64
_PROC = Path("/proc")


def is_wanted(environ: Mapping[str, str], choice: bool | None) -> bool:
    """Return whether to sample: the argument of `init`, else PARLAB_TELEMETRY, else yes."""
    if choice is not None:
        return choice
    return environ.get("PARLAB_TELEMETRY", "1").lower() not in ("0", "no", "off", "false")


class Telemetry:
    """The threads that sample; `append` takes event lines and must not block."""

    def __init__(
        self,
        append: Callable[[bytes], object],
        *,
        gpus: Callable[[], Sequence[str]],
        first_rank: int | None,
        node_rank: int,
        root: int | None,
        describe: Callable[[dict[str, Any]], object] | None = None,
        ranks: RankCount | None = None,
    ) -> None:
        """`gpus` returns UUIDs or indices; `first_rank` is the rank of the first one, by default counted over nodes.

        `describe` gets the GPUs and the driver once. One process of each node samples the descendants of process
        `root` and the network of the node. `ranks` tells where their number changes.
        """
        self._append, self._describe = append, describe
        self._gpus, self._first_rank, self._node_rank, self._root = gpus, first_rank, node_rank, root
        self._ranks = ranks
        self._stop = threading.Event()

    def start(self) -> None:
        """Start to sample."""
        if self._root is not None and _PROC.is_dir():
            threading.Thread(target=self._sample_node, name="parlab-telemetry", daemon=True).start()
        if self._ranks is not None:
            threading.Thread(target=self._look_at_ranks, args=(self._ranks,), name="parlab-ranks", daemon=True).start()
        threading.Thread(target=self._sample_gpus, name="parlab-gpus", daemon=True).start()

    def stop(self) -> None:
        """Stop after the current sample, without waiting for it."""
        self._stop.set()

    def _sample_node(self) -> None:
        assert self._root is not None
        processes, network = Processes(self._root), Rates(interface_counts)
        while not self._stop.wait(EVERY_S):
            with contextlib.suppress(OSError, ValueError):
                memory, percent = processes.sample()
                numbers = {"memory_bytes": memory, "cpu_pct": percent, **network.rates()}
                self._append(event_line(-1 - self._node_rank, time.time(), numbers))

    def _look_at_ranks(self, ranks: RankCount) -> None:
        while not self._stop.wait(EVERY_S):
            if lines := ranks.change():
                self._append(lines)

    def _sample_gpus(self) -> None:
        with nvml.opened() as library:
            devices = [] if library is None else [library.device(name) for name in self._gpus()]
            if library is not None and self._describe is not None:
                self._describe(hardware(library, devices))
            first_rank = self._node_rank * len(devices) if self._first_rank is None else self._first_rank
            while any(devices) and not self._stop.is_set():
                for position, device in enumerate(devices):
                    if device is not None and (numbers := device.counters()):
                        self._append(event_line(first_rank + position, time.time(), numbers))
                self._stop.wait(EVERY_S)


def hardware(library: Library, used: Sequence[Device | None]) -> dict[str, Any]:
    """Describe the GPUs of the node, those that the process uses, and the driver, as engines do."""
    every = [library.device(str(index)) for index in range(min(library.count(), MAX_GPUS))]
    gpus = [{"index": index, **device.description()} for index, device in enumerate(every) if device is not None]
    return {
        "gpus": gpus,
        "gpus_used": [device.description() for device in used if device is not None],
        "driver": library.driver(),
    }


def event_line(rank: int, at: float, numbers: Mapping[str, float]) -> bytes:
    """Return a sample as an event line; rank -1 is the first node, -2 the second, other ranks are those of a GPU."""
    event = {"parlab": 1, "t": round(at, 3), "rank": rank, "event": "telemetry", **numbers}
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def visible_gpus(environ: Mapping[str, str], *, local_rank: int, local_size: int) -> list[str]:
    """Return the GPU of a rank, as CUDA sees it: an index or UUID; those of all ranks for `local_size` 0.

    Without a driver the list is harmless: no GPU answers. Slurm may show each rank only its own GPU.
    """
    names = environ.get("CUDA_VISIBLE_DEVICES")
    if names is not None:
        visible = [name.strip() for name in names.split(",")]
        stop = next((at for at, name in enumerate(visible) if not name or name.startswith("-")), len(visible))
        visible = visible[:stop]
    else:
        visible = [str(index) for index in range(nvml.count())]
    if local_size == 0 or not visible:
        return visible
    return [visible[local_rank if local_rank < len(visible) and len(visible) > 1 else 0]]


class Processes:
    """Memory and processor time of a process and its descendants."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._at = time.monotonic()
        self._seconds: dict[int, float] = {}
        self._seconds = self._memory_and_seconds()[1]

    def sample(self) -> tuple[int, float]:
        """Return resident memory in bytes, and the processor use since the last sample in per cent of one core.

        Memory that processes share is counted in each of them.
        """
        memory, seconds = self._memory_and_seconds()
        now = time.monotonic()
        used = sum(max(0.0, spent - self._seconds.get(pid, 0.0)) for pid, spent in seconds.items())
        percent = 100 * used / max(now - self._at, 1e-3)
        self._at, self._seconds = now, seconds
        return memory, round(percent, 1)

    def _memory_and_seconds(self) -> tuple[int, dict[int, float]]:
        memory, seconds = 0, {}
        for pid in self._pids():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name of a command may contain spaces and parentheses; the fields follow its last parenthesis.
                fields = Path(_PROC, str(pid), "stat").read_text().rpartition(")")[2].split()
                seconds[pid] = (int(fields[11]) + int(fields[12])) / self._ticks
                memory += int(fields[21]) * self._page
        return memory, seconds

    def _pids(self) -> Iterator[int]:
        """Yield the root and its descendants; the kernel lists the children of each thread."""
        waiting, count = [self._root], 0
        while waiting and count < MAX_PROCESSES:
            pid = waiting.pop()
            count += 1
            yield pid
            with contextlib.suppress(OSError):
                for task in Path(_PROC, str(pid), "task").iterdir():
                    with contextlib.suppress(OSError, ValueError):
                        waiting += [int(child) for child in (task / "children").read_text().split()]


def interface_counts() -> dict[str, Counts]:
    """Return bytes received and sent since the start of the machine, by interface."""
    counts = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(_PROC, "net", "dev").read_text().splitlines()[2:]:
            name, _, numbers = line.partition(":")
            fields = numbers.split()
            counts[name.strip()] = Counts(int(fields[0]), int(fields[8]))
    return counts


def of_rank(
    append: Callable[[bytes], object],
    place: Launch,
    environ: Mapping[str, str],
    describe: Callable[[dict[str, Any]], object] | None = None,
) -> Telemetry:
    """Return the telemetry of one rank: its GPU, and for the first rank of a node also processes and network."""
    # The launcher of a node is the parent of its ranks; a script without a launcher has a parent of its own.
    root = os.getppid() if place.world_size > 1 else os.getpid()
    return Telemetry(
        append,
        gpus=lambda: visible_gpus(environ, local_rank=place.local_rank, local_size=1),
        first_rank=max(place.rank, 0),
        node_rank=node_rank(environ),
        root=root if place.local_rank == 0 else None,
        describe=describe,
        ranks=RankCount(environ) if place.world_size > 1 else None,
    )


def of_node(
    append: Callable[[bytes], object],
    environ: Mapping[str, str],
    describe: Callable[[dict[str, Any]], object] | None = None,
) -> Telemetry:
    """Return the telemetry of a wrapped command: all GPUs of its node, its processes, the network."""
    return Telemetry(
        append,
        gpus=lambda: visible_gpus(environ, local_rank=0, local_size=0),
        first_rank=None,
        node_rank=node_rank(environ),
        root=os.getpid(),
        describe=describe,
    )
