"""Runs of each engine that are slow on purpose: the advice names the cause, and the changed run is faster.

The causes cost half of a step and more, except recomputation, which costs a fourth. On a busy machine a run may be slow
for another reason, and the advice then names that one: the slow run is repeated until its cause is advised, and slow
and changed runs alternate until their medians agree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest

from parlab.advice.advice import Advice
from parlab.lab.models import Run
from parlab.lab.selectors.analysis.advice import run_advice
from runners.config import with_values

from .slow_runs import MakeAttempt, MakeConfig, printed_by, stored_run

pytestmark = [pytest.mark.slow, pytest.mark.django_db, pytest.mark.timeout(3000)]  # up to 14 real runs in each test

REPEATS = 7
LOADER = Path(__file__).with_name("loading_script.py")
TINY = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "sequence_length": 16, "vocab_size": 128}
SMALL = {"num_layers": 4, "hidden_size": 128, "num_attention_heads": 2, "sequence_length": 32, "vocab_size": 256}
STEPS = {"iterations": 8, "warmup_steps": 2}
TWO = {"pipeline_parallel_size": 1, "data_parallel_size": 2}


class Slow(NamedTuple):
    """A configuration that is slow on purpose."""

    cause: str
    """Kind of the advice that names it."""
    data: dict[str, Any]
    remedy: dict[str, Any] = {}
    """What removes the cause, where the advice is no setting."""
    setting: str = ""
    """Setting that the advice changes, where advice of this kind may change another one."""
    slow_rank: int | None = None
    """Rank that is stopped again and again; the changed run has none."""


def sharded(*devices: str) -> dict[str, Any]:
    """Return section sharding with one stage per device."""
    mapping = {f"stage_{stage}": {"shard_0": device} for stage, device in enumerate(devices)}
    return {"mode": "pipeline", "stage_cnt": len(devices), "accum_degree": 4, "device_mapping": mapping}


def loading(workers: int) -> dict[str, Any]:
    return {"argv": [sys.executable, str(LOADER), str(workers)]}


CASES: Mapping[str, Slow] = {
    "megatron: a small micro batch": Slow(
        "micro_batch",
        {
            "model": TINY,
            "train": {**STEPS, "global_batch_size": 64, "micro_batch_size": 1},
            "parallel": {"engine": "megatron", **TWO},
        },
    ),
    "megatron: full recomputation": Slow(
        "recompute",
        {
            "model": SMALL,
            "train": {**STEPS, "global_batch_size": 32, "micro_batch_size": 16, "recompute": "full"},
            "parallel": {"engine": "megatron", **TWO},
        },
    ),
    "megatron: one slowed rank": Slow(
        "rank",
        {
            "model": SMALL,
            "train": {**STEPS, "global_batch_size": 32, "micro_batch_size": 16},
            "parallel": {"engine": "megatron", **TWO},
        },
        slow_rank=1,
    ),
    "zero: stage 3 where 1 fits": Slow(
        "zero",
        {
            "model": {**SMALL, "num_layers": 8},
            "train": {**STEPS, "iterations": 6, "global_batch_size": 8, "micro_batch_size": 4},
            "parallel": {"engine": "zero", **TWO, "zero_stage": 3},
        },
    ),
    "hf: a small micro batch": Slow(
        "micro_batch",
        {
            "model": {**TINY, "implementation": "huggingface"},
            "train": {**STEPS, "global_batch_size": 32, "micro_batch_size": 1},
            "parallel": {"engine": "hf", **TWO},
        },
    ),
    "pipeline: plain 1F1B on a slow link": Slow(
        "schedule",
        {
            "model": {**TINY, "num_layers": 3},
            "train": {**STEPS, "iterations": 5, "global_batch_size": 12, "micro_batch_size": 1, "compute": "emulated"},
            "parallel": {"engine": "pipeline", "pipeline_parallel_size": 3, "schedule": "1f1b"},
            "emulation": {"forward_ms": 5, "backward_ms": 10},
            "network": {"apply": "emulate", "delay_ms": 40, "bandwidth_gbps": 1},
        },
    ),
    "pipeline: imbalanced stages": Slow(
        "stages",
        {
            "model": TINY,
            "train": {**STEPS, "iterations": 5, "global_batch_size": 8, "micro_batch_size": 1, "compute": "emulated"},
            "parallel": {"engine": "pipeline", "pipeline_parallel_size": 2, "schedule": "1f1b"},
            "emulation": {"forward_ms": [4, 36], "backward_ms": [8, 72]},
        },
        {"emulation.forward_ms": [20, 20], "emulation.backward_ms": [40, 40]},
    ),
    "sharding: most stages on one device": Slow(
        "stages",
        {
            "model": SMALL,
            "train": {**STEPS, "global_batch_size": 32, "micro_batch_size": 8},
            "parallel": {"engine": "sharding"},
            "sharding": sharded("CPU:0", "CPU:1", "CPU:1", "CPU:1"),
            "cluster": {"device": "cpu"},
        },
        {"sharding": sharded("CPU:0", "CPU:0", "CPU:1", "CPU:1")},
    ),
    "allreduce: messages that are all latency": Slow(
        "messages",
        {
            "train": {"iterations": 20, "warmup_steps": 3},
            "parallel": {"engine": "allreduce", "data_parallel_size": 2},
            "collectives": {"operation": "all-reduce", "min_bytes": 64, "max_bytes": 1024},
        },
    ),
    "capacity: hundreds of steps in each trial": Slow(
        "trials",
        {
            "model": TINY,
            "train": {"iterations": 200, "warmup_steps": 1, "global_batch_size": 64, "micro_batch_size": 1},
            "parallel": {"engine": "capacity", "pipeline_parallel_size": 1},
            "capacity": {"find": "num_layers", "engine": "pipeline", "at_most": 2},
            "cluster": {"device": "cpu"},
            "launcher": {"kind": "plain"},
        },
    ),
    "autotuning: a search that ends at micro batches of 2": Slow(
        "search",
        {
            "model": TINY,
            "train": {"iterations": 6, "warmup_steps": 1, "global_batch_size": 2, "micro_batch_size": 1},
            "parallel": {"engine": "autotuning", "data_parallel_size": 2},
            "autotuning": {"stages": [0], "max_micro_batch_size": 2},
            "cluster": {"device": "cpu"},
        },
        setting="autotuning.max_micro_batch_size",
    ),
    "command: a slow data loader": Slow(
        "loading",
        {"parallel": {"engine": "command"}, "launcher": {"kind": "plain"}, "command": loading(0)},
        {"command": loading(1)},
    ),
}


@pytest.fixture
def run_of(make_config: MakeConfig, make_attempt: MakeAttempt, tmp_path: Path) -> Callable[..., Run]:
    def run(data: dict[str, Any], slow_rank: int | None = None) -> Run:
        return stored_run(data, printed_by(data, tmp_path, slow_rank), make_config, make_attempt)

    return run


@pytest.mark.parametrize("name", CASES)
def test_the_cause_of_a_slow_run_is_advised_and_without_it_the_run_is_faster(
    name: str, run_of: Callable[..., Run]
) -> None:
    case = CASES[name]
    slow_s: list[float] = []
    advised: list[Sequence[Advice]] = []
    change: Advice | None = None
    while change is None and len(slow_s) < REPEATS:
        slow = run_of(case.data, case.slow_rank)
        slow_s.append(seconds(slow))
        advised.append(run_advice(slow).advice[:2])
        change = next((row for row in advised[-1] if names_cause(row, case)), None)
    assert change, advised
    assert change.gain > 0
    changed = without_cause(case, change.settings)
    changed_s = [seconds(run_of(changed))]
    while median(changed_s) >= median(slow_s) and len(changed_s) < REPEATS:
        slow_s.append(seconds(run_of(case.data, case.slow_rank)))
        changed_s.append(seconds(run_of(changed)))
    assert median(changed_s) < median(slow_s), (slow_s, changed_s)


def names_cause(row: Advice, case: Slow) -> bool:
    return row.kind == case.cause and (not case.setting or case.setting in row.settings)


def without_cause(case: Slow, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with the change that was advised, or with the remedy where the advice is no setting."""
    if settings:
        return with_values(case.data, dict(settings))
    dotted = {field: value for field, value in case.remedy.items() if "." in field}
    sections = {section: value for section, value in case.remedy.items() if "." not in section}
    return with_values({**case.data, **sections}, dotted)


def seconds(run: Run) -> float:
    assert run.unit_time_s
    return run.unit_time_s
