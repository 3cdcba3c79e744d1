"""Experiments of DeepSpeed's autotuner as configurations of the engine that it tunes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .engines import AUTOTUNING
from .problems import Problem
from .run import RunConfig, check


def tuned_config(
    search: Mapping[str, Any], *, zero_stage: int, micro_batch_size: int, num_micro_batches: int
) -> tuple[RunConfig | None, list[Problem]]:
    """Return the configuration of an experiment, from that of its search: (RunConfig, []) or (None, its problems)."""
    data: dict[str, Any] = json.loads(json.dumps(search))
    samples = micro_batch_size * num_micro_batches * data["parallel"]["data_parallel_size"]
    data["parallel"] |= {"engine": AUTOTUNING.trial_engine, "zero_stage": zero_stage}
    data["train"] |= {"micro_batch_size": micro_batch_size, "global_batch_size": samples}
    return check(data)
