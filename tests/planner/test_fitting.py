"""Memory as a distribution: the probability of fitting, by code base and kind of job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parlab.planner import DEFAULT, Job, Model, Observation, calibrate, cluster, predict_job
from parlab.planner.job.cluster import Cluster
from parlab.planner.job.code_bases import CODE_BASES, code_base, possible_jobs
from parlab.planner.job.presets import preset
from parlab.planner.prediction.fitting import MemoryDistribution, is_confident, memory_distribution
from parlab.planner.prediction.memory import activation_bytes, memory
from parlab.planner.publications import rows
from parlab.planner.requests.request import PlanRequest

A100 = cluster("A100-80GB", 64, 8)
H100 = cluster("H100", 64, 8)


def llama(size: str = "Llama 3 8B", **changes: object) -> Job:
    chosen = preset(size)
    assert chosen is not None
    job = Job(chosen.model, 512, 1, 2, 1, 32, zero_stage=1, has_flash_attention=True)
    return replace(job, **changes)  # type: ignore[arg-type]


def test_a_distribution_is_half_below_its_median_and_its_quantiles_invert_it() -> None:
    alone = MemoryDistribution(((1.0, 50e9),), 0.1)
    assert alone.below(50e9) == pytest.approx(0.5)
    mixed = MemoryDistribution(((0.4, 40e9), (0.6, 70e9)), 0.1)
    for share in (0.1, 0.4, 0.5, 0.9):
        assert mixed.below(mixed.quantile(share)) == pytest.approx(share, abs=1e-3)
    assert mixed.below(60e9) < alone.below(60e9)


def _chance(size: int) -> float:
    return predict_job(llama(micro_batch_size=size, tensor_parallel=4, data_parallel=16), A100).fits_probability


def test_the_probability_falls_with_the_memory_of_a_job() -> None:
    chances = [_chance(size) for size in (1, 2, 4, 8, 16)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.95
    assert chances[-1] < 0.05


def test_a_code_base_that_is_named_is_more_certain_than_one_that_is_not() -> None:
    unnamed, named = llama(), llama(family="Megatron-LM")
    assert len(possible_jobs(unnamed, "A100")) > 1
    assert [job for _weight, job in possible_jobs(named, "A100")] == [named]
    spread = [
        memory_distribution(job, A100, DEFAULT).quantile(0.9) / memory_distribution(job, A100, DEFAULT).quantile(0.1)
        for job in (named, unnamed)
    ]
    assert spread[0] < spread[1]


def test_only_experts_in_8_bits_may_keep_8_bit_activations_and_short_optimizer_states() -> None:
    def compressed(size: str, **changes: object) -> list[bool]:
        jobs = [job for _weight, job in possible_jobs(llama(size, **changes), "H100")]
        return [job.has_8_bit_experts and job.optimizer_bytes == 8 for job in jobs]

    assert any(compressed("Qwen3 30B-A3B", precision="fp8"))
    assert not any(compressed("Qwen3 30B-A3B"))
    assert not any(compressed("Llama 3 8B", precision="fp8"))


@pytest.mark.parametrize("where", [A100, H100])
def test_the_possibilities_of_a_job_add_up_to_one(where: Cluster) -> None:
    for job in (llama(), llama(recompute="full"), llama("Qwen3 30B-A3B", precision="fp8"), llama(zero_stage=3)):
        assert sum(weight for weight, _ in possible_jobs(job, where.device.name)) == pytest.approx(1)


@pytest.mark.parametrize("where", [A100, H100, cluster("GB300", 64, 4)])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_a_confident_answer_agrees_with_the_whole_distribution(where: Cluster, size: int) -> None:
    for job in (llama(micro_batch_size=size), llama(micro_batch_size=size, zero_stage=3)):
        probability = predict_job(job, where).fits_probability
        assert is_confident(job, where, DEFAULT) == (probability >= 0.95)
        assert is_confident(job, where, DEFAULT, 0.5) == (probability >= 0.5)


def test_gathered_logits_and_eager_norms_need_more_memory() -> None:
    job = llama(tensor_parallel=4, data_parallel=16)
    plain = memory(job, DEFAULT.memory, 8)
    gathered = memory(replace(job, gathers_logits=True), DEFAULT.memory, 8)
    assert gathered.logits_bytes == pytest.approx(4 * 2 * plain.logits_bytes)
    eager = activation_bytes(replace(job, fuses_pointwise=False))[0]
    tokens, model = job.rank_tokens, job.model
    added = tokens * (12 * model.hidden_size + 2 * model.ffn_size / 4)
    assert eager - activation_bytes(job)[0] == pytest.approx(added)


def test_a_layer_norm_and_gelu_are_fused_in_eager_code_too() -> None:
    chosen = preset("GPT-3 175B")
    assert chosen is not None
    job = Job(chosen.model, 1536, 1, 8, 12, 1)
    assert activation_bytes(replace(job, fuses_pointwise=False)) == activation_bytes(job)


def test_an_activation_that_is_recomputed_and_experts_in_8_bits_need_less() -> None:
    job = llama(precision="bf16")
    spared = activation_bytes(job)[0] - activation_bytes(replace(job, recomputes_activation=True))[0]
    assert spared == pytest.approx(job.rank_tokens * 2 * job.model.ffn_size / 2)
    experts = llama("Qwen3 30B-A3B", expert_parallel=8, tensor_parallel=1, data_parallel=64)
    assert activation_bytes(replace(experts, has_8_bit_experts=True))[0] < 0.8 * activation_bytes(experts)[0]
    selective = replace(job, recompute="selective")
    assert activation_bytes(replace(selective, recomputes_activation=True))[0] == activation_bytes(selective)[0]


def test_segments_that_grow_leave_half_of_the_fragments() -> None:
    job = llama(micro_batch_size=4)
    usual, grown = (
        memory(replace(job, has_expandable_segments=grows), DEFAULT.memory, 8).activations_bytes
        for grows in (False, True)
    )
    live = usual / DEFAULT.memory.fragmentation
    assert usual - live == pytest.approx(2 * (grown - live))


def test_a_calibration_on_memory_figures_narrows_the_distribution() -> None:
    sizes = (1, 2, 4, 6, 8, 12)
    jobs = [llama(micro_batch_size=size) for size in sizes]
    measured = [Observation(job, A100, memory_bytes=1.2 * predict_job(job, A100).memory_bytes) for job in jobs]
    calibration = calibrate(measured)
    wide = memory_distribution(llama(), A100, DEFAULT)
    narrow = memory_distribution(llama(), A100, calibration)
    assert narrow.quantile(0.9) / narrow.quantile(0.1) < wide.quantile(0.9) / wide.quantile(0.1)


def test_texts_name_the_code_base_and_the_framework_comes_first() -> None:
    named = code_base("", "NVIDIA NeMo AutoModel, performance summary")
    assert named is not None
    assert named.name == "NeMo AutoModel"
    first = code_base("DeepSpeed", "MLPerf v5.0")
    assert first is not None
    assert first.name == "DeepSpeed"
    assert code_base("", "a paper") is None
    assert len({entry.name for entry in CODE_BASES}) == len(CODE_BASES)


LLAMA_405B = {"name": "Llama 3.1 405B", "seq": 8192}
KIMI = {
    "layers": 61, "hidden": 7168, "heads": 64, "ffn": 2048, "dense_ffn": 18432, "dense_layers": 1, "mlp": "gated",
    "experts": 384, "shared_experts": 1, "experts_per_token": 8, "attention": "MLA", "vocab": 163840, "seq": 4096,
}  # fmt: skip
RAN = {
    # The Llama 3 Herd of Models 2024, table 4.
    "405B on 16,384": (LLAMA_405B, {"tp": 8, "pp": 16, "dp": 128, "mbs": 1, "gbs": 2048}, "H100-80GB", 16384, ""),
    "405B on 8,192": (LLAMA_405B, {"tp": 8, "pp": 16, "dp": 64, "mbs": 1, "gbs": 2048}, "H100-80GB", 8192, ""),
    # DeepSeek-V3 report 2024, sections 3.1 and 3.2.
    "DeepSeek-V3": (
        {"name": "DeepSeek-V3", "seq": 4096},
        {"pp": 16, "dp": 128, "ep": 64, "mbs": 1, "gbs": 15360, "precision": "fp8", "recompute": "selective",
         "schedule": "dualpipe", "optimizer": "bf16 states", "recompute_activation": True, "compressed_experts": True},
        "H800", 2048, "",
    ),
    # NeMo AutoModel, performance summary, 2026.
    "Kimi K2": (
        KIMI, {"pp": 8, "ep": 32, "fsdp": 32, "mbs": 1, "gbs": 512, "recompute": "full", "vp": 4}, "H100-80GB", 256,
        "NeMo AutoModel",
    ),
    "GPT-OSS 20B": (
        {"name": "GPT-OSS 20B", "seq": 4096}, {"ep": 8, "fsdp": 8, "mbs": 2, "gbs": 256}, "H100-80GB", 8,
        "NeMo AutoModel",
    ),
    # Megatron-Bridge, performance summary.
    "70B with FSDP": (
        {"name": "Llama 3 70B", "seq": 8192}, {"fsdp": 64, "mbs": 2, "gbs": 256, "precision": "fp8"}, "GB300", 64, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RAN)
def test_published_layouts_that_ran_are_not_refused(name: str) -> None:
    model, parallel, gpu, count, source = RAN[name]
    row = rows.read({"model": model, "parallel": parallel, "hardware": {"gpu": gpu, "count": count}, "source": source})
    assert predict_job(row.job, row.cluster).fits


def test_selective_recomputation_of_plain_attention_is_never_worse_in_both_time_and_memory() -> None:
    job = replace(llama(), has_flash_attention=False)
    selective, operations = (predict_job(replace(job, recompute=kind), A100) for kind in ("selective", "operations"))
    assert selective.iteration_s < operations.iteration_s
    assert operations.memory_bytes < selective.memory_bytes


def test_zero_3_needs_no_more_memory_than_zero_2() -> None:
    question = {
        "model": "Llama 3 8B", "gpu": "A100 SXM4 80 GB", "nodes": 8, "tensor_parallel": 1, "pipeline_parallel": 1,
        "global_batch": 512, "recompute": "none",
    }  # fmt: skip
    totals = []
    for stage in (2, 3):
        job = PlanRequest.model_validate(question | {"zero": stage}).job()
        totals.append(memory(job, DEFAULT.memory, 8).total_bytes)
    assert totals[1] < totals[0]


def test_a_question_can_state_the_states_of_the_optimizer() -> None:
    question = {"model": "Llama 3 8B", "nodes": 1, "tensor_parallel": 8, "pipeline_parallel": 1}
    parts = [
        predict_job(PlanRequest.model_validate(question | {"optimizer_states": states}).job(), A100).memory
        for states in ("fp32", "bf16", "8 bit", "no fp32 weights")
    ]
    shares = [part.optimizer_bytes / parts[0].optimizer_bytes for part in parts]
    assert shares == pytest.approx([1, 8 / 12, 0.5, 4 / 12], rel=0.05)  # fmt: skip


def test_norms_that_are_known_to_be_fused_or_eager_make_the_memory_of_an_unnamed_code_base_more_certain() -> None:
    model = Model(40, 5120, 40, 2048, 128_000, ffn_hidden_size=13_824, is_gated=True, has_dropout=False)
    job = Job(model, 2048, tensor_parallel=2, pipeline_parallel=2, data_parallel=16, zero_stage=1,
              has_flash_attention=True)  # fmt: skip
    node = cluster("A100 80GB", 64, 8)
    unknown, fused, eager = (
        memory_distribution(replace(job, has_fused_norms=known), node, DEFAULT) for known in (None, True, False)
    )
    assert len(eager.parts) == 1
    assert fused.quantile(0.5) < unknown.quantile(0.5) < eager.quantile(0.5)
    assert eager.parts[0][1] == pytest.approx(unknown.parts[-1][1])
    assert fused.parts[0] == unknown.parts[0]
    assert predict_job(replace(job, has_fused_norms=False), node).spread == predict_job(job, node).spread
    named = replace(job, family="Megatron-LM")
    assert memory_distribution(replace(named, has_fused_norms=True), node, DEFAULT) == (
        memory_distribution(named, node, DEFAULT)
    )


def test_memory_figures_of_a_code_base_that_is_not_named_show_which_one_it_is() -> None:
    jobs = [
        llama(tensor_parallel=tensor, data_parallel=64 // tensor, micro_batch_size=size, recompute=recompute)
        for tensor in (2, 4, 8) for size in (1, 2, 4) for recompute in ("none", "full")
    ]  # fmt: skip
    for gathers, fuses in ((False, True), (True, True), (True, False)):
        kinds = [replace(job, gathers_logits=gathers, fuses_pointwise=fuses) for job in jobs]
        sizes = [memory(job, DEFAULT.memory, A100.domain).total_bytes for job in kinds]
        runs = [Observation(job, A100, memory_bytes=size) for job, size in zip(jobs[::3], sizes[::3], strict=True)]
        seen = calibrate(runs)
        for job, size in zip(jobs, sizes, strict=True):
            assert predict_job(job, A100, seen).memory_bytes == pytest.approx(size, rel=0.05)
