"""The search of layouts: what it covers, and that its pruning loses none of the best."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parlab.planner import Job, cluster, predict_job
from parlab.planner.job.cluster import Cluster, device
from parlab.planner.job.code_bases import possible_jobs
from parlab.planner.job.presets import preset
from parlab.planner.job.workload import SCHEDULES, Schedule
from parlab.planner.prediction.fitting import CONFIDENT
from parlab.planner.prediction.job_flops import flops_of
from parlab.planner.requests.request import PlanRequest
from parlab.planner.search.candidates import families
from parlab.planner.search.layouts import LISTED, search

NODES = cluster("H100", 64, 8)


def job_for(name: str, batch: int = 512, **changes: Any) -> Job:
    chosen = preset(name)
    assert chosen is not None
    return replace(Job(chosen.model, batch, has_flash_attention=True), **changes)


def layouts_of(job: Job, where: Cluster) -> list[Job]:
    return [layout for family in families(job, where) for layout in family]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "where"), [("Llama 3 8B", NODES), ("Mixtral 8x7B", NODES), ("Llama 3 70B", cluster("GB200", 72, 4))]
)
def test_pruning_loses_none_of_the_best(name: str, where: Cluster) -> None:
    job = job_for(name, 512 if where is NODES else 576)
    pruned, whole = search(job, where), search(job, where, listed=10**6)
    by_split: dict[tuple[int, ...], float] = {}
    for layout in whole.fitting:
        chosen = layout.job
        split = (
            chosen.tensor_parallel, chosen.pipeline_parallel, chosen.context_parallel, chosen.expert_parallel,
            chosen.expert_tensor_parallel, chosen.zero_stage, chosen.shards,
        )  # fmt: skip
        by_split.setdefault(split, layout.prediction.iteration_s)
    expected = sorted(by_split.values())[:LISTED]
    assert [layout.prediction.iteration_s for layout in pruned.fitting[: len(expected)]] == pytest.approx(expected)
    best_only = search(job, where, listed=1).fitting[0]
    assert best_only.prediction.iteration_s == pytest.approx(expected[0])


def test_fsdp_is_tried_with_tensor_parallelism_pipelines_and_groups_of_shards() -> None:
    sharded = [layout for layout in layouts_of(job_for("Llama 3 8B"), NODES) if layout.zero_stage == 3]
    assert any(layout.tensor_parallel > 1 and layout.pipeline_parallel > 1 for layout in sharded)
    assert {layout.shard_ranks for layout in sharded if layout.tensor_parallel == 2} == {None, 4}
    assert all(layout.reshards_after_forward == (layout.pipeline_parallel == 1) for layout in sharded)
    assert all(any(option.copies_logits for _, option in possible_jobs(layout, "H100")) for layout in sharded)


def test_groups_of_shards_are_smaller_than_all_replicas() -> None:
    assert {layout.shard_ranks for layout in layouts_of(job_for("Llama 3 8B"), cluster("H100", 8, 8))} == {None}


def test_uneven_stages_are_interleaved_and_one_sequence_may_leave_few_micro_batches() -> None:
    deepseek = layouts_of(job_for("DeepSeek-V3"), NODES)
    assert any(layout.pipeline_parallel == 8 and layout.chunks == 4 for layout in deepseek)
    short = layouts_of(job_for("Llama 3 8B", 16), NODES)
    assert any(layout.num_micro_batches < layout.pipeline_parallel for layout in short)


def test_few_large_experts_may_be_shared_by_tensor_parallel_ranks() -> None:
    shared = {
        (layout.tensor_parallel, layout.expert_tensor_parallel) for layout in layouts_of(job_for("Mixtral 8x7B"), NODES)
    }
    assert (4, 4) in shared
    assert (4, 1) in shared
    assert {layout.expert_tensor_parallel for layout in layouts_of(job_for("Qwen3 30B-A3B"), NODES)} == {1}


def test_tensor_parallel_ranks_may_span_the_nodes_of_a_rack() -> None:
    sizes = {layout.tensor_parallel for layout in layouts_of(job_for("Llama 3 70B", 576), cluster("GB200", 72, 4))}
    assert 8 in sizes
    assert max(layout.tensor_parallel for layout in layouts_of(job_for("Llama 3 70B"), NODES)) == 8


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_that_few_trainers_have_is_tried_if_the_question_has_it(schedule: Schedule) -> None:
    tried = {layout.schedule for layout in layouts_of(job_for("Llama 3 70B", schedule=schedule), NODES)}
    assert tried == {"1f1b", "interleaved-1f1b", schedule}
    odd = layouts_of(job_for("Llama 3 70B", 72, schedule="dualpipe"), cluster("H100", 72, 8))
    assert not any(layout.schedule == "dualpipe" and layout.pipeline_parallel % 2 for layout in odd)


def test_only_as_many_layers_recompute_as_the_memory_needs() -> None:
    job = job_for("Llama 3 8B", 16, model=replace(job_for("Llama 3 8B").model, sequence_length=131_072))
    where = cluster("H100", 8, 8)
    partly = [layout for layout in search(job, where).fitting if layout.job.recomputed_layers]
    assert partly
    for layout in partly:
        fewer = replace(layout.job, recomputed_layers=(layout.job.recomputed_layers or 0) - 1)
        assert fewer.recomputed_layers == 0 or predict_job(fewer, where).fits_probability < CONFIDENT


def test_offloaded_activations_are_tried_if_the_question_has_them() -> None:
    where = cluster("GH200", 8, 8)
    long = replace(job_for("Llama 3 8B").model, sequence_length=131_072)
    asked = search(Job(long, 16, has_flash_attention=True, offloads_activations=True), where)
    assert any(layout.job.offloads_activations for layout in asked.fitting)
    plain = search(Job(long, 16, has_flash_attention=True), where)
    assert not any(layout.job.offloads_activations for layout in plain.fitting)
    assert asked.fitting[0].prediction.iteration_s < plain.fitting[0].prediction.iteration_s


def test_the_best_layout_for_llama_3_405b_is_of_the_published_kind_and_speed() -> None:
    """The Llama 3 Herd of Models 2024, table 4: TP 8, PP 16, FSDP, 400 TFLOP/s on 16,384 GPUs.

    Layouts with half of the stages and the same time are listed before it.
    """
    question = PlanRequest.model_validate(
        {"model": "Llama 3.1 405B", "gpu": "H100 SXM", "nodes": 2048, "global_batch": 2048, "pipeline_parallel": 16}
    )
    layouts = search(question.job(), question.cluster(device("H100 SXM")), None, question.overlap).fitting
    best = layouts[0]
    assert flops_of(best.job)[0] / (16_384 * best.prediction.iteration_s) / 1e12 == pytest.approx(400, rel=0.1)
    assert best.job.recompute != "full"
    assert best.job.pipeline_parallel in (8, 16)
    assert best.job.schedule == "interleaved-1f1b"
    assert 1 < best.job.tensor_parallel <= 8
    assert len(layouts) >= LISTED
    published = [layout for layout in layouts if (layout.job.tensor_parallel, layout.job.pipeline_parallel) == (8, 16)]
    assert published[0].prediction.iteration_s < 1.05 * best.prediction.iteration_s


def test_a_reason_names_only_recomputation_that_is_heavier() -> None:
    job = job_for("DeepSeek-V3", 4096, dispatcher="deepep")
    fitting = search(job, cluster("H100", 2048, 8)).fitting
    weights = ("none", "selective", "operations", "full")
    named = [layout for layout in fitting if "with recomputation" in layout.reason]
    assert named
    best = weights.index(fitting[0].job.recompute)
    assert all(weights.index(layout.job.recompute) > best for layout in named)


def test_a_search_offers_what_surely_fits_and_names_the_faster_layout_that_may_not() -> None:
    job = job_for("Llama 3 70B")
    sure = search(job, NODES)
    assert all(layout.prediction.fits_probability >= CONFIDENT for layout in sure.fitting)
    assert all(layout.prediction.fits_probability < CONFIDENT for layout in sure.too_large)
    risky = sure.risky
    assert risky is not None
    chance = risky.layout.prediction.fits_probability
    assert chance is not None
    assert risky.gained_s is not None
    assert 0.05 <= chance < CONFIDENT
    assert risky.layout.prediction.iteration_s < sure.fitting[0].prediction.iteration_s
    assert risky.lost_s == pytest.approx((1 - chance) * 600)
    assert risky.gained_s == pytest.approx(sure.fitting[0].prediction.iteration_s - risky.layout.prediction.iteration_s)
    assert risky.iterations == pytest.approx(risky.lost_s / (chance * risky.gained_s))


@pytest.mark.slow
def test_with_less_confidence_a_search_offers_what_was_the_risk() -> None:
    job = job_for("Llama 3 70B")
    risky = search(job, NODES).risky
    assert risky is not None
    bold = search(job, NODES, confidence=0.05)
    assert bold.fitting[0].prediction.iteration_s <= risky.layout.prediction.iteration_s
    assert bold.risky is None
