"""What the planner predicts beside what runs measured, and calibrations from them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Attempt, Config, Member, Node, Run
from parlab.lab.selectors.analysis.plans import calibration_of, calibration_pool
from parlab.planner import predict_job
from parlab.planner.job.cluster import device
from parlab.planner.job.configs import job_of
from parlab.planner.job.nodes import cluster_of
from parlab.planner.publications import sc21
from runners.config import RunConfig, with_values
from tests.conftest import place

from .conftest import finish

pytestmark = pytest.mark.usefixtures("catalogue")

HARDWARE = {"cpu_cores": 4, "memory_bytes": 16 << 30, "gpus": []}
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
SLOWER = 3.0


@pytest.fixture
def sweep(make_attempt: Callable[..., Attempt], make_config: Callable[..., Config]) -> list[Run]:
    """Runs of engine zero on one node that take three times what the planner expects."""
    node = Node.objects.create(name="n1", hardware=HARDWARE)
    base: dict[str, Any] = {"parallel": {"engine": "zero", "data_parallel_size": 2}, "model": {"hidden_size": 512}}
    config = make_config(data=base)
    runs = []
    for size in BATCHES:
        values = {"train.micro_batch_size": size, "train.global_batch_size": 2 * size}
        planned = RunConfig.model_validate(with_values(base, values))
        seconds = predict_job(job_of(planned), cluster_of(HARDWARE, planned)).iteration_s
        attempt = make_attempt(config=config, point=values)
        place(attempt, node)
        runs.append(finish(attempt, SLOWER * seconds, resolved=planned.resolved()))
    return runs


def test_half_of_the_runs_calibrate_the_prediction_of_the_others(page: Client, sweep: list[Run]) -> None:
    drawing = page.get(f"{sweep[0].experiment.get_absolute_url()}figures/predicted.json").json()
    calibrated, plain, agree = drawing["figure"]["data"]
    assert agree["name"] == "agree"
    off = [y / x for x, y in zip(plain["x"], plain["y"], strict=True)]
    assert off == pytest.approx([1 / SLOWER] * len(BATCHES))
    near = [y / x for x, y in zip(calibrated["x"], calibrated["y"], strict=True)]
    assert max(abs(ratio - 1) for ratio in near) < 0.35
    assert f"Half of the {len(BATCHES)} runs" in drawing["caption"]


def test_the_experiment_shows_the_figure_where_iterations_were_timed(page: Client, sweep: list[Run]) -> None:
    address = sweep[0].experiment.get_absolute_url()
    missing = "Predicted against measured: no run has a step time or FLOP/s."
    assert missing not in page.get(address).content.decode()
    table = page.get(f"{address}figures/predicted.csv").content.decode().splitlines()
    assert len(table) == 1 + len(BATCHES)
    Run.objects.update(step_time_s=None, summary={})
    assert missing in page.get(address).content.decode()


def test_a_sweep_that_cannot_be_predicted_says_why(page: Client, sweep: list[Run]) -> None:
    Run.objects.filter(pk=sweep[0].pk).update(resolved=with_values(sweep[0].resolved, {"network.apply": "emulate"}))
    address = f"{sweep[0].experiment.get_absolute_url()}figures/predicted.json"
    assert "Not predicted: 1 run: its links were shaped or emulated." in page.get(address).json()["caption"]
    Run.objects.update(origin=Run.Origin.PUBLISHED)
    assert "7 runs: the GPU is not stated" in page.get(address).json()["empty"]


def test_runs_of_a_cluster_and_engine_are_offered_as_a_calibration(page: Client, sweep: list[Run]) -> None:
    (group,) = calibration_pool().groups
    assert group.title == "engine zero on CPU process (pool default), 8 runs"
    fitted = calibration_of(group, device("A100"))
    assert fitted.time_rows == len(BATCHES)
    text = page.get("/plan/", {"calibration": group.key}).content.decode()
    assert f"Calibrated on {group.title}: 8 times" in text
    assert "Calibrated on CPU process but planned for A100 SXM4 80 GB" in text


def test_calibrations_are_read_once_until_a_run_changes(
    sweep: list[Run], django_assert_max_num_queries: Callable[[int], AbstractContextManager[Any]]
) -> None:
    (first,) = calibration_pool().groups
    with django_assert_max_num_queries(3):
        assert calibration_pool().groups == [first]
    Run.objects.filter(pk=sweep[0].pk).update(step_time_s=1e-3)
    assert calibration_pool().groups != [first]


def test_a_calibration_that_is_gone_is_refused(page: Client) -> None:
    text = page.get("/plan/", {"calibration": "gone"}).content.decode()
    assert "no longer exists; select another calibration or none" in text


def test_emulated_links_calibrate_nothing(page: Client, sweep: list[Run]) -> None:
    for run in sweep:
        emulated = with_values(run.resolved, {"network.apply": "emulate", "network.delay_ms": 5})
        Run.objects.filter(pk=run.pk).update(resolved=emulated)
    pool = calibration_pool()
    assert pool.groups == []
    assert pool.sources[0].unused == ["8 runs: its links were shaped or emulated"]


def test_runs_of_which_no_machine_is_known_are_not_taken_for_runs_on_a_cpu(page: Client, sweep: list[Run]) -> None:
    Attempt.objects.update(environment={})
    Member.objects.all().delete()
    assert calibration_pool().sources[0].unused == ["8 runs: the hardware is not recorded"]


@pytest.fixture
def logs(sweep: list[Run]) -> list[Run]:
    """The runs of the sweep as those of files, which say sizes and layout, but neither engine nor GPU."""
    for size, run in zip(BATCHES, sweep, strict=True):
        run.origin = Run.Origin.IMPORTED
        run.resolved = {
            "model": {"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "sequence_length": 1024},
            "train": {"micro_batch_size": size, "global_batch_size": 2 * size},
            "parallel": {"data_parallel_size": 2},
            "cluster": {"nodes": 1, "gpus_per_node": 2},
        }
        run.save()
    return sweep


def test_files_that_say_their_sizes_calibrate_on_the_device_that_is_planned_for(page: Client, logs: list[Run]) -> None:
    Run.objects.filter(pk=logs[0].pk).update(resolved=logs[0].resolved | {"model": {"num_layers": 24}})
    Run.objects.filter(pk=logs[1].pk).update(point={"network setting": "slow"})
    (group,) = calibration_pool().groups
    assert group.title.endswith("on a GPU not named in its files, 6 runs")
    text = page.get("/plan/", {"calibration": group.key, "gpu": "H100 SXM"}).content.decode()
    assert "assuming H100 SXM: 6 times" in text
    assert "The calibration files do not name a GPU; H100 SXM is assumed." in text
    assert "1 run: model.hidden_size, model.sequence_length are missing" in text
    assert "1 run: network setting &#x27;slow&#x27; states neither a delay in ms nor a rate in bit/s" in text


def test_files_that_name_their_gpu_are_predicted(page: Client, logs: list[Run]) -> None:
    address = f"{logs[0].experiment.get_absolute_url()}figures/predicted.json"
    assert "8 runs: the GPU is not stated" in page.get(address).json()["empty"]
    for run in logs:
        run.summary["peak"] = {"device": "A100 SXM4 80 GB"}
        run.save()
    assert "Half of the 8 runs" in page.get(address).json()["caption"]
    (group,) = calibration_pool().groups
    assert group.device == "A100 SXM4 80 GB"


def test_links_are_read_as_the_network_page_reads_them(page: Client, logs: list[Run]) -> None:
    experiment = logs[0].experiment
    experiment.notes = "Measured on a cluster of AWS p3.2xlarge instances."
    experiment.save()
    Run.objects.filter(pk=logs[0].pk).update(point={"network setting": "delay 10ms bandwidth 1Gbps"})
    observations = calibration_pool().groups[0].observations
    clusters = {observation.job.micro_batch_size: observation.cluster for observation in observations}
    assert {where.device.name for where in clusters.values()} == {"V100 SXM2 16 GB"}
    assert clusters[BATCHES[0]].between.latency_s == 0.01
    assert clusters[BATCHES[0]].between.bandwidth == 1e9 / 8
    assert clusters[BATCHES[1]].is_between_assumed


def test_rows_of_nvidias_table_are_timed_by_their_flops(page: Client, logs: list[Run]) -> None:
    for run, row in zip(logs, sc21.TABLE, strict=False):
        run.resolved = {
            "model": {"num_layers": row.layers, "hidden_size": row.hidden, "num_attention_heads": row.heads},
            "train": {"micro_batch_size": row.micro_batch, "global_batch_size": row.global_batch},
            "parallel": {
                "tensor_parallel_size": row.tensor,
                "pipeline_parallel_size": row.pipeline,
                "data_parallel_size": row.data,
            },
        }
        run.summary, run.step_time_s = {"tflops_per_gpu": row.tflops_per_gpu}, None
        run.save()
    drawing = page.get(f"{logs[0].experiment.get_absolute_url()}figures/predicted.json").json()
    assert "Half of the 8 runs" in drawing["caption"]
    plain = next(trace for trace in drawing["figure"]["data"] if trace["name"] == "not calibrated")
    ratios = [predicted / measured for measured, predicted in zip(plain["x"], plain["y"], strict=True)]
    errors = [100 * (1 / ratio - 1) for ratio in ratios]
    expected = sorted(row.error_pct for row in sc21.compared()[: len(logs)])
    assert sorted(errors) == pytest.approx(expected, abs=0.01)


def test_a_calibration_follows_changed_numbers_and_moved_nodes(sweep: list[Run]) -> None:
    before = calibration_pool().groups[0]
    assert calibration_pool().groups[0] is before
    run = sweep[0]
    Run.objects.filter(pk=run.pk).update(step_time_s=2 * (run.step_time_s or 0))
    slower = calibration_pool().groups[0]
    assert slower.observations != before.observations
    gpu = device("CPU EPYC 7763")
    assert calibration_of(slower, gpu) != calibration_of(before, gpu)
    Run.objects.filter(pk=run.pk).update(numbers_at=timezone.now())
    assert calibration_pool().groups[0] is not slower
    Node.objects.update(pool="upstairs")
    assert "upstairs" in calibration_pool().groups[0].title
