"""Series in all forms, and waiting for the end of a run."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import polars
import pytest
from django.test import Client

from parlab.lab.models import Attempt, Run
from parlab.series import store
from parlab.series.columns import Columns

pytestmark = pytest.mark.django_db


@pytest.fixture
def path(make_attempt: Callable[..., Attempt]) -> str:
    attempt = make_attempt()
    steps = np.arange(250_000, dtype=np.int64)
    values = np.sin(steps.astype(np.float64) / 1000)
    values[3], values[4] = np.nan, np.inf
    store.append(attempt.pk, {("loss", 0): Columns(steps, steps.astype(np.float64) + 0.5, values)})
    store.append(attempt.pk, {("loss", 2): Columns(steps[:10], steps[:10].astype(np.float64) + 0.5, values[:10])})
    return f"/api/experiments/{attempt.run.experiment.slug}/runs/{attempt.run.number}/series/?metric=loss"


def body(response: Any) -> bytes:
    assert response.status_code == 200
    return b"".join(response.streaming_content)


def test_arrow_holds_every_point_of_every_rank_exactly(api: Client, path: str) -> None:
    response = api.get(f"{path}&as=arrow")
    assert response["Content-Type"] == "application/vnd.apache.arrow.stream"
    frame = polars.read_ipc_stream(io.BytesIO(body(response)))
    assert frame.columns == ["rank", "step", "time", "value"]
    assert frame["rank"].value_counts().sort("rank").rows() == [(0, 250_000), (2, 10)]
    first = frame.filter(polars.col("rank") == 0)
    assert first["step"].to_list() == list(range(250_000))
    assert (str(first["value"][3]), first["value"][4], first["time"][7]) == ("nan", float("inf"), 7.5)


def test_arrow_and_csv_are_thinned_and_cut_alike(api: Client, path: str) -> None:
    query = f"{path}&points=100&from=1000&to=200000&rank=0"
    arrow = polars.read_ipc_stream(io.BytesIO(body(api.get(f"{query}&as=arrow"))))
    csv = pandas.read_csv(io.BytesIO(body(api.get(f"{query}&as=csv"))))
    assert len(arrow) == 100
    assert (arrow["step"].min(), arrow["step"].max()) == (1000, 200_000)
    assert arrow["step"].to_list() == csv["step"].tolist()
    assert arrow["value"].to_list() == csv["value"].tolist()


def test_arrow_without_points_has_its_columns(api: Client, path: str) -> None:
    frame = polars.read_ipc_stream(io.BytesIO(body(api.get(f"{path}&from=900000&as=arrow"))))
    assert (frame.columns, len(frame)) == (["rank", "step", "time", "value"], 0)


def test_an_unknown_form_is_refused_with_those_that_exist(api: Client, path: str) -> None:
    response = api.get(f"{path}&as=parquet")
    assert (response.status_code, response.json()["errors"][0]["remedy"]) == (400, "use json, csv or arrow")


def test_waiting_answers_at_once_for_a_run_that_has_ended(api: Client, path: str) -> None:
    Run.objects.update(state="finished")
    answer = api.get(path.replace("series/?metric=loss", "wait/")).json()
    assert (answer["state"], answer["is_final"]) == ("finished", True)


def test_waiting_answers_when_the_state_is_not_the_seen_one_or_time_is_up(api: Client, path: str) -> None:
    wait = path.replace("series/?metric=loss", "wait/")
    assert api.get(f"{wait}?seen=queued").json()["state"] == "running"
    assert api.get(f"{wait}?seen=running&timeout=0.1").json()["is_final"] is False
    for query, field in (("timeout=31", "timeout"), ("timeout=x", "timeout"), ("seen=happy", "seen")):
        response = api.get(f"{wait}?{query}")
        assert (response.status_code, response.json()["errors"][0]["field"]) == (400, field)


def test_lists_of_runs_state_their_progress(api: Client, path: str) -> None:
    Attempt.objects.update(last_step=3)
    [run] = api.get(path.replace("1/series/?metric=loss", "")).json()["results"]
    assert (run["last_step"], run["planned_steps"]) == (3, 4)
