"""DeepSpeed's configuration for a run, and the import of DeepSpeed."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from runners.config import ConfigError, Problem, RunConfig
from runners.config.devices import DEVICES
from runners.engines.process.rank import Rank

BUCKET_VALUES = 500_000_000
"""DeepSpeed's default reduce_bucket_size, in values: it allocates all of them, 2 GB in fp32, for any model."""


def deepspeed_settings(config: RunConfig, parameters: int = BUCKET_VALUES) -> dict[str, Any]:
    """Return DeepSpeed's configuration for a run of a model with `parameters` parameters.

    It matches parlab's other engines: no gradient clipping (DeepSpeed's default is 1.0), a constant learning rate, and
    weights, gradients and optimizer state in fp32 if the compute precision is fp32.
    """
    parallel, train = config.parallel, config.train
    zero: dict[str, Any] = {"stage": parallel.zero_stage, "reduce_bucket_size": min(BUCKET_VALUES, parameters)}
    if parallel.zero_offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if parallel.zero_offload == "all":
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_batch_size": train.global_batch_size,
        "train_micro_batch_size_per_gpu": train.micro_batch_size,
        "gradient_accumulation_steps": config.num_micro_batches,
        "gradient_clipping": 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        # torch's optimizer handles offloaded state too; DeepSpeed's CPU optimizer needs a compiler on the node.
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": train.precision == "bf16"},
        "fp16": {"enabled": train.precision == "fp16"},
        "steps_per_print": 10**9,
    }


def import_deepspeed(rank: Rank) -> ModuleType:
    """Import DeepSpeed and make it use the ranks' process group; for a single rank, create a group.

    Raises ConfigError if DeepSpeed is not installed.
    """
    if rank.device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("LOCAL_RANK", str(rank.place.local_rank))
    try:
        deepspeed = importlib.import_module("deepspeed")
        transport = importlib.import_module("deepspeed.comm.torch")
    except ImportError as error:
        message = (
            f"engine zero requires DeepSpeed, but importing it failed: {error};"
            " pip install 'parlab[node]' on the node, or use another engine"
        )
        raise ConfigError([Problem("parallel.engine", "zero", message)]) from error
    # A C++ extension for ranks on one CPU, which takes a minute to compile at the first start; gloo needs no compiler.
    vars(transport)["build_shm_op"] = lambda: None
    backend = DEVICES[rank.device.type].backend
    if not dist.is_initialized():
        dist.init_process_group(
            backend, store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1, timeout=rank.timeout
        )
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, timeout=rank.timeout)
    return deepspeed
