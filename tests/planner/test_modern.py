"""Today's trainings: their models, layouts and devices, and the identities that every prediction keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parlab.planner import Job, Model, cluster, predict_job
from parlab.planner.job.cluster import device
from parlab.planner.job.presets import PRESETS, preset
from parlab.planner.prediction.attention import fused_share
from parlab.planner.prediction.memory import activation_bytes
from parlab.planner.publications import rows
from parlab.planner.publications.published import predict_rows
from parlab.planner.requests.answer import work
from parlab.planner.search.layouts import search

LLAMA = Model(
    32, 4096, 32, 8192, 128_256, 8, 14_336, True, has_tied_embeddings=False, has_positions=False, has_dropout=False
)
JOB = Job(LLAMA, 128, data_parallel=8, zero_stage=1, has_flash_attention=True)
NODE = cluster("H100", 8, 8)
ROW: dict[str, Any] = {
    "id": "8b",
    "model": {
        "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "mlp": "gated", "vocab": 128256,
        "seq": 8192,
    },
    "parallel": {"tp": 1, "pp": 1, "cp": 2, "mbs": 1, "gbs": 128, "precision": "fp8", "recompute": "none"},
    "hardware": {"gpu": "H100-80GB", "count": 8, "node": 8},
}  # fmt: skip


def seconds(job: Job, **changes: Any) -> float:
    return predict_job(replace(job, **changes), NODE).iteration_s


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("Llama 3 8B", 8.03, 8.03),
        ("Llama 3 70B", 70.6, 70.6),
        ("Llama 3.1 405B", 405.9, 405.9),
        ("Qwen3 30B-A3B", 30.5, 3.3),
        ("Qwen3 235B-A22B", 235, 22.2),
        ("DeepSeek-V3", 671, 37.6),
        ("Kimi K2", 1029, 32.9),
        ("GPT-OSS 120B", 116.8, 5.7),
        ("Mixtral 8x7B", 46.7, 12.9),
        ("GPT-3 175B", 174.6, 174.6),
    ],
)
def test_presets_have_the_published_number_of_parameters(name: str, billions: float, active: float) -> None:
    chosen = preset(name)
    assert chosen is not None
    assert chosen.model.parameters / 1e9 == pytest.approx(billions, rel=0.015)
    assert chosen.model.active_parameters / 1e9 == pytest.approx(active, rel=0.03)


def test_interleaving_with_one_chunk_is_1f1b() -> None:
    job = replace(JOB, data_parallel=2, pipeline_parallel=4)
    plain = predict_job(job, NODE)
    interleaved = predict_job(replace(job, schedule="interleaved-1f1b", virtual_stages=1), NODE)
    assert interleaved.iteration_s == plain.iteration_s
    assert interleaved.memory == plain.memory


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_with_one_replica_is_no_zero(stage: int) -> None:
    job = replace(JOB, data_parallel=1, tensor_parallel=8, zero_stage=0)
    assert predict_job(replace(job, zero_stage=stage), NODE).memory == predict_job(job, NODE).memory
    assert seconds(job, zero_stage=stage) == seconds(job)


def test_masks_are_stored_only_with_dropout() -> None:
    stored = activation_bytes(replace(JOB, recompute="none"))[0]
    with_masks = activation_bytes(replace(JOB, model=replace(LLAMA, has_dropout=True)))[0]
    assert with_masks - stored == 2 * 8192 * 4096


def test_a_gated_mlp_stores_three_widths() -> None:
    narrow = activation_bytes(replace(JOB, model=replace(LLAMA, ffn_hidden_size=4096)))[0]
    wide = activation_bytes(replace(JOB, model=replace(LLAMA, ffn_hidden_size=4097)))[0]
    assert wide - narrow == 3 * 2 * 8192


def test_attention_is_slower_than_matrix_products_and_newer_kernels_are_faster() -> None:
    shares = [fused_share(device("H100"), generation, 65_536, 128) for generation in (1, 2, 3)]
    assert shares == sorted(shares)
    assert shares[-1] < 0.8
    assert fused_share(device("A100"), 1, 65_536, 128) > shares[0]
    assert fused_share(device("H100"), 3, 1024, 128) < shares[-1]


@pytest.mark.parametrize("sequence", [512, 8192, 131_072, 1_048_576])
@pytest.mark.parametrize("gpu", ["A100 80GB", "H100", "GB300", "MI300X"])
@pytest.mark.parametrize("window", [None, 128])
def test_no_utilisation_is_above_one(sequence: int, gpu: str, window: int | None) -> None:
    model = replace(LLAMA, sequence_length=sequence, sliding_window=window)
    for precision in ("bf16", "fp8"):
        for recompute in ("none", "selective", "operations", "full"):
            job = replace(JOB, model=model, precision=precision, recompute=recompute, data_parallel=1)
            answer = work(predict_job(job, cluster(gpu, 8, 8)))
            assert answer.mfu is None or 0 < answer.mfu <= (answer.hfu or 0) < 1


def test_context_parallel_ranks_share_activations_and_attention() -> None:
    long = replace(JOB, model=replace(LLAMA, sequence_length=65_536), global_batch_size=8, data_parallel=1)
    shared = replace(long, context_parallel=4)
    assert activation_bytes(shared)[0] == pytest.approx(activation_bytes(long)[0] / 4)
    assert seconds(long) / 4 < seconds(shared) < seconds(long) / 3
    assert seconds(replace(shared, context_exchange="all-gather")) > seconds(shared)


def test_expert_parallel_ranks_share_the_weights_of_experts() -> None:
    chosen = preset("Qwen3 30B-A3B")
    assert chosen is not None
    job = replace(JOB, model=chosen.model)
    alone, shared = (predict_job(replace(job, expert_parallel=ranks), NODE) for ranks in (1, 8))
    assert shared.memory.weights_bytes < 0.25 * alone.memory.weights_bytes
    assert shared.parts.expert_s > 0 == alone.parts.expert_s
    with pytest.raises(ValueError, match="expert_parallel 3 does not divide num_experts 128; use a divisor"):
        replace(job, expert_parallel=3)


def test_hybrid_sharding_needs_more_memory_and_less_communication_between_nodes() -> None:
    nodes = cluster("H100", 64, 8, inter_node_gbit_s=100)
    job = replace(JOB, data_parallel=64, zero_stage=3)
    hybrid = predict_job(replace(job, shard_ranks=8), nodes)
    fully = predict_job(job, nodes)
    assert hybrid.memory.optimizer_bytes == pytest.approx(8 * fully.memory.optimizer_bytes)
    assert hybrid.parts.data_s < fully.parts.data_s


def test_keeping_gathered_weights_costs_memory_and_saves_communication() -> None:
    job = replace(JOB, zero_stage=3, global_batch_size=512)
    kept = predict_job(replace(job, reshards_after_forward=False), NODE)
    freed = predict_job(job, NODE)
    assert kept.memory.weights_bytes > freed.memory.weights_bytes
    assert kept.parts.data_s + kept.parts.hidden_s < freed.parts.data_s + freed.parts.hidden_s


def test_recomputing_some_layers_lies_between_none_and_all() -> None:
    memory = [
        predict_job(replace(JOB, recompute="full", recomputed_layers=layers), NODE).memory_bytes
        for layers in (None, 24, 8)
    ]
    assert memory == sorted(memory)
    assert seconds(JOB) < seconds(JOB, recompute="full", recomputed_layers=8) < seconds(JOB, recompute="full")


def test_a_rack_of_72_has_fast_links_between_its_nodes() -> None:
    rack = cluster("GB200", 64, 4)
    assert (rack.domain, rack.domains) == (72, 1)
    job = replace(JOB, data_parallel=64)
    assert predict_job(job, rack).parts.data_s < predict_job(job, cluster("B200", 64, 8)).parts.data_s


def test_8_bits_are_faster_but_not_twice_as_fast() -> None:
    ratio = seconds(JOB) / seconds(JOB, precision="fp8")
    assert 1.1 < ratio < 1.9
    assert seconds(JOB, precision="mxfp8") == seconds(JOB, precision="fp8")


@pytest.mark.parametrize(
    ("gpu", "precision", "used"),
    [
        ("A100", "fp8", "bf16"), ("A100", "nvfp4", "bf16"), ("H100", "nvfp4", "bf16"), ("H100", "mxfp8", "fp8"),
        ("MI300X", "mxfp8", "fp8"), ("TPU v5p", "fp8", "bf16"),
    ],
)  # fmt: skip
def test_a_precision_that_a_device_lacks_gains_neither_time_nor_memory(gpu: str, precision: Any, used: Any) -> None:
    where = cluster(gpu, 8, 8)
    lacking, plain = (predict_job(replace(JOB, precision=name), where) for name in (precision, used))
    assert (lacking.iteration_s, lacking.memory_bytes) == (plain.iteration_s, plain.memory_bytes)
    assert f"precision {precision} is not supported by {where.device.name}: {used} is used" in lacking.reasons
    assert len(lacking.reasons) == len(plain.reasons) + 1


def test_a_precision_of_16_bits_that_a_device_lacks_has_the_speed_of_the_other() -> None:
    reasons = predict_job(JOB, cluster("V100 32GB", 8, 8)).reasons
    assert "precision bf16 is not supported by V100 SXM2 32 GB: the speed of fp16 is used" in reasons


def test_a_search_uses_the_precision_that_the_device_has() -> None:
    found = search(replace(JOB, precision="nvfp4"), NODE, listed=1).fitting[0]
    assert found.job.precision == "bf16"


def test_a_row_of_today_is_read_in_full() -> None:
    row = rows.read(ROW)
    assert row.job.context_parallel == 2
    assert row.job.data_parallel == 4
    assert row.job.model.parameters == pytest.approx(8.03e9, rel=0.01)
    assert not row.job.model.has_dropout


@pytest.mark.parametrize(
    ("section", "field", "nearest"),
    [("model", "kv_head", "kv_heads"), ("parallel", "schedules", "schedule"), ("hardware", "gpus", "gpu")],
)
def test_a_misspelt_field_of_a_row_is_refused_with_the_nearest(section: str, field: str, nearest: str) -> None:
    (line,) = predict_rows([ROW | {section: ROW[section] | {field: 8}}])
    assert line["iter_s"] is None
    assert f"unknown field {section}.{field}; did you mean {nearest}?" in line["basis"]


def test_every_preset_names_its_source() -> None:
    assert all(chosen.source for chosen in PRESETS)
    assert preset("llama-3-405b") is preset("Llama 3.1 405B")


def test_an_unknown_device_offers_the_nearest_and_how_to_add_one() -> None:
    with pytest.raises(ValueError, match=r"gpu GB2000 is not in the device catalogue; did you mean GB200\?.*the admin"):
        device("GB2000")
