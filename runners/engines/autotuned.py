"""One experiment of DeepSpeed's autotuner: engine zero with the configuration that the tuner hands over.

The tuner starts it by a script, on every rank, with `--config FILE --deepspeed_config BASE64`. It trains the timed
steps of the run first, so that the experiment has a throughput from end to end, and then the few that the tuner looks
at; after those DeepSpeed writes metrics.json and ends the process itself.
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
from runners.engines.process_group import Place, barrier, leave, place_from_environment
from runners.engines.rank import Rank, start
from runners.engines.zero import ZeroTrainer, tell_start, train_steps

PROFILED_STEPS = 3
"""Steps behind the timed ones that the tuner times in its own way, the default of its start and end."""
VISIBLE_DEVICES = "PARLAB_VISIBLE_DEVICES"
"""The GPUs of the run: DeepSpeed's scheduler counts from 0 whatever it was given."""


def run(rank: Rank, settings: Mapping[str, Any]) -> None:
    """Train until DeepSpeed ends the process; whatever it ends in the middle of is let go of in order."""
    rank.join()
    trainer = ZeroTrainer(rank, settings)
    tell_start(rank, trainer)
    with suppress(SystemExit):  # DeepSpeed's way to say that it has seen enough
        train_steps(rank, trainer, rank.config.train.iterations + PROFILED_STEPS + 1)
    trainer.close()
    barrier(rank.device)
    leave()


def main() -> None:
    """Read the tuner's command line and be one rank."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--deepspeed_config", required=True)
    parser.add_argument("--local_rank", type=int, default=0)
    given = parser.parse_args()
    if VISIBLE_DEVICES in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ[VISIBLE_DEVICES]
    asked = json.loads(base64.urlsafe_b64decode(given.deepspeed_config))

    def orders() -> tuple[RunConfig, Place]:
        config, problems = tuned_config(
            json.loads(given.config.read_text()),
            zero_stage=int(asked["zero_optimization"]["stage"]),
            micro_batch_size=int(asked["train_micro_batch_size_per_gpu"]),
            num_micro_batches=int(asked["gradient_accumulation_steps"]),
        )
        if config is None:
            raise ConfigError(problems)
        os.environ.setdefault("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", str(config.world_size)))
        return config, place_from_environment(os.environ)

    start(AUTOTUNING.trial_engine, lambda rank: run(rank, asked), orders=orders)
