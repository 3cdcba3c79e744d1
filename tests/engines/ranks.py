"""Training on ranks in real processes, and the reference training in one process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from runners.config import RunConfig
from runners.engines.process.process_group import Place, barrier, join, leave
from runners.engines.training.data import make_arguments
from runners.engines.training.layout import Layout, open_layout
from runners.engines.training.megatron_stage import MegatronRank
from runners.engines.training.networks import build
from runners.engines.training.stage import PipelineStage
from runners.engines.training.transfers import open_channels
from tests.patience import TRAINING_S

TIMEOUT = timedelta(seconds=TRAINING_S)
# The fork server has imported torch, so ranks forked from it do not import it again.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.engines.ranks"])


class Trained(NamedTuple):
    """Result of a training: losses by step, gradients of the first step and final weights by parameter name."""

    losses: list[float | None]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    memory: list[tuple[int, int]]


def train_in_one_process(config: RunConfig, steps: int, device: torch.device) -> Trained:
    """Train the whole model in one process on the full batch, with ordinary autograd."""
    torch.set_num_threads(1)
    model = build(config, device)
    kinds: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    optimizer = kinds[config.train.optimizer](model.parameters(), lr=config.train.learning_rate)
    losses: list[float | None] = []
    gradients: dict[str, Tensor] = {}
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = model(*(part.to(device) for part in make_arguments(config, step)))
        loss.backward()
        gradients = gradients or _copies({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, gradients, _copies(model.state_dict()), [])


def train_in_pipeline(
    configs: Mapping[str, RunConfig], world_size: int, steps: int, device: str, directory: Path
) -> dict[str, list[Trained]]:
    """Train each config on `world_size` real processes; return the ranks' results by the configs' names."""
    return _train(_pipeline_rank, configs, world_size, steps, device, directory)


def train_in_layouts(
    configs: Mapping[str, RunConfig], world_size: int, steps: int, device: str, directory: Path
) -> dict[str, list[Trained]]:
    """Train each config with the megatron engine on `world_size` real processes, as train_in_pipeline does."""
    return _train(_megatron_rank, configs, world_size, steps, device, directory)


Body = Callable[[int, Mapping[str, RunConfig], int, torch.device], dict[str, Trained]]


def run_ranks(target: Callable[..., None], world_size: int, *arguments: Any) -> None:
    """Call `target(rank, world_size, *arguments)` in a process for each rank, and wait until all have succeeded."""
    ranks = [CONTEXT.Process(target=target, args=(rank, world_size, *arguments)) for rank in range(world_size)]
    try:
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(TRAINING_S)
        assert [process.exitcode for process in ranks] == [0] * world_size
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
                process.join()


def _train(
    body: Body, configs: Mapping[str, RunConfig], world_size: int, steps: int, device: str, directory: Path
) -> dict[str, list[Trained]]:
    run_ranks(_rank, world_size, body, configs, steps, device, directory)
    saved = [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in range(world_size)]
    return {name: [results[name] for results in saved] for name in configs}


def _rank(
    rank: int,
    world_size: int,
    body: Body,
    configs: Mapping[str, RunConfig],
    steps: int,
    device_type: str,
    directory: Path,
) -> None:
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if device_type == "cuda" else torch.device("cpu")
    join(Place(rank, world_size, rank, world_size, f"file://{directory}/rendezvous"), device, TIMEOUT)
    torch.save(body(rank, configs, steps, device), directory / f"{rank}.pt")
    barrier(device)
    leave()


def _pipeline_rank(rank: int, configs: Mapping[str, RunConfig], steps: int, device: torch.device) -> dict[str, Trained]:
    results = {}
    ranks = range(next(iter(configs.values())).world_size)
    line = open_channels([ranks], rank, device, TIMEOUT)
    ring = open_channels([ranks], rank, device, TIMEOUT, is_ring=True)
    for name, config in configs.items():
        stage = PipelineStage(config, rank, device, ring if config.parallel.virtual_stages > 1 else line)
        losses, memory, gradients = [], [], dict[str, Tensor]()
        for step in range(1, steps + 1):
            result = stage.train_step(step)
            losses.append(result.loss)
            memory.append((result.memory_bytes, result.memory_peak_bytes))
            gradients = gradients or _copies(stage.gradients())
        results[name] = Trained(losses, gradients, _copies(stage.weights()), memory)
    return results


def _megatron_rank(rank: int, configs: Mapping[str, RunConfig], steps: int, device: torch.device) -> dict[str, Trained]:
    results, layouts = {}, dict[tuple[int, ...], Layout]()
    for name, config in configs.items():
        parallel = config.parallel
        sizes = (
            parallel.data_parallel_size,
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
            min(parallel.virtual_stages, 2),
        )
        if sizes not in layouts:  # connecting eight ranks takes longer than training on them
            layouts[sizes] = open_layout(config, rank, device, TIMEOUT)
        stage = MegatronRank(config, device, layouts[sizes])
        losses, gradients = list[float | None](), dict[str, Tensor]()
        for step in range(1, steps + 1):
            result = stage.train_step(step)
            losses.append(sum(result.losses.values()) if result.losses else None)
            gradients = gradients or _copies(stage.flat.named(stage.flat.gradient))
        results[name] = Trained(losses, gradients, _copies(stage.flat.named(stage.flat.weights)), [])
    return results


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
