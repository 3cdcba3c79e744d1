"""The pipeline engine: a GPT split into stages, one rank each, on synthetic text. See docs/understand/engines.md.

Run `python -m runners.engines.pipeline --config config.json` alone or under torchrun, or start each rank manually; see
--help.
"""

from __future__ import annotations

import os
import sys

from runners.config import RunConfig
from runners.engines.checkpoints.session import charged, open_checkpoints
from runners.engines.checkpoints.state import torch_format
from runners.engines.command_line import Request, read_command_line
from runners.engines.process.process_group import Place, barrier, leave
from runners.engines.process.profiling import StepRecorder
from runners.engines.process.rank import Rank, start
from runners.engines.training.saved import SavedStage
from runners.engines.training.stage import PipelineStage, StepResult
from runners.engines.training.transfers import open_channels


def train(rank: Rank, request: Request) -> None:
    """Train all iterations and print events; for a manually started rank also human-readable lines."""
    config, place = rank.config, rank.place
    rank.choose_device()
    if request.by_hand:
        rank.printer.log(f"Rank {place.rank} of {place.world_size} waits for the others at {place.init_method}")
    rank.join()
    is_ring = config.parallel.virtual_stages > 1
    channels = open_channels([range(place.world_size)], place.rank, rank.device, rank.timeout, is_ring=is_ring)
    stage = PipelineStage(config, place.rank, rank.device, channels)
    rank.emit_start(
        "pipeline",
        stage.memory.source,
        compute=config.train.compute,
        parameters=stage.num_parameters,
        stage=place.rank,
        layers=[layer for chunk in stage.layers for layer in (chunk[0], chunk[-1])],
    )
    step_times = []
    recorder = StepRecorder(config, place.rank, rank.device)
    checkpoints = open_checkpoints(
        rank, lambda: torch_format(SavedStage(stage), config, place.rank, rank.device, [place.rank])
    )
    for step in checkpoints.steps():
        try:
            with recorder.step(step):
                result = stage.train_step(step)
        except Exception:
            rank.phase = stage.phase
            raise
        result = result._replace(times=charged(result.times, checkpoints.after(step)))
        step_times.append(result.times.step_time_s)
        _print_step(rank, request, step, result)
    checkpoints.finish()
    average = rank.emit_end(step_times)
    if request.by_hand:
        rank.printer.log(
            f"Finished running {config.train.iterations} iterations,"
            f" averaged (exclude the first iter) run time: {average:.6g}"
        )
    barrier(rank.device)
    leave()


def _print_step(rank: Rank, request: Request, step: int, result: StepResult) -> None:
    train, times = rank.config.train, result.times
    rank.printer.emit(
        "step",
        step=step,
        warmup=rank.is_warmup(step),
        step_time_s=round(times.step_time_s, 9),
        samples=train.global_batch_size,
        tokens=train.global_batch_size * rank.config.model.sequence_length,
        **({} if result.loss is None else {"loss": result.loss}),
        memory_bytes=result.memory_bytes,
        memory_peak_bytes=result.memory_peak_bytes,
        timers_s={name: round(seconds, 9) for name, seconds in times.timers_s.items()},
    )
    if request.all_operations or prints_operations(step):
        rank.printer.emit_operations(step, times.operations)
    if request.by_hand:
        for way in ("forward", "backward"):
            seconds = times.timers_s[f"{way}-compute"] + times.timers_s.get(f"{way}-weight", 0.0)
            rank.printer.log(f"Rank {rank.place.rank} node {way} pass takes {seconds:.2f}s")


def prints_operations(step: int) -> bool:
    """Return whether a step's operations are printed by default: the first ten steps, then every hundredth."""
    return step <= 10 or step % 100 == 0


def main() -> None:
    """Run one rank and end the process with its exit code."""
    requests: list[Request] = []

    def orders() -> tuple[RunConfig, Place]:
        requests.append(read_command_line(sys.argv[1:], os.environ))
        return requests[0].config, requests[0].place

    start("pipeline", lambda rank: train(rank, requests[0]), orders=orders)


if __name__ == "__main__":
    main()
