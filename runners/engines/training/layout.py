"""Position of a rank in a layout of data, tensor and pipeline parallel ranks, with its process groups and channels."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from runners.config import RunConfig
from runners.engines.training.transfers import Channels, open_channels

DIMENSIONS = ("pp", "dp", "tp")
"""From the slowest to the fastest varying: tensor parallel ranks are adjacent, as in Megatron-LM."""


class Layout(NamedTuple):
    """Position of one rank; by default that of a single process."""

    stage: int = 0
    data_rank: int = 0
    tensor_rank: int = 0
    mesh: DeviceMesh | None = None
    channels: Channels = Channels()

    def group(self, dimension: str) -> dist.ProcessGroup | None:
        """Return the group of the ranks that differ from this one only in `dimension`; None for a single process."""
        return None if self.mesh is None else self.mesh.get_group(dimension)

    def ranks_along(self, dimension: str) -> list[int]:
        """Return these ranks in order; only 0 for a single process."""
        group = self.group(dimension)
        return [0] if group is None else dist.get_process_group_ranks(group)


def open_layout(config: RunConfig, rank: int, device: torch.device, timeout: timedelta) -> Layout:
    """Create the groups and channels of a layout; collective over all ranks of the default process group."""
    if config.world_size == 1:
        return Layout()
    parallel = config.parallel
    shape = (parallel.pipeline_parallel_size, parallel.data_parallel_size, parallel.tensor_parallel_size)
    ranks = torch.arange(config.world_size).view(shape)
    groups = []
    for dimension in range(len(shape)):
        for members in ranks.movedim(dimension, -1).reshape(-1, shape[dimension]).tolist():
            # Groups that a mesh creates by itself would have torch's default timeout instead of the run's.
            group = dist.new_group(members, timeout=timeout)
            if rank in members:
                groups.append(group)
    mesh = DeviceMesh.from_group(groups, device.type, mesh=ranks, mesh_dim_names=DIMENSIONS)
    pipelines = ranks.reshape(shape[0], -1).t().tolist()
    channels = open_channels(pipelines, rank, device, timeout, is_ring=parallel.virtual_stages > 1)
    stage, data_rank, tensor_rank = (int(index) for index in (ranks == rank).nonzero()[0])
    return Layout(stage, data_rank, tensor_rank, mesh, channels)
