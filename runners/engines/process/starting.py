"""What an engine does before and after its work, without torch: engine `command` starts other programs at once."""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from parlab.client.stopping import expect_warning
from runners.config import ENGINES, ConfigError, Problem, RunConfig, check
from runners.engines.process.events import Printer
from runners.node.launch.ports import MAY_TRY_AGAIN, PORT_TAKEN
from runners.supervisor.processes import STACK_SIGNAL, limit_memory

CONFIG_EXIT_CODE = 2
STDERR = 2
MASTER_PORT = "MASTER_PORT"
"""Environment variable with the port; also the field of a Problem with a port that the launcher chose."""
REFUSAL_WAIT_S = 2.0
"""Time that the other ranks wait before they report a refusal: usually rank 0 has reported the same one by then."""
PR_SET_PDEATHSIG = 1


def handle_signals() -> None:
    """Let this process end at once on Ctrl-C, and print its stacks when the supervisor asks for them."""
    # Python's own handler runs only after a blocking transfer returns; Ctrl-C must act at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # faulthandler writes stacks in the signal handler, so a rank that waits inside a transfer responds too.
    faulthandler.enable(all_threads=True)
    # A warning may come before the checkpoints are open. If it is the signal that asks for stacks, both handlers run.
    faulthandler.register(STACK_SIGNAL, all_threads=True, chain=expect_warning() == STACK_SIGNAL)


def end(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip destructors: after a failure those of process groups may wait for ranks that wait for this one, and after a
    # success those of DeepSpeed and gloo occasionally abort a process that has finished its work.
    os._exit(code)


def keep_limits(config: RunConfig) -> None:
    """Limit the memory: the supervisor has done so already, but not if the engine is started by hand."""
    if (limit := config.launcher.memory_limit_mib) is not None:
        limit_memory(limit)


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent process ends for any reason (Linux only)."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return  # refused by a sandbox; the launcher's own signals still reach the process group
    if os.getppid() != parent:  # the parent ended before prctl took effect, so no signal will come
        os.kill(os.getpid(), signal.SIGKILL)


def rank_number() -> int:
    """Return the number of this rank among the others, before its place is known."""
    number = os.environ.get("RANK", "")
    return int(number) if number.isdecimal() else 0


def refuse(error: ConfigError, rank: int) -> int:
    """Report why a configuration cannot run here, as events and on standard error; return the exit code.

    Usually all ranks have the same problem: rank 0 reports it, and its launcher ends the others before they repeat it.
    """
    if MAY_TRY_AGAIN in os.environ and any(problem.field == MASTER_PORT for problem in error.problems):
        return PORT_TAKEN
    if rank:
        time.sleep(REFUSAL_WAIT_S)
    with suppress(OSError):  # the pipe may be closed; the exit code still reports the failure
        for problem in error.problems:
            value = _event_value(problem.value)
            Printer(rank).emit("refused", field=problem.field, value=value, message=problem.message)
            Printer(rank, fd=STDERR).log(str(problem))
    return CONFIG_EXIT_CODE


def _event_value(value: Any) -> str | int | float | None:
    return value if isinstance(value, str | int | float | None) else json.dumps(value, default=str)[:200]


def read_config(engine: str) -> RunConfig:
    """Read the command line `--config FILE` and the configuration of this engine; raises ConfigError."""
    parser = argparse.ArgumentParser(prog=f"python -m {ENGINES[engine].module}", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", type=Path, required=True, help="a RunConfig as JSON")
    config = config_at(parser, parser.parse_args().config)
    if config.parallel.engine != engine:
        message = f"this is engine {engine}, not {config.engine.name}; start python -m {config.engine.module}"
        raise ConfigError([Problem("parallel.engine", config.parallel.engine, message)])
    return config


def config_at(parser: argparse.ArgumentParser, path: Path) -> RunConfig:
    """Read a configuration; raises ConfigError, and ends the process through the parser for a file without one."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        parser.error(f"cannot read --config {path}: {error.strerror}; use the path of a RunConfig")
    except ValueError as error:
        parser.error(f"--config {path} is not valid JSON: {error}; write it with RunConfig.resolved()")
    if not isinstance(data, dict):
        parser.error(
            f"--config {path} contains a {type(data).__name__}, not an object; write it with RunConfig.resolved()"
        )
    config, problems = check(data)
    if config is None:
        raise ConfigError(problems)
    return config


def report(error: BaseException, printer: Printer, event: str = "error", **fields: Any) -> None:
    """Print the event of an error, and its traceback on standard error."""
    with suppress(OSError):  # the pipe may be closed; the exit code still reports the failure
        printer.emit(event, **fields)
        # Line by line, because standard error often shares a pipe with the events of other ranks.
        log = Printer(printer.rank, fd=STDERR)
        for line in traceback_of(error).splitlines():
            log.log(line)


def traceback_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
