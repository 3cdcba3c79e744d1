"""The megatron engine: BERT and GPT over data, tensor and pipeline parallel ranks. See docs/understand/engines.md.

Run `python -m runners.engines.megatron --config config.json` alone or under torchrun, or with Megatron-LM's own flags.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from runners.config import RunConfig
from runners.config.devices import DEVICES
from runners.engines.checkpoints.session import charged, open_checkpoints
from runners.engines.checkpoints.state import torch_format
from runners.engines.megatron_flags import UNUSED, argument_dump, arguments_of, read_flags
from runners.engines.megatron_log import MegatronLog
from runners.engines.process.process_group import Place, barrier, leave
from runners.engines.process.profiling import StepRecorder
from runners.engines.process.rank import Rank, start
from runners.engines.training.layout import open_layout
from runners.engines.training.megatron_stage import MegatronRank, StepResult
from runners.engines.training.saved import SavedRank


def train(rank: Rank, unused: Mapping[str, Any]) -> None:
    """Train all iterations; print events and, in addition, Megatron-LM's log lines."""
    config, place = rank.config, rank.place
    rank.choose_device()
    if place.rank == 0:  # before the rendezvous no other rank prints, so the dump stays contiguous
        _print_arguments(rank, unused)
    rank.join()
    layout = open_layout(config, place.rank, rank.device, rank.timeout)
    stage = MegatronRank(config, rank.device, layout)
    rank.emit_start(
        "megatron",
        stage.memory.source,
        parameters=stage.num_parameters,
        stage=layout.stage,
        layers=[layer for chunk in stage.layers for layer in (chunk[0], chunk[-1])],
        data_rank=layout.data_rank,
        tensor_rank=layout.tensor_rank,
    )
    log = MegatronLog(
        config,
        rank.printer,
        prints_steps=place.rank == place.world_size - 1,
        prints_memory=layout.data_rank == layout.tensor_rank == 0,
    )
    step_times = []
    recorder = StepRecorder(config, place.rank, rank.device)
    checkpoints = open_checkpoints(
        rank, lambda: torch_format(SavedRank(stage), config, place.rank, rank.device, layout.ranks_along("tp"))
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
        _print_step(rank, step, result)
        log.add(step, result)
    checkpoints.finish()
    rank.emit_end(step_times)
    barrier(rank.device)
    leave()


def _print_arguments(rank: Rank, unused: Mapping[str, Any]) -> None:
    config, place, parallel = rank.config, rank.place, rank.config.parallel
    rank.printer.log(
        f"using world size: {place.world_size}, data-parallel-size: {parallel.data_parallel_size},"
        f" tensor-model-parallel size: {parallel.tensor_parallel_size},"
        f" pipeline-model-parallel size: {parallel.pipeline_parallel_size}"
    )
    backend = DEVICES[rank.device.type].backend
    for line in argument_dump(arguments_of(config, place, backend, unused)):
        rank.printer.log(line)
    if unused:
        rank.printer.log(f"ignored arguments: {', '.join(unused)}; {UNUSED}")
    rank.printer.log(f"setting number of micro-batches to constant {config.num_micro_batches}")


def _print_step(rank: Rank, step: int, result: StepResult) -> None:
    config, losses = rank.config, result.losses
    parts = {f"{name}_loss": loss for name, loss in losses.items()} if len(losses) > 1 else {}
    norm = {} if result.gradient_norm is None else {"grad_norm": result.gradient_norm}
    rank.printer.emit(
        "step",
        step=step,
        warmup=rank.is_warmup(step),
        step_time_s=round(result.times.step_time_s, 9),
        samples=config.train.global_batch_size,
        tokens=config.train.global_batch_size * config.model.sequence_length,
        **({"loss": sum(losses.values()), **parts} if losses else {}),
        loss_scale=result.loss_scale,
        skipped=result.is_skipped,
        **norm,
        memory_bytes=result.memory_bytes,
        memory_peak_bytes=result.memory_peak_bytes,
        timers_s={name: round(seconds, 9) for name, seconds in result.times.timers_s.items()},
    )
    if step <= 10 or step % 100 == 0:
        rank.printer.emit_operations(step, result.times.operations)


def main() -> None:
    """Run one rank and end the process with its exit code."""
    arguments = sys.argv[1:]
    if not arguments or any(argument.partition("=")[0] == "--config" for argument in arguments):
        start("megatron", lambda rank: train(rank, {}))
    unused: dict[str, Any] = {}

    def orders() -> tuple[RunConfig, Place]:
        request = read_flags(arguments, os.environ)
        unused.update(request.unused)
        return request.config, request.place

    start("megatron", lambda rank: train(rank, unused), orders=orders)


if __name__ == "__main__":
    main()
