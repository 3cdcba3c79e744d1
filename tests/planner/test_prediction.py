"""Predicted time and memory follow physics, and calibration moves them towards measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parlab.planner import DEFAULT, Job, Model, Observation, calibrate, cluster, predict, predict_job
from parlab.planner.job.cluster import Link, gbit_s
from parlab.planner.job.nodes import cluster_of
from parlab.planner.prediction.memory import layers_of_stage, micro_batches_in_flight
from runners.config import RunConfig

GPT = Model(24, 2048, 16, 1024, 50_304)
JOB = Job(GPT, 64, micro_batch_size=4)
NODE = cluster("A100-80GB", 8, 8)


def seconds(**changes: object) -> float:
    return predict_job(replace(JOB, **changes), NODE).iteration_s  # type: ignore[arg-type]


def gib(**changes: object) -> float:
    return predict_job(replace(JOB, **changes), NODE).memory_bytes / 2**30  # type: ignore[arg-type]


def test_the_parts_of_time_and_memory_add_up() -> None:
    prediction = predict_job(replace(JOB, tensor_parallel=2, pipeline_parallel=2, data_parallel=2), NODE)
    parts = {name: value for name, value in vars(prediction.parts).items() if name != "hidden_s"}
    assert sum(parts.values()) == pytest.approx(prediction.iteration_s)
    memory = sum(value for name, value in vars(prediction.memory).items() if name.endswith("_bytes"))
    assert memory == pytest.approx(prediction.memory_bytes)


def test_recomputation_takes_time_and_saves_memory() -> None:
    assert seconds(recompute="none") < seconds(recompute="selective") < seconds(recompute="full")
    assert gib(recompute="none") > gib(recompute="selective") > gib(recompute="full")


def test_a_higher_zero_stage_needs_less_memory() -> None:
    memory = [gib(data_parallel=8, zero_stage=stage) for stage in (0, 2, 3)]
    assert memory == sorted(memory, reverse=True)


def test_zero_buckets_are_never_larger_than_the_weights() -> None:
    def buffers(model: Model, **changes: object) -> float:
        job = replace(JOB, model=model, data_parallel=8, **changes)  # type: ignore[arg-type]
        return predict_job(job, NODE).memory.buffers_bytes

    tiny, huge = Model(2, 256, 4, 128, 1000), Model(48, 8192, 64, 1024, 50_304)
    assert buffers(tiny, zero_stage=1) - buffers(tiny) < 5 * tiny.parameters
    bucket = 2 * 2 * DEFAULT.memory.bucket_values
    assert buffers(huge, zero_stage=2) - buffers(huge) == pytest.approx(bucket + 4 * huge.parameters / 8)


def test_gradients_of_the_optimizer_step_reuse_the_memory_of_the_activations() -> None:
    def optimizer(micro_batch: int, **changes: object) -> float:
        job = replace(JOB, micro_batch_size=micro_batch, **changes)  # type: ignore[arg-type]
        return predict_job(job, NODE).memory.optimizer_bytes

    assert optimizer(1, recompute="full") > optimizer(64) == 12 * GPT.parameters
    assert optimizer(1, recompute="full", gradient_bytes=4) == 12 * GPT.parameters
    assert optimizer(1, recompute="full", precision="fp32") == 8 * GPT.parameters


def test_training_in_fp16_keeps_a_copy_of_the_gradients_in_fp32() -> None:
    def gradients(**changes: object) -> float:
        parts = predict_job(replace(JOB, recompute="full", **changes), NODE).memory  # type: ignore[arg-type]
        return parts.gradients_bytes + parts.optimizer_bytes + parts.buffers_bytes

    assert gradients(precision="fp16", micro_batch_size=64) == pytest.approx(18 * GPT.parameters)
    assert gradients(precision="bf16", micro_batch_size=64) == pytest.approx(14 * GPT.parameters)


def test_groups_between_nodes_have_smaller_buffers_than_groups_inside() -> None:
    job = replace(JOB, data_parallel=8)
    inside, between = (predict_job(job, cluster("A100-80GB", 8, size)).memory.buffers_bytes for size in (8, 4))
    assert inside == pytest.approx(DEFAULT.memory.communicator_bytes)
    assert between == pytest.approx(inside / 3)


def test_memory_of_the_allocator_calibrates_without_context_and_communicators() -> None:
    jobs = [replace(JOB, data_parallel=8, micro_batch_size=b, global_batch_size=64 * b) for b in (1, 2, 4, 8)]
    needed = {job: predict_job(job, NODE).memory for job in jobs}
    rows = [
        Observation(
            job, NODE, memory_bytes=part.total_bytes - part.overhead_bytes - part.buffers_bytes, is_allocated=True
        )
        for job, part in needed.items()
    ]
    assert calibrate(rows).memory_error < 0.01
    assert calibrate([replace(row, is_allocated=False) for row in rows]).memory_error > 0.01


def test_a_bubble_shrinks_with_micro_batches_and_with_chunks() -> None:
    def bubble(batch: int, **changes: object) -> float:
        job = replace(JOB, pipeline_parallel=4, global_batch_size=batch, **changes)  # type: ignore[arg-type]
        prediction = predict_job(job, NODE)
        return prediction.parts.bubble_s / prediction.iteration_s

    assert bubble(128) < bubble(32)
    assert bubble(32, schedule="interleaved-1f1b", virtual_stages=2) < bubble(32)
    assert bubble(32, schedule="zb-h1") < bubble(32)


def test_micro_batches_in_flight_follow_the_schedule() -> None:
    job = replace(JOB, pipeline_parallel=4, global_batch_size=64)
    assert micro_batches_in_flight(replace(job, schedule="gpipe")) == 16
    assert [micro_batches_in_flight(job, stage) for stage in range(4)] == [4, 3, 2, 1]
    interleaved = replace(job, schedule="interleaved-1f1b", virtual_stages=2)
    assert micro_batches_in_flight(interleaved) == pytest.approx(4 * (1 + 3 / 8))
    assert micro_batches_in_flight(replace(job, schedule="zb-h2")) == 7


def test_the_stages_together_have_all_layers() -> None:
    for layers in range(4, 40):
        for stages in range(1, 5):
            split = [layers_of_stage(layers, stages, stage) for stage in range(stages)]
            if stages == 1 or (layers + 2) % stages:
                assert sum(split) == layers
                assert max(split) - min(split) <= 1


def test_a_slow_network_between_nodes_costs_time() -> None:
    job = replace(JOB, data_parallel=16)
    near = predict_job(job, cluster("A100-80GB", 16, 8, inter_node_gbit_s=1600))
    far = predict_job(job, cluster("A100-80GB", 16, 8, inter_node_gbit_s=10))
    assert far.parts.data_s > 20 * near.parts.data_s


def test_all_experts_need_memory_but_only_the_active_ones_compute() -> None:
    many = replace(JOB, model=replace(GPT, num_experts=8, experts_per_token=2))
    assert predict_job(many, NODE).memory_bytes > 3 * predict_job(JOB, NODE).memory_bytes
    assert predict_job(many, NODE).parts.compute_s < 3 * predict_job(JOB, NODE).parts.compute_s


def test_grouped_queries_and_gated_mlps_count() -> None:
    llama = Model(32, 4096, 32, 4096, 128_256, 8, 14_336, True, has_tied_embeddings=False, has_positions=False)
    assert llama.parameters == pytest.approx(8.03e9, rel=0.01)


def test_calibration_recovers_the_constants_behind_the_times() -> None:
    true = replace(DEFAULT, time=replace(DEFAULT.time, matmul_efficiency=0.6, step_s=0.05))
    jobs = [replace(JOB, micro_batch_size=b, global_batch_size=64 * b) for b in (1, 2, 4, 8, 16)]
    observations = [Observation(job, NODE, predict_job(job, NODE, true).iteration_s) for job in jobs]
    fitted = calibrate(observations, "runs")
    assert fitted.time_error < DEFAULT.time_error
    new = replace(JOB, micro_batch_size=32, global_batch_size=640)
    expected = predict_job(new, NODE, true).iteration_s
    assert predict_job(new, NODE, fitted).iteration_s == pytest.approx(expected, rel=0.05)
    assert predict_job(new, NODE).iteration_s != pytest.approx(expected, rel=0.05)


def test_an_outlier_does_not_dominate_the_calibration() -> None:
    jobs = [replace(JOB, micro_batch_size=b, global_batch_size=64 * b) for b in (1, 2, 4, 8, 16)]
    observations = [Observation(job, NODE, predict_job(job, NODE).iteration_s) for job in jobs]
    with_outlier = [*observations[:2], replace(observations[2], iteration_s=1000.0), *observations[3:]]
    new = replace(JOB, micro_batch_size=32, global_batch_size=640)
    expected = predict_job(new, NODE).iteration_s
    assert predict_job(new, NODE, calibrate(with_outlier)).iteration_s == pytest.approx(expected, rel=0.1)


def test_calibration_without_observations_keeps_the_constants() -> None:
    assert calibrate([]).time == DEFAULT.time


def test_jobs_out_of_memory_lower_the_usable_share() -> None:
    full = predict_job(JOB, NODE).memory_bytes
    small = replace(NODE, device=replace(NODE.device, memory_bytes=int(full / 0.95)))
    assert predict_job(JOB, small).fits
    calibrated = calibrate([Observation(JOB, small, is_oom=True)])
    assert not predict_job(JOB, small, calibrated).fits


def test_a_layout_of_more_gpus_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="gpus 8 are too few for tensor 4 x pipeline 4 x data 1 = 16; use 16"):
        predict_job(replace(JOB, tensor_parallel=4, pipeline_parallel=4), NODE)


@pytest.mark.parametrize(
    ("make", "message"),
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
def test_impossible_hardware_and_sizes_name_field_value_and_remedy(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        make()  # type: ignore[operator]
    assert "use " in str(error.value)


@pytest.mark.parametrize(
    ("text", "gbit_per_s"),
    [
        ("8x200Gb HDR IB", 1600),
        ("NDR 400Gb x8", 3200),
        ("800Gbps", 800),
        ("1600Gbps RoCE", 1600),
        ("OPA nominal 400Gbps; measured all-reduce busbw 55-90Gbps", 72.5),
        ("8x 50 GB/s", 3200),
        ("25GB/s", 200),
        ("measured 5-7 GB/s", 48),
        (".gb 1.2.3Gb", 2.3),
        ("RoCE RDMA", None),
        (None, None),
    ],
)
def test_bandwidths_are_read_from_descriptions(text: str | None, gbit_per_s: float | None) -> None:
    assert gbit_s(text) == gbit_per_s


def test_a_configuration_is_predicted_for_processes_of_a_node() -> None:
    config = RunConfig.model_validate(
        {"parallel": {"engine": "zero", "data_parallel_size": 2, "zero_stage": 1}, "train": {"global_batch_size": 8}}
    )
    hardware = {"cpu_cores": 2, "memory_bytes": 8 << 30, "gpus": []}
    prediction = predict(config, cluster_of(hardware, config))
    assert prediction.cluster.device.is_cpu
    assert 0 < prediction.iteration_s < 10
    assert prediction.memory_bytes < 4 << 30
    measured = cluster_of(hardware | {"matmul": {"flops": {"fp32": {"1": 2e11}}}}, config)
    assert predict(config, measured).parts.compute_s < prediction.parts.compute_s


def test_a_node_with_gpus_is_predicted_with_its_own_memory() -> None:
    config = RunConfig.model_validate({"parallel": {"engine": "megatron", "tensor_parallel_size": 2}})
    hardware = {"cpu_cores": 2, "gpus": [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85 * 10**9}] * 2}
    nodes = cluster_of(hardware, config)
    assert nodes.device.name == "H100 SXM"
    assert nodes.device.memory_bytes == 85 * 10**9


def test_an_engine_that_trains_no_model_cannot_be_planned() -> None:
    config = RunConfig.model_validate({"parallel": {"engine": "allreduce", "data_parallel_size": 2}})
    with pytest.raises(ValueError, match="engine 'allreduce' cannot be planned; use"):
        predict(config, NODE)


def test_a_calibration_on_small_runs_is_shrunk_and_widened_for_large_ones() -> None:
    slow = replace(DEFAULT, time=replace(DEFAULT.time, matmul_efficiency=0.4))
    jobs = [replace(JOB, micro_batch_size=b, global_batch_size=64 * b) for b in (1, 2, 4, 8, 16)]
    small = calibrate([Observation(job, NODE, predict_job(job, NODE, slow).iteration_s) for job in jobs], "small")
    large, nodes = replace(JOB, data_parallel=64), cluster("A100-80GB", 64, 8)
    prediction = predict_job(large, nodes, small)
    shipped, unshrunk = predict_job(large, nodes), predict_job(large, nodes, replace(small, most_gpus=0))
    assert shipped.iteration_s < prediction.iteration_s < unshrunk.iteration_s
    assert prediction.spread >= 0.99 * shipped.spread
    assert any(reason.startswith("outside the calibrated range of at most 1 GPUs") for reason in prediction.reasons)
    assert not predict_job(JOB, NODE, small).reasons


def test_fsdp_gathers_weights_faster_than_zero_3_of_2021() -> None:
    sharded = replace(JOB, data_parallel=16, zero_stage=3, micro_batch_size=1)
    nodes = cluster("A100-80GB", 16, 8)
    old, fsdp = (predict_job(replace(sharded, overlaps_gradients=value), nodes).parts for value in (False, True))
    assert fsdp.data_s + fsdp.hidden_s < old.data_s


def test_a_common_error_of_a_code_base_moves_the_constants_less_than_its_rows_suggest() -> None:
    jobs = [replace(JOB, micro_batch_size=b, global_batch_size=64 * b) for b in (1, 2, 4, 8, 16)]
    slow = [Observation(job, NODE, 1.2 * predict_job(job, NODE).iteration_s) for job in jobs]
    own = calibrate(slow).time.matmul_efficiency
    several = calibrate(slow, code_bases=["a"] * len(slow)).time.matmul_efficiency
    assert own < several < DEFAULT.time.matmul_efficiency
