"""What the planner predicts beside what runs measured, and calibrations from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from parlab.lab import selectors
from parlab.lab.models import Attempt, Config, Node, Run
from parlab.planner import predict_job
from parlab.planner.configs import job_of
from parlab.planner.nodes import cluster_of
from runners.config import RunConfig, with_values

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
        Attempt.objects.filter(pk=attempt.pk).update(node=node)
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


def test_the_experiment_shows_the_figure_where_the_planner_knows_the_engine(page: Client, sweep: list[Run]) -> None:
    address = sweep[0].experiment.get_absolute_url()
    assert "figures/predicted.json" in page.get(address).content.decode()
    table = page.get(f"{address}figures/predicted.csv").content.decode().splitlines()
    assert len(table) == 1 + len(BATCHES)
    Run.objects.update(step_time_s=None)
    assert "figures/predicted.json" not in page.get(address).content.decode()


def test_runs_of_one_cluster_and_engine_are_offered_as_a_calibration(page: Client, sweep: list[Run]) -> None:
    (group,) = selectors.calibration_groups()
    assert group.title == "engine zero on CPU process (pool default), 8 runs"
    fitted = selectors.calibration_of(group)
    assert fitted.time_rows == len(BATCHES)
    text = page.get("/plan/", {"calibration": group.key}).content.decode()
    assert f"Calibrated on {group.title}: 8 times" in text
    assert "Calibrated on CPU process, planned for A100 SXM4 80 GB" in text


def test_a_calibration_that_is_gone_is_refused(page: Client) -> None:
    text = page.get("/plan/", {"calibration": "gone"}).content.decode()
    assert "is not known any more; choose another or none" in text


def test_emulated_links_calibrate_nothing(page: Client, sweep: list[Run]) -> None:
    for run in sweep:
        emulated = with_values(run.resolved, {"network.apply": "emulate", "network.delay_ms": 5})
        Run.objects.filter(pk=run.pk).update(resolved=emulated)
    assert selectors.calibration_groups() == []
