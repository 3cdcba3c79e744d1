"""Layouts and networks of today's trainings: each has the effect on time and memory that its definition implies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parlab.planner import Job, Model, cluster, predict_job
from parlab.planner.calibration.coverage import warnings
from parlab.planner.job.cluster import device
from parlab.planner.job.workload import Schedule
from parlab.planner.prediction.links import Links
from parlab.planner.prediction.memory import micro_batches_in_flight, stage_layers
from parlab.planner.prediction.parameters import TimeParameters
from parlab.planner.publications.published import predict_rows
from parlab.planner.requests.request import PlanRequest

GPT = Model(48, 8192, 64, 2048, 51_200)
JOB = Job(GPT, 128, tensor_parallel=8, pipeline_parallel=4, data_parallel=2, recompute="full")
NODES = cluster("A100 SXM4 80 GB", 64, 8)


def bubble(schedule: Schedule) -> float:
    return predict_job(replace(JOB, schedule=schedule), NODES).parts.bubble_s


def test_dualpipe_has_a_smaller_bubble_and_the_weights_of_two_stages() -> None:
    plain, both = (predict_job(replace(JOB, schedule=name), NODES) for name in ("1f1b", "dualpipe"))
    one_copy = predict_job(replace(JOB, schedule="dualpipe-v"), NODES)
    assert both.parts.bubble_s == pytest.approx(plain.parts.bubble_s * 2 / 9)  # of four stages
    assert both.memory.weights_bytes == pytest.approx(2 * one_copy.memory.weights_bytes, rel=0.05)
    assert micro_batches_in_flight(replace(JOB, schedule="dualpipe")) == 5


def test_zero_bubble_schedules_are_ordered_by_their_bubbles() -> None:
    assert bubble("zb-v") < bubble("zb-h1") < bubble("1f1b")
    assert bubble("zb-h2") == pytest.approx(bubble("zb-v"), rel=0.01)
    assert micro_batches_in_flight(replace(JOB, schedule="zb-h2")) > micro_batches_in_flight(JOB)


def test_an_oversubscribed_network_slows_only_groups_beyond_a_leaf_switch() -> None:
    job = replace(JOB, pipeline_parallel=1, data_parallel=128, global_batch_size=2048, overlaps_gradients=False)

    def gradients(nodes: int, oversubscription: float, *, is_rail_optimized: bool = False) -> float:
        where = cluster(
            "A100 SXM4 80 GB", 8 * nodes, 8, oversubscription=oversubscription, is_rail_optimized=is_rail_optimized
        )
        return predict_job(replace(job, data_parallel=nodes), where).parts.data_s

    assert gradients(128, 4.0) > 2 * gradients(128, 1.0)
    # With rails, a leaf switch reaches as many nodes as it has ports, so that fewer groups leave it.
    assert gradients(16, 4.0, is_rail_optimized=True) == pytest.approx(gradients(16, 1.0))
    assert gradients(16, 4.0) > gradients(16, 1.0)


def test_a_group_that_fills_a_leaf_switch_has_its_full_bandwidth() -> None:
    links = Links(cluster("A100 SXM4 80 GB", 64, 8, oversubscription=4.0), TimeParameters())
    full = links.cluster.leaf_nodes * 8
    assert full == 32
    assert links.between_bandwidth(full) == 4 * links.between_bandwidth(full + 1)


def test_a_partly_used_domain_takes_part_in_an_all_reduce() -> None:
    links = Links(NODES, TimeParameters())
    bandwidth, latency = links.ring(20, 20)
    # 20 devices are in three domains of 8
    assert links.all_reduce_s(1e9, 20, 20) == pytest.approx(2 * 2 / 3 * 1e9 / bandwidth + 2 * 19 * latency)


def test_a_sliding_window_saves_attention_and_not_weights() -> None:
    long = replace(GPT, sequence_length=32_768)
    full, windowed, all_windowed = (
        predict_job(replace(JOB, model=model, has_flash_attention=True), NODES)
        for model in (long, replace(long, sliding_window=1024), replace(long, sliding_window=1024, windowed_share=1.0))
    )
    assert all_windowed.parts.compute_s < windowed.parts.compute_s < full.parts.compute_s
    assert windowed.memory.weights_bytes == full.memory.weights_bytes


def test_stated_ends_leave_the_other_layers_to_the_stages_between_them() -> None:
    uneven = replace(JOB, first_stage_layers=8, last_stage_layers=10)
    assert [stage_layers(uneven, stage) for stage in range(4)] == [8, 15, 15, 10]
    assert predict_job(uneven, NODES).iteration_s > predict_job(JOB, NODES).iteration_s


def test_embedding_and_loss_count_as_layers_of_an_interleaved_schedule() -> None:
    fields = {"model": "Llama 3.1 405B", "gpu": "H100 SXM", "nodes": 16, "tensor_parallel": 8, "pipeline_parallel": 16,
              "global_batch": 128, "schedule": "interleaved-1f1b"}  # fmt: skip
    job = PlanRequest.model_validate(fields | {"chunks": 8}).job()
    assert job.model.num_layers + 2 == 16 * job.chunks
    with pytest.raises(ValueError, match=r"x chunks 9 is more than layers 126 with embedding and loss"):
        PlanRequest.model_validate(fields | {"chunks": 9})


def test_fewer_micro_batches_than_stages_leave_most_of_the_pipeline_idle() -> None:
    few = predict_job(replace(JOB, global_batch_size=4), NODES)
    many = predict_job(replace(JOB, global_batch_size=128), NODES)
    assert few.parts.bubble_s > few.parts.compute_s
    assert few.memory.in_flight == 2
    assert few.iteration_s > 4 / 128 * many.iteration_s


def test_masks_of_the_embedding_are_held_for_all_micro_batches_in_flight() -> None:
    long_pipeline = replace(JOB, model=replace(GPT, num_layers=62))  # even stages: the first one needs most
    masked = predict_job(long_pipeline, NODES).memory
    unmasked = predict_job(replace(long_pipeline, model=replace(long_pipeline.model, has_dropout=False)), NODES).memory
    masks = masked.in_flight * 2048 * 8192
    assert masked.activations_bytes - unmasked.activations_bytes > masks


def test_rows_outside_the_validated_range_say_so_in_their_basis() -> None:
    row = {
        "id": "long",
        "model": {"layers": 24, "hidden": 2048, "heads": 16, "seq": 524_288},
        "parallel": {"tp": 8, "gbs": 8, "attention": "flash"},
        "hardware": {"gpu": "H100-80GB", "count": 64, "node": 8},
    }
    (line,) = predict_rows([row])
    assert "Sequence length 524,288 is outside the range" in line["basis"]
    experts = replace(JOB, model=replace(GPT, num_experts=8))
    assert list(warnings(experts, device("MI300X")))
