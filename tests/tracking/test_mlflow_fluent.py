"""What scripts call of mlflow's fluent interface beyond metrics and parameters, against a running server."""

from __future__ import annotations

from pathlib import Path

import mlflow
import numpy as np
import pandas
import pytest
from mlflow.data.pandas_dataset import from_pandas
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from plotly.graph_objects import Figure

from parlab.lab.models import Run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def experiment_id(tracking_uri: str) -> str:
    mlflow.set_tracking_uri(tracking_uri)
    return str(mlflow.set_experiment("Fluent").experiment_id)


def test_texts_tables_pictures_and_directories_are_artifacts(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("first")
    with mlflow.start_run() as active:
        mlflow.log_text("words", "texts/b.txt")
        mlflow.log_dict({"lr": 0.1}, "settings.json")
        mlflow.log_figure(Figure(), "figure.html")
        mlflow.log_image(np.zeros((4, 4, 3), np.uint8), "image.png")
        mlflow.log_image(np.zeros((4, 4, 3), np.uint8), key="samples", step=3)
        mlflow.log_table({"a": [1, 2], "b": ["x", "y"]}, "table.json")
        mlflow.log_table({"a": [3], "b": ["z"]}, "table.json")
        mlflow.log_artifacts(str(tmp_path / "notes"), "notes")
    run_id = active.info.run_id
    assert mlflow.load_table("table.json", run_ids=[run_id]).shape == (3, 2)
    assert mlflow.artifacts.load_text(f"runs:/{run_id}/texts/b.txt") == "words"
    assert mlflow.artifacts.load_dict(f"runs:/{run_id}/settings.json") == {"lr": 0.1}
    listed = {file.path for file in MlflowClient().list_artifacts(run_id)}
    assert listed >= {"texts", "settings.json", "figure.html", "image.png", "images", "table.json", "notes"}
    assert [file.path for file in MlflowClient().list_artifacts(run_id, "notes")] == ["notes/a.txt"]
    with pytest.raises(MlflowException, match="nope"):
        mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path="nope")


def test_inputs_tags_and_nested_runs(experiment_id: str) -> None:
    client = MlflowClient()
    with mlflow.start_run() as parent:
        mlflow.log_input(from_pandas(pandas.DataFrame({"a": [1]}), name="frame"), context="training")
        mlflow.set_tags({"cluster": "a", "team": "b"})
        mlflow.delete_tag("team")
        with mlflow.start_run(nested=True, run_name="child") as child:
            pass
    inputs = client.get_run(parent.info.run_id).inputs
    assert inputs is not None
    assert [each.dataset.name for each in inputs.dataset_inputs] == ["frame"]
    assert client.get_run(parent.info.run_id).data.tags.get("team") is None
    above = client.get_parent_run(child.info.run_id)
    assert above is not None
    assert above.info.run_id == parent.info.run_id
    assert client.get_parent_run(parent.info.run_id) is None
    frame = mlflow.search_runs([experiment_id], order_by=["attributes.run_name"], filter_string="tags.cluster = 'a'")
    assert list(frame["run_id"]) == [parent.info.run_id]


@pytest.mark.slow
def test_metrics_in_the_background_and_of_the_system_arrive() -> None:
    mlflow.set_system_metrics_sampling_interval(0.1)
    mlflow.set_system_metrics_samples_before_logging(1)
    with mlflow.start_run(log_system_metrics=True) as active:
        for step in range(50):
            mlflow.log_metric("loss", 1.0 / (1 + step), step=step, synchronous=False)
        mlflow.flush_async_logging()
    mlflow.set_system_metrics_sampling_interval(None)
    client = MlflowClient()
    history = client.get_metric_history(active.info.run_id, "loss")
    assert sorted(metric.step for metric in history) == list(range(50))  # threads send them in any order
    assert Run.objects.get().state == "finished"


@pytest.mark.slow
def test_a_model_is_logged_loaded_and_listed(experiment_id: str) -> None:
    class Echo(mlflow.pyfunc.PythonModel):  # type: ignore[misc]  # mlflow is not read
        def predict(self, context: object, model_input: list[int], params: object = None) -> list[int]:
            return model_input

    with mlflow.start_run() as active:
        mlflow.pyfunc.log_model(name="echo", python_model=Echo(), pip_requirements=[])
        mlflow.pyfunc.log_model(name="later", python_model=Echo(), pip_requirements=[], step=5)
        with pytest.raises(MlflowException, match="no model registry"):
            mlflow.register_model(f"runs:/{active.info.run_id}/echo", "registered")
    assert mlflow.pyfunc.load_model(f"runs:/{active.info.run_id}/echo").predict([1]) == [1]
    models = mlflow.search_logged_models(experiment_ids=[experiment_id], output_format="list")
    assert sorted(model.name for model in models) == ["echo", "later"]
