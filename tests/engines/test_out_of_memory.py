"""Every engine reports out of memory with sizes, rank and phase, also under a memory limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runners.supervisor.verdict import Evidence
from runners.wire.protocol import RunState
from tests.engines.started import run_engine

pytestmark = pytest.mark.slow

LIMIT_MIB = 1300
"""Python and torch take 350 MiB of it, or twice that on another machine; each case needs far more than the rest."""
MODEL = {"num_layers": 8, "hidden_size": 2048, "num_attention_heads": 2, "sequence_length": 16, "vocab_size": 64}
SMALL = {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "sequence_length": 2048, "vocab_size": 8192}
BATCH = {"global_batch_size": 32, "micro_batch_size": 32, "iterations": 3}


def make_data(engine: str, model: dict[str, Any], **sections: Any) -> dict[str, Any]:
    launcher = {"memory_limit_mib": LIMIT_MIB}
    whole = {"model": model, "parallel": {"engine": engine}, "cluster": {"device": "cpu"}, "launcher": launcher}
    return whole | sections


ONE_SHARD = {"sharding": {"device_mapping": {"stage_0": {"shard_0": "CPU:0"}}}}
CASES = {
    # Neither 8 layers of 50 million weights fit, nor the logits of 32 sequences of 2,048 tokens.
    "pipeline, forward": (make_data("pipeline", SMALL, train=BATCH), "forward"),
    "megatron, model": (make_data("megatron", MODEL), "model"),
    "zero, forward": (make_data("zero", SMALL, train=BATCH), "forward"),
    "hf, forward": (make_data("hf", SMALL | {"implementation": "huggingface"}, train=BATCH), "forward"),
    "sharding, forward": (make_data("sharding", SMALL, train=BATCH, **ONE_SHARD), "forward"),
}


@pytest.mark.parametrize("name", CASES)
def test_an_engine_beyond_its_limit_reports_sizes_and_phase(name: str, tmp_path: Path) -> None:
    data, phase = CASES[name]
    output = run_engine(data, tmp_path, processes=0)
    assert output.code == 77, output.text
    (event,) = output.events("oom")
    assert (event["rank"], event["phase"]) == (0, phase)
    assert event["total_bytes"] == LIMIT_MIB << 20
    assert 0 <= event["free_bytes"] < LIMIT_MIB << 20
    assert event["requested_bytes"] is None or event["requested_bytes"] > 0


def test_the_rank_that_ran_out_of_memory_is_named_and_the_run_is_oom(tmp_path: Path) -> None:
    # The head and the loss are on the last stage, and only they are large.
    data = make_data("pipeline", SMALL | {"num_layers": 2}, train=BATCH | {"global_batch_size": 64})
    output = run_engine(data | {"parallel": {"engine": "pipeline", "pipeline_parallel_size": 2}}, tmp_path)
    assert [event["rank"] for event in output.events("oom")] == [1]
    evidence = Evidence()
    evidence.see(output.text.encode())
    verdict = evidence.verdict(output.code)
    assert verdict.state is RunState.OOM
    assert verdict.reason.startswith("out of memory on rank 1 in forward: requested ")


def test_a_collective_that_does_not_fit_is_out_of_memory(tmp_path: Path) -> None:
    sizes = {"operation": "all-gather", "min_bytes": 2**30, "max_bytes": 2**30}
    data = make_data("allreduce", MODEL, collectives=sizes, launcher={"memory_limit_mib": 900})
    output = run_engine(data | {"parallel": {"engine": "allreduce", "data_parallel_size": 2}}, tmp_path)
    assert {event["phase"] for event in output.events("oom")} <= {"data", "forward"}
    assert output.events("oom")


@pytest.mark.parametrize("stage", [2, 3])
def test_a_small_model_does_not_allocate_buckets_that_it_cannot_fill(stage: int, tmp_path: Path) -> None:
    # DeepSpeed's default buckets take 2 GB for every model.
    small = SMALL | {"sequence_length": 16, "vocab_size": 64}
    data = make_data("zero", small, train={"iterations": 2, "warmup_steps": 1})
    output = run_engine(data | {"parallel": {"engine": "zero", "zero_stage": stage}}, tmp_path, processes=0)
    assert output.code == 0, output.text
