"""Layouts, numbers of nodes, days and cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parlab.planner import Job, Model, cluster, predict_job
from parlab.planner.job.cluster import device, with_gpus
from parlab.planner.publications.sc21 import compared
from parlab.planner.requests.answer import other_schedules, sizing
from parlab.planner.requests.request import PlanRequest
from parlab.planner.search.budget import budget
from parlab.planner.search.layouts import search
from parlab.planner.search.questions import fewest_nodes, fits_somehow, largest_model, node_counts, trade_off, verdict

GPT3 = Model(96, 12_288, 96, 2048, 51_200)
JOB = Job(GPT3, 1536, has_flash_attention=True)
A100 = cluster("A100-80GB", 128 * 8, 8)
SMALL = Job(Model(24, 2048, 16, 1024, 50_304), 256)


def test_the_best_layout_comes_first_and_slower_ones_have_a_reason() -> None:
    layouts = search(SMALL, cluster("A100-80GB", 16, 8))
    seconds = [layout.prediction.iteration_s for layout in layouts.fitting]
    assert seconds == sorted(seconds)
    assert layouts.fitting[0].reason == ""
    assert all(layout.reason.split(" % slower: ")[1] for layout in layouts.fitting[1:])


def test_the_reason_of_a_layout_that_does_not_fit_is_its_memory() -> None:
    layouts = search(JOB, cluster("V100 32GB", 128, 4))
    assert layouts.too_large
    assert all(
        layout.reason.startswith(("does not fit: needs ", "may not fit: needs ")) for layout in layouts.too_large
    )


def test_every_layout_of_a_search_uses_all_gpus_and_divides_the_batch() -> None:
    for layout in search(SMALL, cluster("A100-80GB", 24, 8)).fitting:
        job = layout.job
        assert job.world_size == 24
        assert job.global_batch_size % (job.micro_batch_size * job.data_parallel) == 0
        assert job.model.num_heads % job.tensor_parallel == 0


def test_the_model_fits_on_the_fewest_nodes_and_not_on_fewer() -> None:
    nodes = fewest_nodes(JOB, A100)
    assert nodes is not None
    assert fits_somehow(JOB, with_gpus(A100, nodes * 8))
    assert not fits_somehow(JOB, with_gpus(A100, (nodes - 1) * 8))


def test_a_larger_gpu_trains_a_larger_model_on_one_node() -> None:
    small = largest_model(JOB, cluster("A100-40GB", 8, 8))
    large = largest_model(JOB, cluster("A100-80GB", 8, 8))
    assert small is not None
    assert large is not None
    assert small.parameters < large.parameters


def test_no_model_fits_on_a_gpu_that_is_too_small_for_one_layer() -> None:
    tiny = cluster("V100", 1, 1)
    assert largest_model(JOB, replace(tiny, device=replace(tiny.device, memory_bytes=10**8))) is None


def test_more_nodes_take_fewer_days_and_the_verdict_names_a_sufficient_number() -> None:
    sizes = trade_off(JOB, A100, [16, 32, 64, 128], 300e9, 2.0)
    days = [size.budget.days for size in sizes if size.budget]
    assert len(days) == 4
    assert days == sorted(days, reverse=True)
    too_few = verdict(sizes[0], days[2], sizes)
    assert not too_few.is_enough
    assert too_few.sentence.startswith("Too few: training takes ")
    assert " on 16 nodes in the best layout" in too_few.sentence
    assert "128 nodes would take" in too_few.sentence
    assert verdict(sizes[3], days[0], sizes).is_enough


def test_compared_numbers_of_nodes_include_the_fewest_and_the_requested_one() -> None:
    assert node_counts(48, 5) == [5, 8, 16, 32, 48, 64, 128, 256]


@pytest.mark.slow
def test_the_fewest_nodes_that_can_train_divide_the_global_batch() -> None:
    # The memory of 6 nodes suffices for GPT-3 175B, but no layout of 48 GPUs that fits divides a batch of 1,000.
    request = PlanRequest(nodes=12, global_batch=1000)
    sized = sizing(request, device(request.gpu))
    counts = {size.nodes: size.budget for size in sized.sizes}
    assert sized.fewest is not None
    assert sized.fewest_training is not None
    assert counts[sized.fewest] is None
    assert sized.fewest < sized.fewest_training <= 8
    assert counts[sized.fewest_training] is not None
    assert list(counts) == sorted(counts)


def test_a_budget_counts_days_gpu_hours_and_cost() -> None:
    prediction = predict_job(replace(SMALL, data_parallel=16), cluster("A100-80GB", 16, 8))
    total = budget(prediction, 1e9, 2.5)
    iterations = 1e9 / (256 * 1024)
    assert total.days == pytest.approx(iterations * prediction.iteration_s / 86_400)
    assert total.gpu_hours == pytest.approx(total.days * 24 * 16)
    assert total.cost == pytest.approx(2.5 * total.gpu_hours)
    assert total.days_low < total.days < total.days_high


@pytest.mark.parametrize(("tokens", "price"), [(0, 1), (-1, 1), (float("nan"), 1), (1e9, -1)])
def test_a_budget_out_of_range_is_refused(tokens: float, price: float) -> None:
    prediction = predict_job(replace(SMALL, data_parallel=16), cluster("A100-80GB", 16, 8))
    with pytest.raises(ValueError, match="use "):
        budget(prediction, tokens, price)


def test_every_row_of_nvidias_table_is_predicted_within_ten_per_cent() -> None:
    errors = {row.published.name: round(row.error_pct, 1) for row in compared()}
    assert {name: error for name, error in errors.items() if abs(error) > 10} == {}


def test_schedules_are_compared_if_there_are_enough_layers() -> None:
    pipeline = replace(SMALL, pipeline_parallel=8, schedule="interleaved-1f1b", virtual_stages=3)
    chunks = {job.schedule: job.virtual_stages for job in other_schedules(pipeline)}
    assert chunks == {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 3, "zb-h1": 1, "zb-h2": 1, "zb-v": 1} | dict.fromkeys(
        ("dualpipe", "dualpipe-v"), 1
    )
    deep = replace(SMALL, pipeline_parallel=24)
    assert [job.schedule for job in other_schedules(deep)] == ["gpipe", "1f1b", "zb-h1", "zb-h2"]
    assert other_schedules(SMALL) == []
