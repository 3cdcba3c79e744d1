"""Engine-specific measurements on the page of a run."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.test import Client

from parlab.charts.format import DASH
from parlab.charts.sweeps import device_map
from parlab.lab.models import Attempt, Config, Node, Run
from parlab.lab.selectors.device_grids import device_grid
from parlab.publishing.figures import engine_measurements
from parlab.series import store
from parlab.series.columns import Columns
from tests.conftest import SMALL, place

from .test_experiments import text
from .test_runs import RUN

pytestmark = pytest.mark.django_db

MIB = 2**20


def points(values: dict[int, float]) -> Columns:
    return Columns(
        np.array(list(values), np.int64), np.arange(len(values), dtype=np.float64), np.array(list(values.values()))
    )


@pytest.fixture
def attempt_of(make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]) -> Callable[..., Attempt]:
    """Make an attempt of a configuration: attempt_of({"parallel": {...}}, state="finished")."""

    def make(data: dict[str, Any], state: str = "finished") -> Attempt:
        return make_attempt(config=make_config(data=SMALL | data), state=state)

    return make


@pytest.fixture
def bandwidths(attempt_of: Callable[..., Attempt]) -> Attempt:
    attempt = attempt_of({"parallel": {"engine": "allreduce", "data_parallel_size": 4}})
    series = {
        "algbw": {1024: 1e9, 4096: 2e9},
        "busbw": {1024: 1.5e9, 4096: 3e9},
        "time_s": {1024: 1.024e-6, 4096: 2.048e-6},
        "first_time_s": {1024: 1e-3, 4096: 2e-3},
        "wrong": {1024: 0.0, 4096: 0.0},
    }
    store.append(attempt.pk, {(f"{name}/all-reduce", 0): points(values) for name, values in series.items()})
    return attempt


@pytest.fixture
def search(attempt_of: Callable[..., Attempt]) -> Attempt:
    data = {
        "parallel": {"engine": "capacity"},
        "capacity": {"find": "num_layers", "at_most": 40},
        "launcher": {"kind": "plain", "memory_limit_mib": 512},
        "cluster": {"device": "cpu"},
    }
    attempt = attempt_of(data, state="running")
    series = {
        "num_layers": {1: 8.0, 2: 16.0, 3: 12.0},
        "fits": {1: 1.0, 2: 0.0, 3: 1.0},
        "trial_s": {1: 3.0, 2: 2.0, 3: 3.5},
        "memory_peak_bytes": {1: 300.0 * MIB, 3: 450.0 * MIB},
        "model_parameters": {1: 1e6, 3: 1.5e6},
    }
    store.append(attempt.pk, {(name, 0): points(values) for name, values in series.items()})
    Attempt.objects.filter(pk=attempt.pk).update(last_step=3)
    return attempt


def test_bandwidths_stand_in_nccl_tests_columns_beside_their_figure(page: Client, bandwidths: Attempt) -> None:
    response = page.get(RUN)
    page_text = text(response)
    assert "size (B) count type redop time (µs) algbw (GB/s) busbw (GB/s) #wrong first trial (µs)" in page_text
    assert "1024 256 float sum 1.02 1.00 1.50 0 1,000" in page_text
    assert "reaches a busbw of 3.00 GB/s" in page_text
    assert 'data-figure="bandwidth"' in response.content.decode()

    drawn = json.loads(page.get(f"{RUN}figures/bandwidth.json").content)["figure"]["data"]
    assert [trace["name"].rpartition(": ")[2] for trace in drawn] == ["busbw", "algbw", "first trial"]
    rows = list(csv.DictReader(io.StringIO(page.get(f"{RUN}figures/bandwidth.csv").content.decode())))
    assert [float(row["busbw_bytes_per_s"]) for row in rows] == [1.5e9, 3e9]
    assert rows[0]["ranks"] == "4"


def test_a_search_says_its_answer_and_lists_its_trials(page: Client, search: Attempt) -> None:
    running = text(page.get(RUN))
    assert "At least 12 layers (1.50 M parameters) so far; the search continues." in running
    Run.objects.update(state="finished")
    ended = text(page.get(RUN))
    assert "12 layers (1.50 M parameters) fit with 512 MiB each, 16 do not." in ended
    assert f"2 16 OOM {DASH} {DASH} {DASH} 2.00 s" in ended
    rows = list(csv.DictReader(io.StringIO(page.get(f"{RUN}figures/capacity.csv").content.decode())))
    assert [row["fits"] for row in rows] == ["True", "False", "True"]


def test_the_limit_of_a_search_on_gpus_is_their_memory(search: Attempt) -> None:
    node = Node.objects.create(name="gpu-1", hardware={"gpus": [{"memory_bytes": 2**34}, {"memory_bytes": 2**35}]})
    search.run.resolved["cluster"]["device"] = "cuda"
    place(search, node)
    result = engine_measurements.run_search(search.run, search)
    assert result is not None
    assert (result.limit_bytes, result.per_node) == (2.0**34, 2)


def test_polls_bring_new_trials_and_stop_at_the_end(page: Client, search: Attempt) -> None:
    content = page.get(RUN).content.decode()
    url = content.split('id="engine-live" hx-get="')[1].split('"')[0].replace("&amp;", "&")
    assert page.get(url).status_code == 204
    store.append(search.pk, {("num_layers", 0): points({4: 14.0}), ("fits", 0): points({4: 1.0})})
    Attempt.objects.update(last_step=4)
    fresh = page.get(url)
    assert "14 fits" in text(fresh)
    assert "At least 14 layers" in text(page.get(RUN))
    Run.objects.update(state="finished")
    assert "hx-get" not in page.get(url).content.decode()


def test_a_map_of_stages_and_shards_is_drawn_with_the_name_of_each_device(
    page: Client, attempt_of: Callable[..., Attempt]
) -> None:
    mapping = {f"stage_{stage}": {f"shard_{shard}": f"CPU:{stage}" for shard in range(4)} for stage in range(2)}
    data = {
        "parallel": {"engine": "sharding"},
        "train": {"global_batch_size": 1, "micro_batch_size": 1, "iterations": 2},
        "sharding": {"sharding_size": 4, "stage_cnt": 2, "device_mapping": mapping},
    }
    attempt = attempt_of(data)
    store.append(attempt.pk, {("step_fps", 0): points({1: 1.0, 2: 4.0})})
    page_text = text(page.get(RUN))
    assert "avg_step_fps = 4.00 sequences per second: the mean of 1 / step time over 1 step after warm-up" in page_text
    content = page.get(RUN).content.decode()
    assert content.count("<title>stage ") == 8
    assert "stage 1, shard 3: CPU:1" in content
    assert "2 stages \N{MULTIPLICATION SIGN} 4 shards on 2 devices" in content
    rows = list(csv.DictReader(io.StringIO(page.get(f"{RUN}figures/devices.csv").content.decode())))
    assert rows[5] == {"stage": "1", "shard": "1", "device": "CPU:1"}


def test_the_map_of_an_imported_configuration_comes_from_its_arguments() -> None:
    places = {f"device_mapping.stage_{stage}.shard_{shard}": "GPU:0" for stage in range(2) for shard in range(3)}
    run = Run(resolved={}, launch={"arguments": places | {"mode": "sharding"}})
    drawn = device_map.draw(device_grid(run))
    assert drawn is not None
    assert len(drawn.cells) == 6
    places.pop("device_mapping.stage_1.shard_1")
    assert device_map.draw(device_grid(Run(resolved={}, launch={"arguments": places}))) is None


def test_other_engines_have_none_of_these(page: Client, attempt_of: Callable[..., Attempt]) -> None:
    attempt_of({})
    content = page.get(RUN).content.decode()
    assert "device-map" not in content
    assert "engine-live" not in content
    assert json.loads(page.get(f"{RUN}figures/capacity.json").content)["figure"] is None
