"""Runs of all experiments by a filter, as frames; series of many runs in one request."""

from __future__ import annotations

import json
import time

import nanoarrow
import polars
import pytest
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer

from parlab import Api
from parlab.client.command.commands import main
from parlab.client.http import Refused
from parlab.lab.models import Experiment
from parlab.lab.services.experiments import experiment_create
from parlab.tracking.point import Point
from parlab.tracking.runs import parameters_set, points_append, tags_set, tracked_run_start

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def api(live_server: LiveServer, token: str) -> Api:
    return Api(live_server.url, token)


def reported(experiment: Experiment, user: User, number: int, steps: int = 3) -> None:
    tracked = tracked_run_start(experiment=experiment, user=user, name=f"run {number}", run_uuid=f"id-{number}")
    parameters_set(tracked=tracked, parameters={"lr": "1e-1" if number % 2 else "0.2", "model": "bert"})
    tags_set(tracked=tracked, tags={"owner": "ada"})
    points_append(
        tracked=tracked,
        points=[Point("loss", float(number) - step / steps, 1_000 * step, step) for step in range(steps)],
    )


@pytest.fixture
def runs(admin: User) -> None:
    for name in ("First", "Second"):
        experiment = experiment_create(name=name, owner=admin)
        for number in range(3):
            reported(experiment, admin, number + (10 if name == "Second" else 0))


def ids(api: Api, filter: str) -> set[str]:
    return {str(run.data["run_id"]) for run in api.runs(filter)}


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("", {"id-0", "id-1", "id-2", "id-10", "id-11", "id-12"}),
        ("loss < 1 and params.lr = 0.1", {"id-1"}),
        ("metrics.loss >= 9.5 AND params.lr > 0.15", {"id-12"}),
        ("params.lr = '1e-1'", {"id-1", "id-11"}),
        ("experiment = 'first' and state = 'running'", {"id-0", "id-1", "id-2"}),
        ("tags.owner = 'ada' and run_name = 'run 12'", {"id-12"}),
        ("loss > 100", set()),
    ],
)
def test_runs_are_those_that_match_a_filter(api: Api, filter: str, expected: set[str]) -> None:
    assert ids(api, filter) == expected


@pytest.mark.parametrize("filter", ["loss <", "loss ! 2", "state LIKE 'a%'", "mfu = 'x'", "foo.bar = 1"])
def test_a_filter_that_cannot_be_read_is_refused_with_a_remedy(api: Api, filter: str) -> None:
    with pytest.raises(Refused) as refusal:
        api.runs(filter)
    assert refusal.value.errors[0]["field"] == "filter"
    assert refusal.value.errors[0]["remedy"]


@pytest.mark.usefixtures("runs")
def test_the_command_lists_runs_by_the_same_filters(
    live_server: LiveServer, token: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARLAB_URL", live_server.url)
    monkeypatch.setenv("PARLAB_TOKEN", token)

    def listed(*more: str) -> list[str]:
        assert main(["ls", *more, "--json"]) == 0
        return [f"{row['experiment']}:{row['number']}" for row in json.loads(capsys.readouterr().out)]

    assert listed("--filter", "params.lr = 0.1") == ["second:2", "first:2"]
    assert listed("second", "--filter", "params.lr = 0.1") == ["second:2"]
    assert listed("--filter", "params.lr = 0.1", "--state", "failed") == []
    assert main(["ls", "--filter", "loss <"]) == 1
    assert "filter" in capsys.readouterr().err


@pytest.mark.usefixtures("runs")
def test_a_frame_has_columns_for_parameters_and_last_metrics(api: Api) -> None:
    table = api.experiment("second").frame()
    assert isinstance(table, polars.DataFrame)
    first = table.filter(polars.col("run_id") == "id-11").to_dicts()[0]
    assert (first["experiment"], first["params.lr"], first["params.model"]) == ("second", "1e-1", "bert")
    assert first["metrics.loss"] == pytest.approx(11 - 2 / 3)
    assert len(api.runs("loss < 5").frame()) == 3


@pytest.mark.usefixtures("runs")
def test_a_run_is_found_by_its_id_or_by_experiment_and_number(api: Api) -> None:
    run = api.run("id-12")
    assert (run.slug, run.state) == ("second", "running")
    assert api.run(f"second:{run.number}").data == run.data
    assert api.run("second", run.number).data == run.data
    with pytest.raises(Refused):
        api.run("missing")


@pytest.mark.slow
def test_series_of_fifty_runs_come_in_one_request_in_time(api: Api, admin: User) -> None:
    experiment = experiment_create(name="Many", owner=admin)
    for number in range(50):
        reported(experiment, admin, number, steps=20)
    runs = api.runs(experiment="many")
    runs.series("loss")  # the first request waits for imports
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        series = runs.series("loss", points=500)
        seconds.append(time.perf_counter() - began)
    assert len(series) == 50
    assert series["many", runs[0].number, "loss"][0]["steps"] == list(range(20))
    assert min(seconds) < 1.0  # 0.3 s on an idle machine; others share the one of the tests


@pytest.mark.usefixtures("runs")
def test_series_of_many_runs_are_one_stream_of_arrow(api: Api) -> None:
    content, _ = api.connection.request("GET", "/api/series/?run=first:1&run=id-11&metric=loss&as=arrow")
    array = nanoarrow.ArrayStream.from_readable(content).read_all()
    assert [field.name for field in array.schema.fields] == ["run", "metric", "kind", "rank", "step", "time", "value"]
    assert {row["run"] for row in array.to_pylist()} == {"first:1", "id-11"}


def test_unknown_runs_are_refused(api: Api) -> None:
    with pytest.raises(Refused, match="unknown run 'nothing:1'"):
        api.connection.json("GET", "/api/series/?run=nothing:1&metric=loss")
