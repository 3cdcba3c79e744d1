"""One rank of an engine, from the configuration file to the exit code; shared by all engines."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch

from parlab.client.stopping import CHECKPOINTED
from runners.config import ConfigError, Problem, RunConfig
from runners.engines.process.events import Printer
from runners.engines.process.memory import is_out_of_memory, memory_shortage
from runners.engines.process.process_group import Place, barrier, choose_device, device_name, join, leave
from runners.engines.process.process_group import place_from_environment as place_from
from runners.engines.process.starting import (
    die_with_parent,
    end,
    handle_signals,
    keep_limits,
    rank_number,
    read_config,
    refuse,
    report,
    traceback_of,
)
from runners.wire.protocol import OOM_EXIT_CODE

# Messages of gloo and NCCL when another rank does not respond, or has ended.
_TIMED_OUT = re.compile(r"timed? ?out", re.I)
_LOST = re.compile(
    r"connection (?:closed|reset|refused)|broken pipe|socket (?:closed|error)|remote (?:process|peer)", re.I
)


class Checkpointed(Exception):
    """This rank was warned of its end and has written a checkpoint, as all others have."""


class Rank:
    """State of one rank: configuration, place, device, printer and current phase."""

    def __init__(self, config: RunConfig, place: Place) -> None:
        self.config = config
        self.place = place
        self.printer = Printer(place.rank)
        self.device = torch.device("cpu")
        self.backend = "none"
        self.phase = "model"
        """Current phase for failure reports: model, data, forward, backward, optimizer or checkpoint."""
        self.done = 0
        """Steps that an earlier attempt has made, from whose checkpoint this one continues."""

    @property
    def timeout(self) -> timedelta:
        """Time for which this rank waits for another one."""
        return timedelta(seconds=self.config.launcher.collective_timeout_s)

    def is_warmup(self, step: int) -> bool:
        """Return whether a step is one of the first of this attempt, which are measured but not counted."""
        return step - self.done <= self.config.train.warmup_steps

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
        """Print the `start` event, see docs/understand/engines.md."""
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
        """Print the `end` event; return its average step time in seconds, which excludes the first step.

        An attempt that finds all steps done has none.
        """
        rest = step_times_s[1:] or step_times_s
        average = round(sum(rest) / len(rest), 9) if rest else 0.0
        self.printer.emit("end", iterations=len(step_times_s), average_step_time_s=average, **fields)
        return average

    def report(self, error: BaseException) -> int:
        """Print the `oom` or `error` event and the traceback; return the exit code."""
        if is_out_of_memory(error):
            shortage = memory_shortage(error, self.device)
            report(error, self.printer, "oom", phase=self.phase, **shortage._asdict(), message=str(error))
            return OOM_EXIT_CODE
        report(error, self.printer, traceback=traceback_of(error), **self._consequence(error))
        return 1

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
    handle_signals()
    end(_run(body, orders or (lambda: _orders(engine, is_alone))))


def _run(body: Callable[[Rank], None], orders: Orders) -> int:
    try:
        rank = Rank(*orders())
    except ConfigError as error:
        return refuse(error, rank_number())
    if rank.place.init_method == "env://":  # a manually started rank may outlive its shell
        die_with_parent()
    keep_limits(rank.config)
    try:
        body(rank)
    except ConfigError as error:
        return refuse(error, rank.place.rank)
    except Checkpointed:
        # All together: a launcher ends the others as soon as one has ended.
        barrier(rank.device)
        leave()
        return CHECKPOINTED
    except Exception as error:
        return rank.report(error)
    return 0


def _orders(engine: str, is_alone: bool) -> tuple[RunConfig, Place]:
    config = read_config(engine)
    place = Place() if is_alone else place_from(os.environ)
    if not is_alone and place.world_size != config.world_size:
        message = (
            f"the layout has {config.world_size} ranks, but {place.world_size} processes were started;"
            f" use torchrun --nproc-per-node {config.gpus_per_node}, or a layout of {place.world_size} ranks"
        )
        raise ConfigError([Problem("parallel", config.world_size, message)])
    return config, place
