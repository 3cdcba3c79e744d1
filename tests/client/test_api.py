"""`parlab.Api` against a running server."""

from __future__ import annotations

import gzip
import importlib.util
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest
from PIL import Image
from pytest_django.live_server_helper import LiveServer

from parlab import Api
from parlab.client.http import Connection, Refused
from parlab.client.server.frames import frames
from parlab.lab.models import Attempt, Finding, Run
from parlab.series import log, store
from parlab.series.columns import Columns
from tests.client.test_commands import HEAD, iterations
from tests.traces.generator import Plan, document, file_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def api(live_server: LiveServer, token: str, monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setenv("NO_PROXY", "*")
    return Api(live_server.url, token)


@pytest.fixture
def attempt(make_attempt: Callable[..., Attempt]) -> Attempt:
    """A running attempt with a log, and a loss of three ranks."""
    attempt = make_attempt()
    steps = np.arange(5)
    times = np.array(steps + 0.25, np.float64)
    for rank in range(3):
        values = np.array([3.0, 2.5, np.nan, np.inf, 0.1 + rank])
        store.append(attempt.pk, {("loss", rank): Columns(steps, times, values)})
    log.append_log(attempt.pk, b"hello\n")
    return attempt


def test_experiments_are_created_configured_launched_and_their_runs_cancelled(api: Api) -> None:
    experiment = api.create_experiment("Micro batches", "Which is fastest?")
    assert (experiment.slug, experiment.data["question"]) == ("micro-batches", "Which is fastest?")
    data = {"train": {"global_batch_size": 8}}
    sweep = {"train.micro_batch_size": [1, 2]}
    assert experiment.configure(data, sweep, dry_run=True)["version"] is None
    assert experiment.configure(data, sweep, note="first")["points"] == 2
    assert [version["note"] for version in experiment.configurations()] == ["first"]
    runs = experiment.launch()
    assert [(run.number, run.state) for run in runs] == [(1, "queued"), (2, "queued")]
    assert experiment.launch() == []
    assert runs[0].cancel().state == "cancelled"
    assert runs[0].relaunch().data["attempt_number"] == 2
    assert [run.number for run in experiment.runs("queued")] == [1, 2]
    assert [found.slug for found in api.experiments("micro")] == ["micro-batches"]
    with pytest.raises(Refused, match="micro_batch_size"):
        experiment.configure({"train": {"micro_batch_size": -1}})


def test_a_series_is_read_as_columns_and_frames(api: Api, attempt: Attempt) -> None:
    run = api.run(attempt.run.experiment.slug, attempt.run.number)
    assert [(info["metric"], info["rank"]) for info in run.metrics()] == [("loss", 0), ("loss", 1), ("loss", 2)]
    columns = run.series("loss", rank=1).columns()
    assert (columns["step"], columns["time"][1], columns["value"][4]) == ([0, 1, 2, 3, 4], 1.25, 1.1)
    assert math.isnan(columns["value"][2])
    frame = run.series("loss").frame()
    assert isinstance(frame, polars.DataFrame)
    other = run.series("loss").frame("pandas")
    assert isinstance(other, pandas.DataFrame)
    assert frame.shape == other.shape == (15, 4)
    assert frame["value"].to_list()[4] == other["value"].tolist()[4] == 0.1
    assert run.series("loss", points=3, first_step=0, last_step=3).columns()["step"][-1] == 3
    assert run.series("loss", first_step=99).columns() == {"rank": [], "step": [], "time": [], "value": []}
    assert run.log() == b"hello\n"
    with pytest.raises(Refused, match="no series 'speed'; loss"):
        run.series("speed").csv()


@pytest.mark.parametrize("library", ["polars", "pandas"])
def test_the_runs_of_an_experiment_are_rows_of_a_frame(api: Api, attempt: Attempt, library: str) -> None:
    frame = api.experiment(attempt.run.experiment.slug).frame(library)
    assert type(frame).__module__.startswith(library)
    assert list(frame["number"]) == [1]
    assert list(frame["point"]) == ["{}"]


def test_without_polars_and_pandas_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="frames need polars or pandas: pip install polars"):
        frames()
    with pytest.raises(ImportError, match="pip install pandas"):
        frames("pandas")
    with pytest.raises(ValueError, match="use polars or pandas"):
        frames("numpy")


def test_waiting_returns_with_the_end_and_times_out_without_one(api: Api, attempt: Attempt) -> None:
    run = api.run(attempt.run.experiment.slug, attempt.run.number)
    with pytest.raises(TimeoutError, match="is running after"):
        run.wait(0.2)
    ending = threading.Timer(0.3, lambda: Run.objects.update(state="finished"))
    ending.start()
    assert run.wait().state == "finished"
    ending.join()


def test_files_and_directories_are_imported(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(HEAD + iterations(1, 20))
    api.connection = Connection(api.connection.url, api.connection._token, timeout_s=0.001)  # an import takes longer
    [preview] = api.import_path(path, dry_run=True)
    api.connection = api.connection.with_long_timeout()
    assert not Run.objects.exists()
    assert preview["format"] == "megatron"
    api.import_path(path)
    assert api.experiments()[0].runs()[0].data["origin"] == "imported"
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "other.log").write_text(HEAD + iterations(1, 30))
    (folder / "third.log").write_text(HEAD + iterations(1, 40))
    assert len(api.import_path(folder)) == 2


def test_plans_and_studies_and_findings(api: Api, catalogue: None) -> None:
    assert api.plan(layers=24, hidden=2048, heads=16, tensor_parallel=1, pipeline_parallel=1, nodes=2)["layouts"]
    experiment = api.create_experiment("Tuned")
    experiment.configure({"train": {"global_batch_size": 8, "iterations": 20}}, {"train.micro_batch_size": [1, 2]})
    study = api.create_study("tuned", max_launches=2)
    assert [other.number for other in api.studies()] == [study.number]
    assert study.act("pause").data["state"] == "paused"
    with pytest.raises(TimeoutError, match="is paused"):
        study.wait(0.1)
    assert study.act("cancel").data["state"] == "cancelled"
    assert api.study(study.number).wait().data["state"] == "cancelled"
    assert api.findings(open=True) == []


def test_what_pages_offer_is_offered_by_objects(api: Api, attempt: Attempt) -> None:
    run = api.run(attempt.run.experiment.slug, attempt.run.number)
    experiment = api.experiment(run.slug)
    assert run.mark(tags=["best"], starred=True, note="warm")["tags"] == ["best"]
    assert run.marks()["note"] == "warm"
    assert experiment.tag("paper") == ["paper"]
    with pytest.raises(Refused, match="cancel"):
        run.archive()
    Run.objects.update(state="finished")
    run.archive()
    assert experiment.runs() == []
    run.archive(False)
    comment = experiment.comment("It rounds.")
    assert experiment.edit_comment(comment["id"], "It does.")["text"] == "It does."
    experiment.delete_comment(comment["id"])
    assert experiment.comments() == []
    assert experiment.choose_names()["metrics"] == experiment.names()["metrics"] == []
    finding = Finding.objects.create(experiment=attempt.run.experiment, rule="r", severity="warning", message="3 or 4")
    assert api.acknowledge(finding.pk, "rounded")["acknowledged_reason"] == "rounded"
    assert api.reopen(finding.pk)["acknowledged_by"] is None
    view = api.save_view("All", "/experiments/?q=all")
    assert [saved["name"] for saved in api.views()] == ["All"]
    api.delete_view(view["id"])
    dashboard = api.create_dashboard("Mine", panels=[{"title": "Words", "text": "**bold**"}])
    assert dashboard.save(name="Ours").data["panels"][0]["title"] == "Words"
    assert [found.data["name"] for found in api.dashboards()] == ["Ours"]
    dashboard.delete()
    report = api.create_report("Findings", "Words.", experiment=run.slug)
    assert report.save(text="More words.").publish()["number"] == 1
    assert [found.slug for found in api.reports()] == [report.slug]
    report.delete()
    watch = api.create_watch("Nightly", key="nightly")
    assert watch.act("pause").data["name"] == "Nightly"
    assert (watch.alerts(), [found.number for found in api.watches()]) == ([], [watch.number])
    with pytest.raises(Refused, match="configuration"):
        watch.run()
    watch.delete()
    subscription = api.subscribe(["failed"], url="https://hooks.example/x")
    assert api.change_subscription(subscription["id"], is_enabled=False)["is_enabled"] is False
    delivery = api.test_subscription(subscription["id"])
    with pytest.raises(Refused, match="only a failed delivery"):
        api.retry_delivery(delivery["id"])
    assert [sent["id"] for sent in api.deliveries()] == [delivery["id"]]
    api.unsubscribe(subscription["id"])
    assert api.subscriptions() == []
    assert experiment.clone().shelf()["archived"] is False
    experiment.archive()
    assert experiment.shelf()["archived"] is True
    run.delete()
    assert not Run.everything.exists()


def test_files_go_to_the_server_and_come_back(
    api: Api, attempt: Attempt, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ARTIFACTS_DIR = tmp_path / "stored"
    run = api.run(attempt.run.experiment.slug, attempt.run.number)
    experiment = api.experiment(run.slug)
    figure = tmp_path / "figure.png"
    Image.new("RGB", (8, 6)).save(figure)
    picture = experiment.add_picture(figure, caption="Loss", run=run.number)
    assert [row["caption"] for row in experiment.pictures()] == ["Loss"]
    assert Image.open(experiment.download_picture(picture["id"], tmp_path / "back" / "figure.png")).size == (8, 6)
    experiment.delete_picture(picture["id"])
    assert (run.draw()["state"], len(run.drawings())) == ("waiting", 1)
    trace = tmp_path / "rank1.json"
    trace.write_bytes(file_of(document(Plan(hidden_us=0.0, waits_us=400.0), 1)).getvalue())
    assert run.add_trace(trace)["rank"] == 1
    assert [row["rank"] for row in run.traces()["ranks"]] == [1]
    assert b"traceEvents" in gzip.decompress(run.download_trace(tmp_path / "trace.json.gz").read_bytes())
    run.delete_traces()
    report = api.create_report("Result", "Words.")
    report.publish()
    (version,) = report.versions()
    assert "Words." in version.download("report.md", tmp_path / "report.md").read_text()
    assert version.draw()["state"] == "waiting"
    link = version.share()
    assert [shared["url"] for shared in version.links()] == [link["url"]]
    version.revoke(link["id"])
    assert version.links()[0]["revoked_at"]


def test_formats_advice_and_the_account(api: Api, attempt: Attempt, tmp_path: Path) -> None:
    log = tmp_path / "fit.log"
    log.write_text("".join(f"[fit] tick={n} objective=4.{n} rate: {20_000 - n}\n" for n in range(1, 9)))
    definition = api.guess_format(log)["definition"]
    assert api.save_format("tiny", definition)["version"] == 1
    assert api.format("tiny", 1)["definition"]["columns"] == definition["columns"]
    api.import_path(log, format="learnt:tiny")
    experiment = api.experiment("fit")
    (source,) = experiment.data["sources"]
    assert experiment.download_source(source["id"], tmp_path / "back.log").read_text() == log.read_text()
    api.delete_format("tiny")
    assert api.formats() == []
    run = api.run(attempt.run.experiment.slug, attempt.run.number)
    assert run.advice()["advice"] == experiment.advice()["advice"] == api.advice_score()["trials"] == []
    assert run.time()["reason"]
    with pytest.raises(Refused, match="no longer advised"):
        run.try_advice("Buy more")
    assert api.change_email("ada@host.example")["email"] == "ada@host.example"
    assert api.account()["username"] == "ada"
    made = api.create_token("second", scopes=["read"], days=1)
    assert [row["name"] for row in api.tokens()] == ["second", "training script"]
    api.revoke_token(made["id"])
    assert len(api.tokens()) == 1
    assert api.nodes() == []
    assert "loss" not in api.choose_columns("runs", ["state"])["shown"]
    assert api.columns("runs")["shown"] == ["state"]
    api.take_as_seen(run.slug)
    assert api.ask(api.questions()[0]["key"]).runs()[0].state == "queued"
    assert api.read_configuration("torchrun train.py --num-layers 12 --hidden-size 768")["summary"]
    assert run.goodput()["attempts"] == 0
    with pytest.raises(Refused):
        run.slopes()
    with pytest.raises(Refused):
        run.save_slope("same:1")
