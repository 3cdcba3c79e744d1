"""One rank of an engine from its configuration file to its exit code: what all engines but the pipeline's share."""

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
"""How long other ranks leave it to rank 0 to say what is wrong, before they say it too."""


# What gloo and NCCL say when another rank is silent, or gone.
_TIMED_OUT = re.compile(r"timed? ?out", re.I)
_LOST = re.compile(
    r"connection (?:closed|reset|refused)|broken pipe|socket (?:closed|error)|remote (?:process|peer)", re.I
)


class Rank:
    """What an engine knows of itself: configuration, place, device, where it prints, and what it is doing."""

    def __init__(self, config: RunConfig, place: Place) -> None:
        self.config = config
        self.place = place
        self.printer = Printer(place.rank)
        self.device = torch.device("cpu")
        self.backend = "none"
        self.phase = "model"
        """For the report of a failure: model, data, forward, backward or optimizer."""

    @property
    def timeout(self) -> timedelta:
        """How long this rank waits for another one."""
        return timedelta(seconds=self.config.launcher.collective_timeout_s)

    def choose_device(self) -> None:
        """Take a device; raises ConfigError where there is no such device."""
        self.take(choose_device(self.config, self.place))

    def take(self, device: torch.device) -> None:
        """Take this device; raises ConfigError where it cannot train the network."""
        if device.type == "cpu" and self.config.model.attention_backend == "flex":
            message = "FlexAttention trains on GPUs only, this rank has the CPU; use sdpa, or a node with GPUs"
            raise ConfigError([Problem("model.attention_backend", "flex", message)])
        self.device = device

    def join(self) -> None:
        """Take a device and meet the other ranks; raises ConfigError where there is no such device."""
        self.choose_device()
        torch.set_num_threads(self.config.launcher.threads_per_rank)
        self.backend = join(self.place, self.device, self.timeout)

    def emit_start(self, engine: str, memory: str, **fields: Any) -> None:
        """Print the `start` event of docs/engines.md."""
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
        """Print the `end` event and return its average in seconds, which leaves out the first step."""
        rest = step_times_s[1:] or step_times_s
        average = round(sum(rest) / len(rest), 9)
        self.printer.emit("end", iterations=len(step_times_s), average_step_time_s=average, **fields)
        return average

    def report(self, error: BaseException) -> int:
        """Print the event that tells what went wrong, and the traceback for the log; return the exit code."""
        lines = traceback.format_exception(error)
        with suppress(OSError):  # nobody reads any more: the exit code still tells
            if is_out_of_memory(error):
                shortage = memory_shortage(error, self.device)
                self.printer.emit("oom", phase=self.phase, **shortage._asdict(), message=str(error))
            else:
                self.printer.emit("error", traceback="".join(lines), **self._consequence(error))
            # Line by line: standard error often shares a pipe with the events of other ranks.
            log = Printer(self.place.rank, fd=STDERR)
            for line in "".join(lines).splitlines():
                log.log(line)
        return OOM_EXIT_CODE if is_out_of_memory(error) else 1

    def _consequence(self, error: BaseException) -> dict[str, str]:
        """Return {"reason": ...} where another rank's end or silence is behind an error, and nothing elsewhere."""
        if not isinstance(error, RuntimeError):
            return {}
        number, limit = self.place.rank, self.config.launcher.collective_timeout_s
        if _TIMED_OUT.search(str(error)):
            return {
                "reason": f"rank {number} waited longer than {limit} s for another rank, in {self.phase}; see in the"
                " log which rank fell silent, or raise launcher.collective_timeout_s"
            }
        if _LOST.search(str(error)):
            return {
                "reason": f"rank {number} lost its connection to another rank, in {self.phase}: that one ended;"
                " see in the log which and why"
            }
        return {}


Orders = Callable[[], tuple[RunConfig, Place]]


def start(
    engine: str, body: Callable[[Rank], None], *, is_alone: bool = False, orders: Orders | None = None
) -> NoReturn:
    """Run one rank of `python -m runners.engines.<engine> --config FILE` and end the process with its exit code.

    `is_alone`: the engine is one process whatever the size of the layout that it works on. `orders`: read the command
    line in another way.
    """
    # Python's own handler would wait as long as a transfer does; Ctrl-C is meant now.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Written by the handler itself, so that a rank that waits inside a transfer answers too.
    faulthandler.enable(all_threads=True)
    faulthandler.register(STACK_SIGNAL, all_threads=True)
    code = _run(body, orders or (lambda: _orders(engine, is_alone)))
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: after a failure the destructors of process groups may wait for ranks that wait for this one, and after a
    # success those of DeepSpeed and gloo now and then abort a process that has done all its work.
    os._exit(code)


def _run(body: Callable[[Rank], None], orders: Orders) -> int:
    try:
        rank = Rank(*orders())
    except ConfigError as error:
        return refuse(error, _rank_number())
    if rank.place.init_method == "env://":  # a person may well close the shell from which a rank was started by hand
        die_with_parent()
    if (limit := rank.config.launcher.memory_limit_mib) is not None:
        limit_memory(limit)  # the supervisor has done so already; whoever runs this by hand has not
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
    """Say why a configuration cannot run here, as an event and for people; returns the exit code.

    Mostly all ranks find the same. Where rank 0 has said it, its launcher ends the others before they repeat it.
    """
    if MAY_TRY_AGAIN in os.environ and any(problem.field == MASTER_PORT for problem in error.problems):
        return PORT_TAKEN
    if rank:
        time.sleep(REFUSAL_WAIT_S)
    with suppress(OSError):  # nobody reads any more: the exit code still tells
        for problem in error.problems:
            Printer(rank).emit("refused", field=problem.field, value=_shown(problem.value), message=problem.message)
            Printer(rank, fd=STDERR).log(str(problem))
    return CONFIG_EXIT_CODE


def _shown(value: Any) -> str | int | float | None:
    return value if isinstance(value, str | int | float | None) else json.dumps(value, default=str)[:200]


def _orders(engine: str, is_alone: bool) -> tuple[RunConfig, Place]:
    parser = argparse.ArgumentParser(prog=f"python -m {ENGINES[engine].module}", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", type=Path, required=True, help="a RunConfig as JSON")
    path = parser.parse_args().config
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        parser.error(f"--config {path} cannot be read: {error.strerror}; give the path of a RunConfig")
    except ValueError as error:
        parser.error(f"--config {path} is no JSON: {error}; write it with RunConfig.resolved()")
    if not isinstance(data, dict):
        parser.error(f"--config {path} holds a {type(data).__name__}, not an object; write RunConfig.resolved()")
    config, problems = check(data)
    if config is None:
        raise ConfigError(problems)
    if config.parallel.engine != engine:
        message = f"this is engine {engine}, not {config.engine.name}; start python -m {config.engine.module}"
        raise ConfigError([Problem("parallel.engine", config.parallel.engine, message)])
    place = Place() if is_alone else place_from(os.environ)
    if not is_alone and place.world_size != config.world_size:
        message = (
            f"the layout has {config.world_size} ranks, this is one of {place.world_size} processes;"
            f" use torchrun --nproc-per-node {config.gpus_per_node}, or a layout of {place.world_size} ranks"
        )
        raise ConfigError([Problem("parallel", config.world_size, message)])
    return config, place
