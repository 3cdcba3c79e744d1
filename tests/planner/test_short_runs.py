"""The short runs that calibrate the planner best."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parlab.planner import DEFAULT, Job, Observation, calibrate, cluster, predict_job
from parlab.planner.job.presets import preset
from parlab.planner.prediction.fitting import CONFIDENT
from parlab.planner.prediction.prediction import Prediction
from parlab.planner.search.layouts import search
from parlab.planner.search.short_runs import USUAL, chosen

NODES = cluster("H100", 32, 8)


@pytest.fixture(scope="module")
def offered() -> list[Prediction]:
    model = preset("Llama 3 8B")
    assert model is not None
    found = search(Job(model.model, 256, has_flash_attention=True), NODES)
    return [layout.prediction for layout in [*found.fitting, *found.too_large]]


def test_short_runs_surely_fit_differ_and_begin_with_the_fastest(offered: list[Prediction]) -> None:
    runs = chosen(offered)
    assert len(runs) == len(set(runs)) == USUAL
    assert runs[0] == 0
    assert all(offered[index].fits_probability >= CONFIDENT for index in runs)
    layouts = [offered[index].job for index in runs]
    assert len({job.tensor_parallel for job in layouts}) > 1
    assert len({job.pipeline_parallel for job in layouts}) > 1
    assert len({job.micro_batch_size for job in layouts}) > 1


def test_fewer_layouts_than_runs_are_all_chosen(offered: list[Prediction]) -> None:
    assert sorted(chosen(offered[:3])) == [0, 1, 2]
    assert chosen([]) == []


def test_short_runs_on_a_slower_cluster_calibrate_its_other_layouts(offered: list[Prediction]) -> None:
    """A cluster whose links inside a node are three times slower than usual."""
    slow = replace(DEFAULT, time=replace(DEFAULT.time, inside_efficiency=DEFAULT.time.inside_efficiency / 3))
    truth = [predict_job(prediction.job, NODES, slow).iteration_s for prediction in offered]
    runs = chosen(offered)
    measured = [Observation(offered[index].job, NODES, iteration_s=truth[index]) for index in runs]
    calibration = calibrate(measured)
    others = [index for index in range(len(offered)) if index not in runs]
    before = [abs(offered[index].iteration_s / truth[index] - 1) for index in others]
    after = [abs(predict_job(offered[i].job, NODES, calibration).iteration_s / truth[i] - 1) for i in others]
    assert sum(after) < 0.6 * sum(before)
