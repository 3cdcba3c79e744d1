"""One experiment of DeepSpeed's autotuner: engine zero with a DeepSpeed configuration from the tuner.

The tuner starts it through a script, on every rank, with `--config FILE --deepspeed_config BASE64`. It first trains
the timed steps of the run, which give an end-to-end throughput, and then the few steps that the tuner profiles. After
those DeepSpeed writes metrics.json and exits the process.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runners.config import ConfigError, RunConfig, tuned_config
from runners.config.engines import AUTOTUNING
from runners.engines.checkpoints.session import NoCheckpoints
from runners.engines.process.process_group import Place, barrier, leave, place_from_environment
from runners.engines.process.rank import Rank, start
from runners.engines.zero import ZeroTrainer, emit_start, train_steps

PROFILED_STEPS = 3
"""Steps after the timed ones that the tuner profiles; as many as with DeepSpeed's default start and end step."""
VISIBLE_DEVICES = "PARLAB_VISIBLE_DEVICES"
"""CUDA_VISIBLE_DEVICES of the run: DeepSpeed's scheduler overwrites that with numbers counted from 0."""


def run(rank: Rank, settings: Mapping[str, Any]) -> None:
    """Train until DeepSpeed exits the process; intercept that exit to close the engine and the process group."""
    rank.join()
    trainer = ZeroTrainer(rank, settings)
    emit_start(rank, trainer)
    with suppress(SystemExit):  # DeepSpeed calls exit() when its profile is complete
        train_steps(rank, trainer, NoCheckpoints(rank.config.train.iterations + PROFILED_STEPS + 1))
    trainer.close()
    barrier(rank.device)
    leave()


def main() -> None:
    """Read the tuner's command line and run one rank."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--deepspeed_config", required=True)
    parser.add_argument("--local_rank", type=int, default=0)
    options = parser.parse_args()
    if VISIBLE_DEVICES in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ[VISIBLE_DEVICES]
    settings = json.loads(base64.urlsafe_b64decode(options.deepspeed_config))

    def orders() -> tuple[RunConfig, Place]:
        config, problems = tuned_config(
            json.loads(options.config.read_text()),
            zero_stage=int(settings["zero_optimization"]["stage"]),
            micro_batch_size=int(settings["train_micro_batch_size_per_gpu"]),
            num_micro_batches=int(settings["gradient_accumulation_steps"]),
        )
        if config is None:
            raise ConfigError(problems)
        os.environ.setdefault("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", str(config.world_size)))
        return config, place_from_environment(os.environ)

    start(AUTOTUNING.trial_engine, lambda rank: run(rank, settings), orders=orders)
