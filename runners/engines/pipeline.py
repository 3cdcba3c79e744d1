"""The pipeline engine: a GPT split into stages, one rank each, trained on made-up text. See docs/engines.md.

`python -m runners.engines.pipeline --config config.json` under torchrun or alone; or each rank by hand, see --help.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import torch

from runners.config import ConfigError
from runners.engines.command_line import Request, read_command_line
from runners.engines.memory import is_out_of_memory, memory_shortage
from runners.engines.process_group import barrier, choose_device, device_name, die_with_parent, join, leave
from runners.engines.stage import PipelineStage, StepResult
from runners.engines.transfers import open_channels
from runners.events import Printer
from runners.protocol import OOM_EXIT_CODE

CONFIG_EXIT_CODE = 2
STDERR = 2


class Engine:
    """One rank from start to end."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.device: torch.device | None = None
        self.printer = Printer(request.place.rank)
        self.stage: PipelineStage | None = None

    def run(self) -> None:
        """Train all iterations and print events. Raises ConfigError, and whatever else goes wrong."""
        config, place = self.request.config, self.request.place
        self.device = device = choose_device(config, place)
        torch.set_num_threads(config.launcher.threads_per_rank)
        timeout = timedelta(seconds=config.launcher.collective_timeout_s)
        if self.request.by_hand:
            self.printer.log(f"Rank {place.rank} of {place.world_size} waits for the others at {place.init_method}")
        backend = join(place, device, timeout)
        is_ring = config.parallel.virtual_stages > 1
        channels = open_channels([range(place.world_size)], place.rank, device, timeout, is_ring=is_ring)
        self.stage = stage = PipelineStage(config, place.rank, device, channels)
        self.printer.emit(
            "start",
            engine="pipeline",
            world_size=place.world_size,
            backend=backend,
            device=str(device),
            device_name=device_name(device),
            iterations=config.train.iterations,
            parameters=stage.num_parameters,
            stage=place.rank,
            layers=[layer for chunk in stage.layers for layer in (chunk[0], chunk[-1])],
            memory=stage.memory.source,
        )
        step_times = []
        for step in range(1, config.train.iterations + 1):
            result = stage.train_step(step)
            step_times.append(result.times.step_time_s)
            self._print_step(step, result)
        average = _average_without_first(step_times)
        self.printer.emit("end", iterations=config.train.iterations, average_step_time_s=round(average, 9))
        if self.request.by_hand:
            self.printer.log(
                f"Finished running {config.train.iterations} iterations,"
                f" averaged (exclude the first iter) run time: {average:.6g}"
            )
        barrier(device)
        leave()

    def _print_step(self, step: int, result: StepResult) -> None:
        train, times = self.request.config.train, result.times
        self.printer.emit(
            "step",
            step=step,
            warmup=step <= train.warmup_steps,
            step_time_s=round(times.step_time_s, 9),
            samples=train.global_batch_size,
            tokens=train.global_batch_size * self.request.config.model.sequence_length,
            **({} if result.loss is None else {"loss": result.loss}),
            memory_bytes=result.memory_bytes,
            memory_peak_bytes=result.memory_peak_bytes,
            timers_s={name: round(seconds, 9) for name, seconds in times.timers_s.items()},
        )
        if self.request.all_operations or prints_operations(step):
            self.printer.emit_operations(step, times.operations)
        if self.request.by_hand:
            for way in ("forward", "backward"):
                seconds = times.timers_s[f"{way}-compute"] + times.timers_s.get(f"{way}-weight", 0.0)
                self.printer.log(f"Rank {self.request.place.rank} node {way} pass takes {seconds:.2f}s")

    def report(self, error: Exception) -> int:
        """Print the event that tells what went wrong, and the traceback for the log; return the exit code."""
        lines = traceback.format_exception(error)
        with suppress(OSError):  # nobody reads any more: the exit code still tells
            if is_out_of_memory(error):
                phase = self.stage.phase if self.stage else "model"
                shortage = memory_shortage(error, self.device)
                self.printer.emit("oom", phase=phase, **shortage._asdict(), message=str(error))
            else:
                self.printer.emit("error", traceback="".join(lines))
            # Line by line: standard error often shares a pipe with the events of other ranks.
            log = Printer(self.request.place.rank, fd=STDERR)
            for line in "".join(lines).splitlines():
                log.log(line)
        return OOM_EXIT_CODE if is_out_of_memory(error) else 1


def prints_operations(step: int) -> bool:
    """Tell whether a step's operations are printed unasked: the first ten steps, then every hundredth."""
    return step <= 10 or step % 100 == 0


def _average_without_first(seconds: Sequence[float]) -> float:
    rest = seconds[1:] or seconds
    return sum(rest) / len(rest)


def main(arguments: Sequence[str]) -> int:
    """Run one rank and return its exit code."""
    # Python's own handler would wait as long as a transfer does; Ctrl-C is meant now.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        request = read_command_line(arguments, os.environ)
    except ConfigError as error:
        return _refuse(error)
    if not request.by_hand:  # a person may well close the shell from which a rank was started by hand
        die_with_parent()
    engine = Engine(request)
    try:
        engine.run()
    except ConfigError as error:
        return _refuse(error)
    except Exception as error:
        return engine.report(error)
    return 0


def _refuse(error: ConfigError) -> int:
    for problem in error.problems:
        Printer(rank=0, fd=STDERR).log(str(problem))
    return CONFIG_EXIT_CODE


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if code:
        # At once: after a failure the destructors of process groups may wait for ranks that wait for this one.
        sys.stderr.flush()
        os._exit(code)
