"""Where a rank stands in a layout of data, tensor and pipeline parallel ranks, and whom it talks to."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from runners.config import RunConfig
from runners.engines.transfers import Channels, open_channels

DIMENSIONS = ("pp", "dp", "tp")
"""Tensor parallel ranks are neighbours, then come data parallel ones, as Megatron-LM numbers them."""


class Layout(NamedTuple):
    """One rank's place; alone by default."""

    stage: int = 0
    data_rank: int = 0
    tensor_rank: int = 0
    mesh: DeviceMesh | None = None
    channels: Channels = Channels()

    def group(self, dimension: str) -> dist.ProcessGroup | None:
        """Return the ranks that differ from this one in one dimension only; None for a rank that is alone."""
        return None if self.mesh is None else self.mesh.get_group(dimension)


def open_layout(config: RunConfig, rank: int, device: torch.device, timeout: timedelta) -> Layout:
    """Connect the ranks of a layout; every rank of the default process group calls this at the same time."""
    if config.world_size == 1:
        return Layout()
    parallel = config.parallel
    shape = (parallel.pipeline_parallel_size, parallel.data_parallel_size, parallel.tensor_parallel_size)
    ranks = torch.arange(config.world_size).view(shape)
    groups = []
    for dimension in range(len(shape)):
        for members in ranks.movedim(dimension, -1).reshape(-1, shape[dimension]).tolist():
            # A mesh that makes its groups itself would give them torch's timeout, not that of the run.
            group = dist.new_group(members, timeout=timeout)
            if rank in members:
                groups.append(group)
    mesh = DeviceMesh.from_group(groups, device.type, mesh=ranks, mesh_dim_names=DIMENSIONS)
    pipelines = ranks.reshape(shape[0], -1).t().tolist()
    channels = open_channels(pipelines, rank, device, timeout, is_ring=parallel.virtual_stages > 1)
    stage, data_rank, tensor_rank = (int(place) for place in (ranks == rank).nonzero()[0])
    return Layout(stage, data_rank, tensor_rank, mesh, channels)
