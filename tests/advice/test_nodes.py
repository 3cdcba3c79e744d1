"""Advice for the number of nodes."""

from __future__ import annotations

from dataclasses import replace

from parlab.advice.nodes import FEWER, LEAST_SAVED, MORE, MOST_HOURS, node_advice, sizes
from parlab.advice.rules import Case
from parlab.planner import Cluster, Job, Model, cluster, predict_job

from .test_rules import measured_on

MODEL = Model(24, 2048, 16, 2048, 50_000)
JOB = Job(MODEL, 512, 1, 1, 1, 32, has_flash_attention=True)


def advised(job: Job, where: Cluster) -> dict[str, float]:
    case = Case(measured_on(job, where), job, where)
    return {row.kind: row.gain for row in node_advice(case)}


def test_a_compute_bound_training_gets_more_nodes_and_no_fewer() -> None:
    fast = cluster("A100", 32, inter_node_gbit_s=1600)
    case = Case(measured_on(JOB, fast), JOB, fast)
    (advice,) = node_advice(case)
    assert (advice.kind, advice.title) == (MORE, "8 nodes instead of 4")
    assert advice.settings == {"cluster.nodes": 8, "parallel.data_parallel_size": 64}
    assert 0.3 < advice.gain < 0.5
    assert advice.low < advice.gain < advice.high
    hours = (1 - advice.gain) * 2
    assert 1 <= hours <= MOST_HOURS
    assert f"({100 * (hours - 1):+.0f} %)" in advice.cost
    assert "GPU hours per 1,000 steps" in advice.cost
    assert "failures" in advice.risk


def test_a_training_that_mostly_communicates_gets_fewer_nodes_and_no_more() -> None:
    slow = cluster("A100", 32, inter_node_gbit_s=5)
    job = replace(JOB, global_batch_size=64)
    case = Case(measured_on(job, slow), job, slow)
    (advice,) = node_advice(case)
    assert (advice.kind, advice.title) == (FEWER, "2 nodes instead of 4")
    assert advice.part == "data"
    assert (1 - advice.gain) / 2 <= 1 - LEAST_SAVED
    [halved] = [size for size in sizes(job, slow) if size.kind == FEWER]
    parts = [predict_job(job, slow).parts, predict_job(halved.job, halved.cluster).parts]
    seconds = [part.data_s + part.tensor_s + part.context_s + part.expert_s + part.pipeline_s for part in parts]
    assert f"predicts {1e3 * seconds[0]:.3g} ms of it now and {1e3 * seconds[1]:.3g} ms then" in advice.evidence
    assert "(-" in advice.cost  # fewer GPU hours


def test_the_gain_follows_the_measured_communication_and_not_the_predicted_one() -> None:
    """Where the network was measured to be slower than planned, more nodes gain less."""
    where = cluster("A100", 32, inter_node_gbit_s=1600)
    usual, slower = (Case(measured_on(JOB, where, data=factor), JOB, where) for factor in (1.0, 30.0))
    gains = [{row.kind: row.gain for row in node_advice(case)}.get(MORE, 0.0) for case in (usual, slower)]
    assert gains[1] < gains[0]


def test_replicas_divide_the_global_batch_and_nodes_stay_whole() -> None:
    where = cluster("A100", 32)
    assert [size.kind for size in sizes(replace(JOB, global_batch_size=32), where)] == [FEWER]
    assert [size.kind for size in sizes(replace(JOB, data_parallel=8), cluster("A100", 8))] == [MORE]
    assert not list(sizes(JOB, cluster("A100", 12)))
    for size in sizes(JOB, where):
        assert size.job.global_batch_size == JOB.global_batch_size
        assert size.cluster.gpus == size.job.data_parallel


def test_fewer_nodes_have_to_hold_the_states() -> None:
    big = Job(Model(48, 8192, 64, 2048, 50_000), 64, 1, 1, 1, 32, zero_stage=3, recompute="full")
    where = cluster("A100", 32, inter_node_gbit_s=5)
    halved = next(size for size in sizes(big, where) if size.kind == FEWER)
    assert predict_job(big, where).fits
    assert not predict_job(halved.job, halved.cluster).fits
    assert FEWER not in advised(big, where)


def test_without_a_plan_there_is_no_advice() -> None:
    where = cluster("A100", 32)
    assert node_advice(Case(measured_on(JOB, where), None, where)) == []
    assert node_advice(Case(measured_on(JOB, where), JOB, None)) == []
