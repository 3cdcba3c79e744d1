"""One rank of an engine, from the configuration file to the exit code; shared by all engines."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch

from runners.config import ENGINES, ConfigError, Problem, RunConfig, check
from runners.engines.meeting import MASTER_PORT
from runners.engines.memory import is_out_of_memory, memory_shortage
from runners.engines.process_group import Place, choose_device, device_name, die_with_parent, join
from runners.engines.process_group import place_from_environment as place_from
from runners.events import Printer
from runners.ports import MAY_TRY_AGAIN, PORT_TAKEN
from runners.processes import STACK_SIGNAL, limit_memory
from runners.protocol import OOM_EXIT_CODE

CONFIG_EXIT_CODE = 2
STDERR = 2
REFUSAL_WAIT_S = 2.0
"""Time that the other ranks wait before they report a refusal: usually rank 0 has reported the same one by then."""


# Messages of gloo and NCCL when another rank does not respond, or has ended.
_TIMED_OUT = re.compile(r"timed? ?out", re.I)
_LOST = re.compile(
    r"connection (?:closed|reset|refused)|broken pipe|socket (?:closed|error)|remote (?:process|peer)", re.I
)


class Rank:
    """State of one rank: configuration, place, device, printer and current phase."""

    def __init__(self, config: RunConfig, place: Place) -> None:
        self.config = config
        self.place = place
        self.printer = Printer(place.rank)
        self.device = torch.device("cpu")
        self.backend = "none"
        self.phase = "model"
        """Current phase for failure reports: model, data, forward, backward or optimizer."""

    @property
    def timeout(self) -> timedelta:
        """Time for which this rank waits for another one."""
        return timedelta(seconds=self.config.launcher.collective_timeout_s)

    def choose_device(self) -> None:
        """Choose and set the device; raise ConfigError if the requested device does not exist."""
        self.take(choose_device(self.config, self.place))

    def take(self, device: torch.device) -> None:
        """Set the device; raise ConfigError if it cannot train the network."""
        if device.type == "cpu" and self.config.model.attention_backend == "flex":
            message = "FlexAttention trains on GPUs only, but this rank uses the CPU; use sdpa, or a node with GPUs"
            raise ConfigError([Problem("model.attention_backend", "flex", message)])
        self.device = device

    def join(self) -> None:
        """Choose the device and join the other ranks.

        Raises ConfigError if the requested device does not exist or the rendezvous fails.
        """
        self.choose_device()
        torch.set_num_threads(self.config.launcher.threads_per_rank)
        self.backend = join(self.place, self.device, self.timeout)

    def emit_start(self, engine: str, memory: str, **fields: Any) -> None:
        """Print the `start` event, see docs/engines.md."""
        self.printer.emit(
            "start",
            engine=engine,
            world_size=self.place.world_size,
            backend=self.backend,
            device=str(self.device),
            device_name=device_name(self.device),
            iterations=self.config.train.iterations,
            memory=memory,
            **fields,
        )

    def emit_end(self, step_times_s: Sequence[float], **fields: Any) -> float:
        """Print the `end` event; return its average step time in seconds, which excludes the first step."""
        rest = step_times_s[1:] or step_times_s
        average = round(sum(rest) / len(rest), 9)
        self.printer.emit("end", iterations=len(step_times_s), average_step_time_s=average, **fields)
        return average

    def report(self, error: BaseException) -> int:
        """Print the `oom` or `error` event and the traceback; return the exit code."""
        lines = traceback.format_exception(error)
        with suppress(OSError):  # the pipe may be closed; the exit code still reports the failure
            if is_out_of_memory(error):
                shortage = memory_shortage(error, self.device)
                self.printer.emit("oom", phase=self.phase, **shortage._asdict(), message=str(error))
            else:
                self.printer.emit("error", traceback="".join(lines), **self._consequence(error))
            # Line by line, because standard error often shares a pipe with the events of other ranks.
            log = Printer(self.place.rank, fd=STDERR)
            for line in "".join(lines).splitlines():
                log.log(line)
        return OOM_EXIT_CODE if is_out_of_memory(error) else 1

    def _consequence(self, error: BaseException) -> dict[str, str]:
        """Return {"reason": ...} if another rank's end or silence caused the error, else {}."""
        if not isinstance(error, RuntimeError):
            return {}
        number, limit = self.place.rank, self.config.launcher.collective_timeout_s
        if _TIMED_OUT.search(str(error)):
            return {
                "reason": f"rank {number} waited longer than {limit} s for another rank, in {self.phase}; check in the"
                " log which rank stopped responding, or raise launcher.collective_timeout_s"
            }
        if _LOST.search(str(error)):
            return {
                "reason": f"rank {number} lost its connection to another rank, which ended, in {self.phase};"
                " check in the log which rank ended and why"
            }
        return {}


Orders = Callable[[], tuple[RunConfig, Place]]


def start(
    engine: str, body: Callable[[Rank], None], *, is_alone: bool = False, orders: Orders | None = None
) -> NoReturn:
    """Run one rank of `python -m runners.engines.<engine> --config FILE` and end the process with its exit code.

    `is_alone`: the engine is a single process, whatever the size of the layout in its configuration. `orders` replaces
    the default parsing of the command line.
    """
    # Python's own handler runs only after a blocking transfer returns; Ctrl-C must act at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # faulthandler writes stacks in the signal handler, so a rank that waits inside a transfer responds too.
    faulthandler.enable(all_threads=True)
    faulthandler.register(STACK_SIGNAL, all_threads=True)
    code = _run(body, orders or (lambda: _orders(engine, is_alone)))
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip destructors: after a failure those of process groups may wait for ranks that wait for this one, and after a
    # success those of DeepSpeed and gloo occasionally abort a process that has finished its work.
    os._exit(code)


def _run(body: Callable[[Rank], None], orders: Orders) -> int:
    try:
        rank = Rank(*orders())
    except ConfigError as error:
        return refuse(error, _rank_number())
    if rank.place.init_method == "env://":  # a manually started rank may outlive its shell
        die_with_parent()
    if (limit := rank.config.launcher.memory_limit_mib) is not None:
        limit_memory(limit)  # already set by the supervisor, but not if the engine is started manually
    try:
        body(rank)
    except ConfigError as error:
        return refuse(error, rank.place.rank)
    except Exception as error:
        return rank.report(error)
    return 0


def _rank_number() -> int:
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


def _orders(engine: str, is_alone: bool) -> tuple[RunConfig, Place]:
    parser = argparse.ArgumentParser(prog=f"python -m {ENGINES[engine].module}", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", type=Path, required=True, help="a RunConfig as JSON")
    path = parser.parse_args().config
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
    if config.parallel.engine != engine:
        message = f"this is engine {engine}, not {config.engine.name}; start python -m {config.engine.module}"
        raise ConfigError([Problem("parallel.engine", config.parallel.engine, message)])
    place = Place() if is_alone else place_from(os.environ)
    if not is_alone and place.world_size != config.world_size:
        message = (
            f"the layout has {config.world_size} ranks, but {place.world_size} processes were started;"
            f" use torchrun --nproc-per-node {config.gpus_per_node}, or a layout of {place.world_size} ranks"
        )
        raise ConfigError([Problem("parallel", config.world_size, message)])
    return config, place
