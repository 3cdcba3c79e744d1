"""Start ranks in the network namespaces of their hosts and wait for them, like torchrun."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from runners.config import RunConfig
from runners.engines.process.events import Printer
from runners.links.namespaces import DEVICE, address, enter
from runners.supervisor.processes import die_with

MASTER_PORT = 29500
"""Always free, because the first rank's namespace is new."""
TERM_GRACE_S = 3.0
POLL_S = 0.02
NODE = -1
"""Rank of events of the node itself."""
_STDERR = 2


def rank_environment(config: RunConfig, rank: int) -> dict[str, str]:
    """Return a rank's environment: its place, and settings that make gloo and NCCL use the links."""
    host = rank // config.ranks_per_host
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(config.world_size),
        # All ranks are on one machine, whatever their emulated hosts, so each needs its own GPU.
        "LOCAL_WORLD_SIZE": str(config.world_size),
        "MASTER_ADDR": address(0),
        "MASTER_PORT": str(MASTER_PORT),
        "GLOO_SOCKET_IFNAME": DEVICE,
        "TP_SOCKET_IFNAME": DEVICE,
        "NCCL_SOCKET_IFNAME": DEVICE,
        # With different host ids NCCL neither uses shared memory nor copies between GPUs, which would bypass the links.
        "NCCL_HOSTID": f"parlab-host-{host}",
        "NCCL_NET": "Socket",
        "NCCL_IB_DISABLE": "1",
    }


def run_ranks(
    config: RunConfig, config_path: Path, namespaces: Sequence[int], become: Callable[[list[str]], None]
) -> int:
    """Start all ranks and wait; end the others when one fails. Return 0, or the exit code of the first failed rank.

    `become` runs an engine with the given arguments in a new process. The calling process must have a single thread.
    """
    arguments = ["-m", f"runners.engines.{config.parallel.engine}", "--config", str(config_path)]
    ranks: dict[int, int] = {}
    try:
        for rank in range(config.world_size):
            environment = rank_environment(config, rank)
            pid = fork_inside(namespaces[rank // config.ranks_per_host], environment, lambda: become(arguments))
            ranks[pid] = rank
        return _wait(ranks)
    finally:
        _end(ranks)


def start_python(arguments: list[str]) -> None:
    """Replace this process with a new Python interpreter."""
    os.execv(sys.executable, [sys.executable, *arguments])


def fork_inside(namespace: int, environment: dict[str, str], become: Callable[[], None]) -> int:
    """Fork a process that enters a namespace and calls `become`; return its process id. It dies with its parent."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with(parent)()
        enter(namespace)
        # Close the inherited file descriptors of namespaces and devices.
        os.closerange(_STDERR + 1, 1 << 12)
        os.environ.update(environment)
        become()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(ranks: dict[int, int]) -> int:
    """Wait for all ranks or for the first failure; remove ranks that have ended from `ranks`. Return the exit code."""
    while ranks:
        pid, status = os.waitpid(-1, 0)
        rank = ranks.pop(pid, None)
        if rank is None:
            return _report_dead_forwarder()
        code = os.waitstatus_to_exitcode(status)
        if code:
            # In torchrun's format, which the supervisor parses.
            sys.stdout.write(f"Root Cause (first rank that failed):\n  rank: {rank}\n  exitcode: {code}\n")
            sys.stdout.flush()
            return code if code > 0 else 1
    return 0


def _report_dead_forwarder() -> int:
    """Print the error and return the exit code; without the forwarder the ranks would only time out."""
    reason = "the process that forwards packets between ranks was killed, possibly because memory ran out"
    Printer(NODE).emit("error", traceback=f"{reason}; start the run again")
    return 1


def _end(ranks: dict[int, int]) -> None:
    """Terminate the remaining ranks, kill them after TERM_GRACE_S, and reap them."""
    deadline = time.monotonic() + TERM_GRACE_S
    number = signal.SIGTERM
    while ranks:
        for pid in list(ranks):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            del ranks[pid]
        number = signal.SIGKILL if time.monotonic() > deadline else number
        time.sleep(POLL_S if ranks else 0)


# --- one import for all ranks ----------------------------------------------------------------------------------------


class Nursery:
    """A process that has already imported the engine and forks all ranks on request.

    Importing torch takes seconds of processor time per rank; here it happens once, while the links are measured.
    """

    def __init__(self, pid: int, orders: int) -> None:
        self._pid: int | None = pid
        self._orders = orders

    def run(self) -> int:
        """Start the ranks and wait for them; return the exit code, as `run_ranks` does."""
        os.write(self._orders, b"!")
        pid, status = os.waitpid(-1, 0)
        if pid != self._pid:
            return _report_dead_forwarder()
        code = os.waitstatus_to_exitcode(status)
        self._pid = None
        return code if code >= 0 else 1

    def close(self) -> None:
        """Kill the process if it is still running."""
        os.close(self._orders)
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


@contextmanager
def nursery(config: RunConfig, config_path: Path, namespaces: Sequence[int]) -> Iterator[Nursery]:
    """Start a nursery; it ends with the with statement, or with its parent process."""
    module = f"runners.engines.{config.parallel.engine}"
    orders, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            die_with(parent)()
            os.close(writer)
            engine = importlib.import_module(module)
            if os.read(orders, 1):
                code = run_ranks(config, config_path, namespaces, lambda arguments: _enter(engine.main, arguments))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(orders)
    process = Nursery(pid, writer)
    try:
        yield process
    finally:
        process.close()


def _enter(main: Callable[[], None], arguments: list[str]) -> None:
    sys.argv = arguments[1:]
    main()
