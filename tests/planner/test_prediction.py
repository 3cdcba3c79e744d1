"""Predicted time and memory follow physics, and calibration moves them to what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parlab.planner import DEFAULT, Job, Model, Observation, calibrate, cluster, predict, predict_job
from parlab.planner.cluster import Link, gbit_s
from parlab.planner.memory import layers_of_stage, micro_batches_in_flight
from parlab.planner.nodes import cluster_of
from runners.config import RunConfig

GPT = Model(24, 2048, 16, 1024, 50_304)
ONE = Job(GPT, 64, micro_batch_size=4)
NODE = cluster("A100-80GB", 8, 8)


def seconds(**changes: object) -> float:
    return predict_job(replace(ONE, **changes), NODE).iteration_s  # type: ignore[arg-type]


def gib(**changes: object) -> float:
    return predict_job(replace(ONE, **changes), NODE).memory_bytes / 2**30  # type: ignore[arg-type]


def test_the_parts_of_time_and_memory_add_up() -> None:
    one = predict_job(replace(ONE, tensor_parallel=2, pipeline_parallel=2, data_parallel=2), NODE)
    parts = {name: value for name, value in vars(one.parts).items() if name != "hidden_s"}
    assert sum(parts.values()) == pytest.approx(one.iteration_s)
    held = sum(value for name, value in vars(one.memory).items() if name.endswith("_bytes"))
    assert held == pytest.approx(one.memory_bytes)


def test_recomputation_takes_time_and_spares_memory() -> None:
    assert seconds(recompute="none") < seconds(recompute="selective") < seconds(recompute="full")
    assert gib(recompute="none") > gib(recompute="selective") > gib(recompute="full")


def test_sharding_more_holds_less() -> None:
    held = [gib(data_parallel=8, zero_stage=stage) for stage in (0, 2, 3)]
    assert held == sorted(held, reverse=True)


def test_zero_keeps_buckets_that_are_never_larger_than_the_weights() -> None:
    def buffers(model: Model, **changes: object) -> float:
        job = replace(ONE, model=model, data_parallel=8, **changes)  # type: ignore[arg-type]
        return predict_job(job, NODE).memory.buffers_bytes

    tiny, huge = Model(2, 256, 4, 128, 1000), Model(48, 8192, 64, 1024, 50_304)
    assert buffers(tiny, zero_stage=1) - buffers(tiny) < 5 * tiny.parameters
    bucket = 2 * 2 * DEFAULT.memory.bucket_values
    assert buffers(huge, zero_stage=2) - buffers(huge) == pytest.approx(bucket + 4 * huge.parameters / 8)


def test_gradients_of_the_step_take_the_room_that_activations_have_left() -> None:
    def optimizer(micro_batch: int, **changes: object) -> float:
        job = replace(ONE, micro_batch_size=micro_batch, **changes)  # type: ignore[arg-type]
        return predict_job(job, NODE).memory.optimizer_bytes

    assert optimizer(1, recompute="full") > optimizer(64) == 12 * GPT.parameters
    assert optimizer(1, recompute="full", gradient_bytes=4) == 12 * GPT.parameters
    assert optimizer(1, recompute="full", precision="fp32") == 8 * GPT.parameters


def test_a_bubble_shrinks_with_micro_batches_and_with_chunks() -> None:
    def bubble(batch: int, **changes: object) -> float:
        job = replace(ONE, pipeline_parallel=4, global_batch_size=batch, **changes)  # type: ignore[arg-type]
        one = predict_job(job, NODE)
        return one.parts.bubble_s / one.iteration_s

    assert bubble(128) < bubble(32)
    assert bubble(32, schedule="interleaved-1f1b", virtual_stages=2) < bubble(32)
    assert bubble(32, schedule="zb-h1") < bubble(32)


def test_micro_batches_in_flight_follow_the_schedule() -> None:
    job = replace(ONE, pipeline_parallel=4, global_batch_size=64)
    assert micro_batches_in_flight(replace(job, schedule="gpipe")) == 16
    assert [micro_batches_in_flight(job, stage) for stage in range(4)] == [4, 3, 2, 1]
    interleaved = replace(job, schedule="interleaved-1f1b", virtual_stages=2)
    assert micro_batches_in_flight(interleaved) == pytest.approx(4 * (1 + 3 / 8))
    assert micro_batches_in_flight(replace(job, schedule="zb-h2")) == 7


def test_stages_hold_all_layers_whatever_their_number() -> None:
    for layers in range(4, 40):
        for stages in range(1, 5):
            held = [layers_of_stage(layers, stages, stage) for stage in range(stages)]
            if stages == 1 or (layers + 2) % stages:
                assert sum(held) == layers
                assert max(held) - min(held) <= 1


def test_a_slow_network_between_nodes_costs_time() -> None:
    job = replace(ONE, data_parallel=16)
    near = predict_job(job, cluster("A100-80GB", 16, 8, inter_node_gbit_s=1600))
    far = predict_job(job, cluster("A100-80GB", 16, 8, inter_node_gbit_s=10))
    assert far.parts.data_s > 20 * near.parts.data_s


def test_experts_cost_memory_and_not_the_compute_of_all_of_them() -> None:
    many = replace(ONE, model=replace(GPT, num_experts=8, experts_per_token=2))
    assert predict_job(many, NODE).memory_bytes > 3 * predict_job(ONE, NODE).memory_bytes
    assert predict_job(many, NODE).parts.compute_s < 3 * predict_job(ONE, NODE).parts.compute_s


def test_grouped_queries_and_gated_mlps_count() -> None:
    llama = Model(32, 4096, 32, 4096, 128_256, 8, 14_336, True, has_tied_embeddings=False, has_positions=False)
    assert llama.parameters == pytest.approx(8.03e9, rel=0.01)


def test_calibration_recovers_constants_that_made_the_times() -> None:
    true = replace(DEFAULT, time=replace(DEFAULT.time, matmul_efficiency=0.6, step_s=0.05))
    jobs = [replace(ONE, micro_batch_size=b, global_batch_size=64 * b) for b in (1, 2, 4, 8, 16)]
    seen = [Observation(job, NODE, predict_job(job, NODE, true).iteration_s) for job in jobs]
    fitted = calibrate(seen, "runs")
    assert fitted.time_error < DEFAULT.time_error
    new = replace(ONE, micro_batch_size=32, global_batch_size=640)
    wanted = predict_job(new, NODE, true).iteration_s
    assert predict_job(new, NODE, fitted).iteration_s == pytest.approx(wanted, rel=0.05)
    assert predict_job(new, NODE).iteration_s != pytest.approx(wanted, rel=0.05)


def test_one_wild_measurement_does_not_carry_the_calibration_away() -> None:
    jobs = [replace(ONE, micro_batch_size=b, global_batch_size=64 * b) for b in (1, 2, 4, 8, 16)]
    seen = [Observation(job, NODE, predict_job(job, NODE).iteration_s) for job in jobs]
    wild = [*seen[:2], replace(seen[2], iteration_s=1000.0), *seen[3:]]
    new = replace(ONE, micro_batch_size=32, global_batch_size=640)
    wanted = predict_job(new, NODE).iteration_s
    assert predict_job(new, NODE, calibrate(wild)).iteration_s == pytest.approx(wanted, rel=0.1)


def test_nothing_measured_leaves_the_constants_as_they_are() -> None:
    assert calibrate([]).time == DEFAULT.time


def test_out_of_memory_teaches_where_the_border_is() -> None:
    full = predict_job(ONE, NODE).memory_bytes
    small = replace(NODE, device=replace(NODE.device, memory_bytes=int(full / 0.95)))
    assert predict_job(ONE, small).fits
    taught = calibrate([Observation(ONE, small, is_oom=True)])
    assert not predict_job(ONE, small, taught).fits


def test_a_layout_of_more_gpus_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="gpus 8 are too few for tensor 4 x pipeline 4 x data 1 = 16; use 16"):
        predict_job(replace(ONE, tensor_parallel=4, pipeline_parallel=4), NODE)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Link(0, 0), "bandwidth 0"),
        (lambda: Link(1, -1), "latency_s -1"),
        (lambda: cluster("A100", 0), "gpus 0"),
        (lambda: cluster("A100", 8, 0), "gpus_per_node 0"),
        (lambda: cluster("GTX 9000", 8), "GTX 9000"),
        (lambda: cluster("A100", 8, inter_node_gbit_s=0), "inter_node_gbit_s 0"),
        (lambda: Model(0, 1, 1, 1, 1), "num_layers 0"),
        (lambda: Model(1, 2**60, 1, 1, 1), "hidden_size"),
        (lambda: Job(GPT, 1, zero_stage=4), "zero_stage 4"),
    ],
)
def test_impossible_hardware_and_sizes_name_field_value_and_remedy(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        make()  # type: ignore[operator]
    assert "use " in str(error.value)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("8x200Gb HDR IB", 1600),
        ("NDR 400Gb x8", 3200),
        ("800Gbps", 800),
        ("1600Gbps RoCE", 1600),
        ("OPA nominal 400Gbps; measured all-reduce busbw 55-90Gbps", 72.5),
        ("RoCE RDMA", None),
        (None, None),
    ],
)
def test_bandwidths_are_read_from_words(text: str | None, wanted: float | None) -> None:
    assert gbit_s(text) == wanted


def test_a_configuration_of_parlab_is_planned_for_processes_of_a_node() -> None:
    config = RunConfig.model_validate(
        {"parallel": {"engine": "zero", "data_parallel_size": 2, "zero_stage": 1}, "train": {"global_batch_size": 8}}
    )
    hardware = {"cpu_cores": 2, "memory_bytes": 8 << 30, "gpus": []}
    one = predict(config, cluster_of(hardware, config))
    assert one.cluster.device.is_cpu
    assert 0 < one.iteration_s < 10
    assert one.memory_bytes < 4 << 30
    measured = cluster_of(hardware | {"matmul": {"flops": {"fp32": {"1": 2e11}}}}, config)
    assert predict(config, measured).parts.compute_s < one.parts.compute_s


def test_a_node_with_gpus_is_planned_with_its_own_memory() -> None:
    config = RunConfig.model_validate({"parallel": {"engine": "megatron", "tensor_parallel_size": 2}})
    hardware = {"cpu_cores": 2, "gpus": [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85 * 10**9}] * 2}
    where = cluster_of(hardware, config)
    assert where.device.name == "H100 SXM"
    assert where.device.memory_bytes == 85 * 10**9


def test_what_trains_no_model_is_not_planned() -> None:
    config = RunConfig.model_validate({"parallel": {"engine": "allreduce", "data_parallel_size": 2}})
    with pytest.raises(ValueError, match="engine 'allreduce' is not planned; use"):
        predict(config, NODE)
