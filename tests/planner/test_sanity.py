"""What every prediction keeps, for jobs of all kinds: more recomputation, memory or bandwidth never makes it worse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.planner import Job, Model, cluster, predict_job
from parlab.planner.job.cluster import Cluster
from parlab.planner.job.presets import preset
from parlab.planner.job.workload import PRECISIONS, Recompute
from parlab.planner.prediction.memory import activation_bytes, memory
from parlab.planner.prediction.parameters import MemoryParameters
from parlab.planner.prediction.prediction import Prediction

_LIGHTER: tuple[tuple[Recompute, Recompute], ...] = (
    ("none", "selective"), ("selective", "full"), ("none", "operations"), ("operations", "full"),
)  # fmt: skip
_MODES: tuple[Recompute, ...] = ("none", "selective", "operations", "full")
_ROUNDING = 1 + 1e-9


@st.composite
def _models(draw: Any) -> Model:
    heads, experts = draw(st.sampled_from([16, 64])), draw(st.sampled_from([1, 1, 8]))
    return Model(
        draw(st.sampled_from([8, 32, 126])), 64 * heads, heads, draw(st.sampled_from([512, 8192])), 32_000,
        draw(st.sampled_from([None, 8])), draw(st.sampled_from([None, 768])), is_gated=draw(st.booleans()),
        num_experts=experts, experts_per_token=min(2, experts), attention=draw(st.sampled_from(["gqa", "mla"])),
        has_dropout=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def _jobs(draw: Any) -> tuple[Job, Cluster]:
    model, data = draw(_models()), draw(st.sampled_from([1, 8, 64]))
    micro, flags = draw(st.sampled_from([1, 4])), [draw(st.booleans()) for _ in range(7)]
    job = Job(
        model, micro * data * draw(st.sampled_from([1, 16])), micro, draw(st.sampled_from([1, 8])),
        draw(st.sampled_from([1, 4])), data, precision=draw(st.sampled_from(PRECISIONS)),
        schedule=draw(st.sampled_from(["1f1b", "gpipe", "zb-h2", "dualpipe"])), sequence_parallel=flags[0],
        zero_stage=draw(st.sampled_from([0, 1, 3])), overlaps_gradients=flags[1], has_flash_attention=flags[2],
        fuses_pointwise=flags[3], recomputes_activation=flags[4], has_8_bit_experts=flags[5], fuses_loss=flags[6],
        family="Megatron-Core", code_base="Megatron-Core",
    )  # fmt: skip
    gpu = draw(st.sampled_from(["A100 80GB", "H100", "GB200", "MI300X"]))
    return job, cluster(gpu, job.world_size, draw(st.sampled_from([4, 8])))


def _recomputed(job: Job, where: Cluster, mode: Recompute) -> Prediction:
    return predict_job(replace(job, recompute=mode), where)


@settings(max_examples=60)
@given(_jobs())
def test_more_recomputation_never_needs_more_memory_and_never_saves_time(pair: tuple[Job, Cluster]) -> None:
    for lighter, heavier in _LIGHTER:
        before, after = _recomputed(*pair, lighter), _recomputed(*pair, heavier)
        assert after.memory_bytes <= before.memory_bytes * _ROUNDING, (lighter, heavier)
        assert after.fits_probability >= before.fits_probability - 1e-9, (lighter, heavier)
        assert after.iteration_s * _ROUNDING >= before.iteration_s, (lighter, heavier)


@settings(max_examples=60)
@given(_jobs())
def test_the_next_stage_of_zero_that_frees_its_weights_never_needs_more_memory(pair: tuple[Job, Cluster]) -> None:
    job, where = pair
    totals = [predict_job(replace(job, zero_stage=stage), where).memory_bytes for stage in (1, 2, 3)]
    assert totals[1] <= totals[0] * _ROUNDING
    assert totals[2] <= totals[1] * _ROUNDING


@settings(max_examples=60)
@given(_jobs())
def test_more_memory_and_faster_links_never_hurt(pair: tuple[Job, Cluster]) -> None:
    job, where = pair
    usual = predict_job(job, where)
    larger = replace(where, device=replace(where.device, memory_bytes=2 * where.device.memory_bytes))
    assert 0 <= usual.fits_probability <= predict_job(job, larger).fits_probability + 1e-9 <= 1 + 2e-9
    inside = replace(where, inside=replace(where.inside, bandwidth=2 * where.inside.bandwidth))
    between = replace(where, between=replace(where.between, bandwidth=2 * where.between.bandwidth))
    for faster in (inside, between):
        assert 0 < predict_job(job, faster).iteration_s <= usual.iteration_s * _ROUNDING


@settings(max_examples=60)
@given(_jobs())
def test_parts_are_positive_and_the_median_is_inside_the_interval(pair: tuple[Job, Cluster]) -> None:
    prediction = predict_job(*pair)
    assert min([*vars(prediction.parts).values(), *vars(prediction.memory).values()]) >= 0
    low, middle, high = (prediction.distribution.quantile(share) for share in (0.1, 0.5, 0.9))
    assert low < middle < high
    assert low < prediction.memory_bytes < high


def test_recomputed_operations_split_the_inputs_of_a_layer_with_sequence_parallelism() -> None:
    job = Job(Model(32, 4096, 32, 2048, 32_000), 8, 1, 8, recompute="operations", has_flash_attention=True)
    apart, together = (activation_bytes(replace(job, sequence_parallel=flag))[0] for flag in (True, False))
    assert together - apart == 2 * 2 * 2048 * 4096 * (1 - 1 / 8)


def test_recomputing_operations_of_plain_attention_holds_the_scores_of_one_layer() -> None:
    job = Job(Model(32, 4096, 32, 2048, 32_000), 8, 1, 8, recompute="operations")
    stored, transient = activation_bytes(job)
    everything, _none = activation_bytes(replace(job, recompute="none"))
    gradients = (
        activation_bytes(replace(job, recompute="full"))[1] + activation_bytes(replace(job, recompute="full"))[0]
    )
    assert stored + transient == pytest.approx(gradients)
    assert stored + transient > everything


@pytest.mark.parametrize("name", ["recomputes_activation", "has_8_bit_experts"])
def test_a_plain_dense_model_has_neither_gate_nor_experts_to_spare(name: str) -> None:
    changes: dict[str, Any] = {name: True}
    for recompute in _MODES:
        job = Job(Model(32, 4096, 32, 2048, 32_000), 8, recompute=recompute, has_flash_attention=True)
        assert activation_bytes(replace(job, **changes)) == activation_bytes(job)


def test_a_stage_of_one_layer_gathers_only_that() -> None:
    job = Job(Model(8, 4096, 32, 2048, 32_000), 64, 1, 1, 8, 8, zero_stage=3)
    needed, whole = (memory(each, MemoryParameters(), 8) for each in (job, replace(job, zero_stage=2)))
    assert needed.weights_bytes <= whole.weights_bytes * (1 + 1 / 8)


def _deepseek(**changes: Any) -> Job:
    chosen = preset("DeepSeek-V3")
    assert chosen is not None
    job = Job(chosen.model, 15_360, 1, 1, 8, 16, precision="fp8", expert_parallel=16, has_flash_attention=True)
    return replace(job, **changes)


@pytest.mark.parametrize(("gpu", "zero"), [("H100", 1), ("H200", 0), ("GB200", 1)])
def test_the_memory_of_a_code_base_that_is_not_named_is_near_the_median_of_the_possible_ones(
    gpu: str, zero: int
) -> None:
    prediction = predict_job(_deepseek(zero_stage=zero), cluster(gpu, 128))
    assert prediction.memory_bytes == pytest.approx(prediction.distribution.quantile(0.5), rel=0.1)


@pytest.mark.parametrize(("gpu", "zero"), [("H100", 1), ("H200", 0), ("GB200", 3)])
def test_the_probability_of_an_unnamed_code_base_rises_with_its_recomputation(gpu: str, zero: int) -> None:
    where, modes = cluster(gpu, 128), ("none", "selective", "full")
    chances = [predict_job(_deepseek(zero_stage=zero, recompute=mode), where).fits_probability for mode in modes]
    assert chances == sorted(chances)


def test_no_recomputation_of_plain_attention_keeps_its_scores() -> None:
    job = Job(Model(32, 4096, 32, 8192, 32_000, is_gated=True), 64, 1, 1, 1, 8)
    kept, spared = (_recomputed(job, cluster("H100", 8), mode) for mode in ("none", "selective"))
    assert kept.distribution.quantile(0.1) > 2 * spared.distribution.quantile(0.5)
