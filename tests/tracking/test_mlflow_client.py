"""The unmodified MLflow client against a running server."""

from __future__ import annotations

import math
import time
from pathlib import Path

import mlflow
import pytest
from mlflow.entities import Metric, Param, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from parlab.lab.models import Experiment, Run
from parlab.series import store

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def mlflow_client(tracking_uri: str) -> MlflowClient:
    return MlflowClient(tracking_uri)


@pytest.fixture
def run_id(mlflow_client: MlflowClient) -> str:
    experiment_id = mlflow_client.create_experiment("Warm-up length")
    return str(mlflow_client.create_run(experiment_id, run_name="warm-up 100").info.run_id)


def test_the_fluent_interface_makes_a_run_with_settings_and_series(tracking_uri: str) -> None:
    mlflow.set_tracking_uri(tracking_uri)
    mlflow.set_experiment("Fluent")
    with mlflow.start_run(run_name="first"):
        mlflow.log_params({"per_device_train_batch_size": 4, "num_hidden_layers": 12, "world_size": 8, "bf16": True})
        for step in range(5):
            mlflow.log_metrics({"train/loss": 3.0 - step / 10, "tokens_per_sec": 1000.0 + step}, step=step)
        mlflow.set_tag("cluster", "a")
    run = Run.objects.get(experiment__name="Fluent")
    assert (run.label, run.state, run.origin) == ("first", "finished", "reported")
    assert run.resolved["train"] == {"micro_batch_size": 4, "global_batch_size": 32, "precision": "bf16"}
    assert run.resolved["model"]["num_layers"] == 12
    assert run.summary["tokens_per_s"] == 1002.0
    assert run.summary["loss"] == {"first": 3.0, "last": 2.6}
    assert store.read(run.current_attempt().pk, "train/loss", rank=0).steps.tolist() == [0, 1, 2, 3, 4]


def test_experiments_are_created_found_renamed_deleted_and_restored(mlflow_client: MlflowClient) -> None:
    first = mlflow_client.create_experiment("First", tags={"team": "a"})
    mlflow_client.set_experiment_tag(first, "stage", "draft")
    experiment = mlflow_client.get_experiment_by_name("First")
    assert experiment is not None
    assert (experiment.experiment_id, experiment.tags) == (first, {"team": "a", "stage": "draft"})
    mlflow_client.rename_experiment(first, "Renamed")
    assert mlflow_client.get_experiment(first).name == "Renamed"
    assert mlflow_client.get_experiment_by_name("First") is None
    mlflow_client.delete_experiment_tag(first, "stage")
    mlflow_client.delete_experiment(first)
    assert mlflow_client.get_experiment(first).lifecycle_stage == "deleted"
    assert [item.name for item in mlflow_client.search_experiments(view_type=ViewType.DELETED_ONLY)] == ["Renamed"]
    with pytest.raises(MlflowException, match="deleted") as refused:
        mlflow_client.create_experiment("Renamed")
    assert refused.value.error_code == "RESOURCE_ALREADY_EXISTS"
    mlflow_client.restore_experiment(first)
    assert mlflow_client.get_experiment(first).lifecycle_stage == "active"
    experiments = mlflow_client.search_experiments(filter_string="name LIKE 'Re%' AND tags.team = 'a'")
    assert [item.experiment_id for item in experiments] == [first]


def test_the_default_experiment_exists_on_first_use(mlflow_client: MlflowClient) -> None:
    run = mlflow_client.create_run("0")
    assert run.info.experiment_id == "0"
    assert mlflow_client.get_experiment("0").name == "Default"
    assert Experiment.objects.get(name="Default").runs.count() == 1


def test_metric_history_keeps_order_repeats_and_values_that_are_no_numbers(
    mlflow_client: MlflowClient, run_id: str
) -> None:
    values = [(1.5, 10, 0), (math.nan, 20, 1), (math.inf, 30, 2), (-math.inf, 40, 2), (0.25, 50, 1), (7.0, 60, -3)]
    for value, timestamp, step in values:
        mlflow_client.log_metric(run_id, "my metric/a b", value, timestamp=timestamp, step=step)
    history = mlflow_client.get_metric_history(run_id, "my metric/a b")
    assert [(metric.timestamp, metric.step) for metric in history] == [(t, s) for _, t, s in values]
    assert [str(metric.value) for metric in history] == [str(float(value)) for value, _, _ in values]
    assert mlflow_client.get_run(run_id).data.metrics["my metric/a b"] == -math.inf  # the latest time of step 2


def test_a_metric_named_like_a_field_of_events_is_a_metric(mlflow_client: MlflowClient, run_id: str) -> None:
    names = ["t", "rank", "step", "event", "parlab", "metrics", "timers_s"]
    mlflow_client.log_batch(run_id, metrics=[Metric(name, 1.0 + n, 1000, 4) for n, name in enumerate(names)])
    assert mlflow_client.get_run(run_id).data.metrics == {name: 1.0 + n for n, name in enumerate(names)}
    assert [metric.value for metric in mlflow_client.get_metric_history(run_id, "rank")] == [2.0]


def test_a_batch_stores_metrics_parameters_and_tags(mlflow_client: MlflowClient, run_id: str) -> None:
    now = int(time.time() * 1000)
    mlflow_client.log_batch(
        run_id,
        metrics=[Metric("loss", float(step), now + step, step) for step in range(1000)],
        params=[],
        tags=[],
    )
    mlflow_client.log_batch(run_id, params=[Param("lr", "0.1")], tags=[RunTag("note", "x" * 8000)])
    data = mlflow_client.get_run(run_id).data
    assert (data.metrics["loss"], data.params, data.tags["note"]) == (999.0, {"lr": "0.1"}, "x" * 8000)
    assert len(mlflow_client.get_metric_history(run_id, "loss")) == 1000


def test_a_parameter_never_changes(mlflow_client: MlflowClient, run_id: str) -> None:
    mlflow_client.log_param(run_id, "lr", "0.1")
    mlflow_client.log_param(run_id, "lr", "0.1")
    with pytest.raises(MlflowException, match=r"key='lr' was already logged .* new value '0.2'"):
        mlflow_client.log_param(run_id, "lr", "0.2")
    assert mlflow_client.get_run(run_id).data.params == {"lr": "0.1"}


def test_a_run_ends_comes_back_and_is_deleted_and_restored(mlflow_client: MlflowClient, run_id: str) -> None:
    run = Run.objects.get()
    mlflow_client.set_terminated(run_id, "FAILED")
    run.refresh_from_db()
    assert (run.state, mlflow_client.get_run(run_id).info.status) == ("failed", "FAILED")
    mlflow_client.update_run(run_id, status="RUNNING", name="second try")
    run.refresh_from_db()
    assert (run.state, run.label, run.ended_at) == ("running", "second try", None)
    mlflow_client.delete_run(run_id)
    with pytest.raises(MlflowException, match="deleted"):
        mlflow_client.log_metric(run_id, "loss", 1.0)
    mlflow_client.restore_run(run_id)
    mlflow_client.log_metric(run_id, "loss", 1.0)
    mlflow_client.set_tag(run_id, "a", "b")
    mlflow_client.delete_tag(run_id, "a")
    assert "a" not in mlflow_client.get_run(run_id).data.tags


def test_runs_are_searched_by_metric_parameter_tag_and_attribute(mlflow_client: MlflowClient) -> None:
    experiment_id = mlflow_client.create_experiment("Search")
    ids = []
    for number in range(6):
        run = mlflow_client.create_run(experiment_id, run_name=f"run {number}", start_time=number + 1)
        ids.append(run.info.run_id)
        mlflow_client.log_metric(run.info.run_id, "the loss", number / 10, step=1)
        mlflow_client.log_param(run.info.run_id, "lr", f"1e-{number}")
        mlflow_client.set_tag(run.info.run_id, "team", "red" if number % 2 else "Blue")
    mlflow_client.log_metric(ids[5], "accuracy", 1.0)

    def names(filter_string: str, **more: object) -> list[str]:
        runs = mlflow_client.search_runs([experiment_id], filter_string, **more)
        return [run.info.run_name[-1] for run in runs]

    assert names('metrics."the loss" >= 0.3') == ["5", "4", "3"]
    assert names("metrics.`the loss` < 0.3 and params.lr != '1e-1'") == ["2", "0"]
    assert names("tags.team ILIKE 'BL%'") == ["4", "2", "0"]
    assert names("tags.team LIKE 'bl%'") == []
    assert names("attributes.run_name = 'run 3' AND attributes.status = 'RUNNING'") == ["3"]
    assert names(f"attributes.run_id IN ('{ids[1]}', '{ids[4]}')") == ["4", "1"]
    assert names("params.missing IS NULL and metrics.accuracy > 0") == ["5"]
    assert names("attributes.start_time > 4", order_by=["attributes.start_time ASC"]) == ["4", "5"]
    assert names("", order_by=["metrics.accuracy DESC", "params.lr DESC"]) == ["5", "4", "3", "2", "1", "0"]
    first = mlflow_client.search_runs([experiment_id], max_results=4)
    second = mlflow_client.search_runs([experiment_id], max_results=4, page_token=first.token)
    assert ([run.info.run_name[-1] for run in [*first, *second]], second.token) == (list("543210"), None)


@pytest.mark.parametrize(
    ("filter_string", "part"),
    [
        ("metrics.loss > 'a'", "expected a number"),
        ("params.lr = 0.1", "expected a text"),
        ("loss > 3", "Invalid attribute key 'loss'"),
        ("metrics.loss > 1 or metrics.loss < 0", "expected AND"),
        ("metrics.loss LIKE 'a'", "Invalid comparator"),
        ("thing.loss > 1", "Invalid entity type"),
        ("metrics.loss >", "the end"),
        ("params.x = 'a", "cannot read"),
    ],
)
def test_a_filter_that_cannot_be_read_names_the_place(
    mlflow_client: MlflowClient, filter_string: str, part: str
) -> None:
    with pytest.raises(MlflowException, match=part) as refused:
        mlflow_client.search_runs(["1"], filter_string)
    assert refused.value.error_code == "INVALID_PARAMETER_VALUE"


def test_artifacts_are_stored_listed_downloaded_and_deleted(
    mlflow_client: MlflowClient, run_id: str, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("it works")
    folder = tmp_path / "model"
    (folder / "parts").mkdir(parents=True)
    (folder / "parts" / "a.bin").write_bytes(bytes(range(256)) * 5000)
    mlflow_client.log_artifact(run_id, str(tmp_path / "notes.txt"))
    mlflow_client.log_artifacts(run_id, str(folder), "model")
    mlflow_client.log_text(run_id, "{}", "model/config.json")
    listed = [(file.path, file.is_dir, file.file_size) for file in mlflow_client.list_artifacts(run_id)]
    assert listed == [("model", True, None), ("notes.txt", False, 8)]
    assert [file.path for file in mlflow_client.list_artifacts(run_id, "model")] == ["model/config.json", "model/parts"]
    target = Path(mlflow_client.download_artifacts(run_id, "model", str(tmp_path)))
    assert (target / "parts" / "a.bin").read_bytes() == bytes(range(256)) * 5000


def test_a_large_artifact_travels_in_parts(
    mlflow_client: MlflowClient, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_MULTIPART_UPLOAD_MINIMUM_FILE_SIZE", str(1 << 20))
    monkeypatch.setenv("MLFLOW_MULTIPART_UPLOAD_CHUNK_SIZE", str(5 << 20))
    content = bytes(range(251)) * 50_000
    (tmp_path / "large.bin").write_bytes(content)
    mlflow_client.log_artifact(run_id, str(tmp_path / "large.bin"), "weights")
    target = mlflow_client.download_artifacts(run_id, "weights/large.bin", str(tmp_path))
    assert Path(target).read_bytes() == content


def test_what_is_not_served_is_a_clear_error(mlflow_client: MlflowClient, run_id: str) -> None:
    with pytest.raises(MlflowException, match="no model registry"):
        mlflow_client.create_registered_model("mine")
    with pytest.raises(MlflowException) as refused:
        mlflow_client.get_run("0" * 32)
    assert refused.value.error_code == "RESOURCE_DOES_NOT_EXIST"


def test_an_invalid_token_is_refused(mlflow_client: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "parlab_wrong")
    with pytest.raises(MlflowException, match="unknown, expired or revoked token; set MLFLOW_TRACKING_TOKEN"):
        mlflow_client.search_experiments()
