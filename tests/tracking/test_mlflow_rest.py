"""What MLflow's tests of its REST client expect of a server: words of errors, order, pages, limits, logged models."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import Experiment
from parlab.lab.services.access.tokens import token_create

pytestmark = pytest.mark.django_db
Answer = tuple[int, dict[str, Any]]
Post = Callable[..., Answer]
API, AJAX = "/api/2.0/mlflow/", "/ajax-api/2.0/mlflow/"


class Rest:
    """A client of the REST API with a token."""

    def __init__(self, secret: str) -> None:
        self.client = Client(headers={"Authorization": f"Bearer {secret}"}, raise_request_exception=True)

    def call(self, method: str, path: str, data: Any = None, *, root: str = API) -> Answer:
        body = {} if data is None else {"data": json.dumps(data), "content_type": "application/json"}
        answer = getattr(self.client, method)(f"{root}{path}", **body)
        return answer.status_code, json.loads(answer.content)

    def post(self, path: str, data: Any) -> Answer:
        return self.call("post", path, data)

    def made(self, path: str, data: Any) -> dict[str, Any]:
        status, answer = self.post(path, data)
        assert status == 200, answer
        return answer

    def get(self, path: str, query: Any = None, root: str = AJAX) -> Answer:
        answer = self.client.get(f"{root}{path}", query or {})
        return answer.status_code, json.loads(answer.content)


@pytest.fixture
def rest(admin: User, settings: Any, tmp_path: Any) -> Rest:
    settings.ARTIFACTS_DIR = tmp_path
    return Rest(token_create(user=admin, name="script", by=admin)[1])


@pytest.fixture
def experiment_id(rest: Rest) -> str:
    return str(rest.made("experiments/create", {"name": "rest"})["experiment_id"])


@pytest.fixture
def run_id(rest: Rest, experiment_id: str) -> str:
    return str(rest.made("runs/create", {"experiment_id": experiment_id, "start_time": 1})["run"]["info"]["run_id"])


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("experiments/create", {"name": 123}, "Invalid value 123 for parameter 'name' supplied"),
    ("experiments/create", {}, "Missing value for required parameter 'name'"),
    ("experiments/create", {"name": "a", "artifact_location": 9.0}, "Invalid value 9.0 for"),
    ("experiments/create", {"name": "a", "tags": "5"}, "Invalid value \"5\" for parameter 'tags'"),
    ("runs/log-metric", {"run_id": 31, "key": "m", "value": 41, "timestamp": 59}, "Invalid value 31 for"),
    ("runs/log-metric", {"key": 31, "value": 41, "timestamp": 59}, "Invalid value 31 for parameter 'key' supplied"),
    ("runs/log-metric", {"key": "m", "value": 1, "timestamp": 5, "step": "foo"},
     "Invalid value \"foo\" for parameter 'step' supplied"),
    ("runs/log-metric", {"key": "m", "value": 1, "timestamp": "foo"},
     "Invalid value \"foo\" for parameter 'timestamp' supplied"),
    ("runs/log-metric", {"run_id": None, "key": "m", "value": 1, "timestamp": 1},
     "Missing value for required parameter 'run_id'"),
    ("runs/log-metric", {"value": 1, "timestamp": 1}, "Missing value for required parameter 'key'"),
    ("runs/log-metric", {"key": "m", "value": 1}, "Missing value for required parameter 'timestamp'"),
    ("runs/log-metric", {"key": "m", "timestamp": 1}, "Missing value for required parameter 'value'"),
    ("runs/log-metric", {"key": "m", "timestamp": 1, "value": "text"}, "Invalid value \"text\" for parameter 'value'"),
    ("runs/log-metric", {"key": "m", "timestamp": -1, "value": 1}, "Invalid value -1 for parameter 'timestamp'"),
    ("runs/log-metric", {"key": "m" * 10_000, "timestamp": 1, "value": 1},
     "exceeds the maximum length of 250 characters"),
    ("runs/log-parameter", {"key": 31, "value": "x"}, "Invalid value 31 for parameter 'key' supplied"),
    ("runs/log-parameter", {"key": "k", "value": 41}, "Invalid value 41 for parameter 'value' supplied"),
    ("runs/set-tag", {"key": "param", "value": 41}, "Invalid value 41 for parameter 'value' supplied"),
    ("runs/set-tag", {"value": "value"}, "Missing value for required parameter 'key'"),
    ("runs/log-batch", {"metrics": "foo"}, "Invalid value \"foo\" for parameter 'metrics' supplied"),
    ("runs/log-batch", {"params": "foo"}, "Invalid value \"foo\" for parameter 'params' supplied"),
    ("runs/log-batch", {"tags": "foo"}, "Invalid value \"foo\" for parameter 'tags' supplied"),
    ("runs/log-batch", {"metrics": [{"key": "mae", "value": 2.5}]},
     "Missing value for required parameter 'metrics[0].timestamp'"),
    ("runs/log-batch", {"metrics": [{"key": "m", "value": 1.0, "timestamp": 1}] * 1_001}, "at most 1000 metrics"),
    ("runs/log-batch", {"params": [{"key": "p", "value": "1"}] * 101}, "at most 100 params. Got 101 params"),
    ("runs/log-batch", {"tags": [{"key": "p", "value": "1"}] * 101}, "at most 100 tags"),
    ("runs/log-batch", {"params": [{"key": "p", "value": "1"}, {"key": "p", "value": "2"}]},
     "Duplicate parameter keys"),
    ("runs/log-inputs", {}, "Missing value for required parameter 'datasets'"),
    ("experiments/update", {"experiment_id": "0", "new_name": ""}, "Missing value for required parameter 'new_name'"),
    ("runs/outputs", {}, "Missing value for required parameter 'models'"),
    ("runs/log-model", {"model_json": "{"}, "is not a valid JSON"),
    ("runs/log-model", {"model_json": "{}"}, "Model json is missing mandatory fields"),
    ("runs/update", {"status": "DONE"}, "Invalid value \"DONE\" for parameter 'status'"),
    ("runs/search", {"max_results": 123_456_789}, "Invalid value 123456789 for parameter 'max_results' supplied"),
    ("runs/search", {"experiment_ids": ["x"]}, "Invalid experiment ID 'x'. Experiment ID must be a valid integer"),
    ("experiments/search-datasets", {}, "SearchDatasets request must specify at least one experiment_id."),
    ("experiments/search-datasets", {"experiment_ids": [f"id_{i}" for i in range(1_000)]}, "cannot specify more than"),
    ("logged-models", {}, "Missing value for required parameter 'experiment_id'"),
    ("logged-models", {"experiment_id": "0", "name": "a/b"}, "Invalid model name"),
    ("logged-models/search", {}, "Missing value for required parameter 'experiment_ids'"),
    ("logged-models/search", {"experiment_ids": ["0"], "datasets": [{"dataset_digest": "d"}]},
     "`dataset_name` in the `datasets` clause must be specified."),
    *[("runs/log-metric", {"key": key, "value": 1, "timestamp": 1}, "must not resolve to other names")
      for key in ("a//b", "a/", "./a", "a/../b", "/a", ".", "..")],
    ("runs/set-tag", {"key": "a#b", "value": "1"}, "Names may only contain alphanumerics"),
    ("runs/log-batch", {"metrics": [{"value": 1, "timestamp": 1}]}, "required parameter 'metrics[0].key'"),
    ("runs/log-batch", {"metrics": [{"key": "m", "timestamp": 1}]}, "required parameter 'metrics[0].value'"),
    ("runs/log-batch", {"params": [{"value": "1"}]}, "required parameter 'params[0].key'"),
    ("runs/log-batch", {"tags": [{"value": "1"}]}, "required parameter 'tags[0].key'"),
    ("runs/log-batch", {"tags": [{"key": "t" * 251, "value": "1"}]}, "exceeds the maximum length of 250 characters"),
    ("runs/log-batch", {"metrics": [{"key": "m", "value": 1.0, "timestamp": 1}] * 950,
                        "tags": [{"key": f"t{n}", "value": "1"} for n in range(51)]},
     "at most 1000 metrics, params, and tags. Got 1001"),
    ("runs/log-inputs", {"datasets": [{"dataset": {"name": "d", "digest": "x" * 37}}]}, "exceeds the maximum length"),
    ("runs/create", {"experiment_id": "0", "run_name": "a", "tags": [{"key": "mlflow.runName", "value": "b"}]},
     "Both 'run_name' argument and 'mlflow.runName' tag are specified"),
    ("experiments/create", {"name": "n" * 501}, "exceeds the maximum length"),
    ("experiments/create", {"name": "a", "tags": [{"key": "k", "value": "v" * 20_001}]}, "exceeds the maximum length"),
    ("experiments/update", {"experiment_id": "x", "new_name": "y"}, "Invalid experiment ID 'x'"),
    ("runs/search", {"max_results": 0}, "Invalid value 0 for parameter 'max_results' supplied"),
    ("runs/search", {"order_by": [7]}, "Invalid order_by clause"),
    ("runs/search", {"filter": "metrics.loss = 'text'"}, "expected a number without quotes"),
    ("runs/search", {"filter": "params.lr = 0.1"}, "expected a text in quotes"),
    ("runs/search", {"filter": "params.lr > '0.1'"}, "Invalid comparator '>'"),
    ("runs/search", {"filter": "metrics.loss LIKE 'a'"}, "Invalid comparator 'LIKE'"),
    ("runs/search", {"filter": "colour.x = 'a'"}, "Invalid entity type 'colour'"),
    ("runs/search", {"filter": "attributes.colour = 'a'"}, "Invalid attribute key 'colour'"),
    ("runs/search", {"filter": "tags.a = 'b' OR tags.c = 'd'"}, "expected AND"),
    ("runs/search", {"page_token": "later"}, "Invalid page_token"),
]  # fmt: skip


def test_a_request_that_is_invalid_names_parameter_and_value(rest: Rest, run_id: str) -> None:
    for path, fields, words in BAD:
        data = fields if not path.startswith("runs/") or "run_id" in fields else {"run_id": run_id, **fields}
        status, answer = rest.post(path, data)
        assert (status, answer.get("error_code")) == (400, "INVALID_PARAMETER_VALUE"), (path, data, answer)
        assert words in answer["message"], (path, answer)
    assert rest.get("runs/get", {"run_id": run_id})[1]["run"]["data"]["metrics"] == []
    form = rest.client.post(f"{API}runs/log-metric", "key=m", content_type="text/plain")
    assert (form.status_code, "Content-Type must be one of" in form.json()["message"]) == (400, True)
    assert rest.post("runs/set-tag", {"run_uuid": run_id, "key": "k", "value": "v"})[0] == 200
    assert (
        rest.post("runs/log-batch", {"run_id": run_id, "metrics": [{"key": "m", "value": 2.5, "timestamp": 1}]})[0]
        == 200
    )


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"metric_key": "key"}, "request must specify at least one run_id"),
        ({"run_id": [f"id_{i}" for i in range(1_000)], "metric_key": "key"}, "cannot specify more than"),
        ({"run_id": ["123"]}, "request must specify a metric_key"),
    ],
)
def test_a_bulk_history_that_is_invalid(rest: Rest, query: Any, words: str) -> None:
    status, answer = rest.get("metrics/get-history-bulk", query)
    assert (status, answer["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert words in answer["message"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"metric_key": "key"}, "Missing value for required parameter 'run_ids'."),
        ({"run_ids": [f"id_{i}" for i in range(1_000)], "metric_key": "key"}, "must specify at most 100 run_ids."),
        ({"run_ids": ["1"], "metric_key": "key", "max_results": 0}, "max_results must be between 1 and 2500"),
        ({"run_ids": ["1"], "metric_key": ""}, "Missing value for required parameter 'metric_key'"),
        ({"run_ids": ["1"], "metric_key": "k", "start_step": 1, "end_step": 0}, "end_step must be greater than"),
        ({"run_ids": ["1"], "metric_key": "k", "start_step": 1}, "both must be specified."),
    ],
)  # fmt: skip
def test_an_interval_that_is_invalid(rest: Rest, query: Any, words: str) -> None:
    status, answer = rest.get("metrics/get-history-bulk-interval", query)
    assert (status, answer["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert words in answer["message"]


@pytest.mark.database
def test_histories_are_sampled_over_the_steps_of_all_runs_with_their_ends(
    rest: Rest, experiment_id: str, run_id: str
) -> None:
    other = rest.made("runs/create", {"experiment_id": experiment_id})["run"]["info"]["run_id"]
    for identity, count in ((run_id, 10), (other, 20)):
        points = [
            {"key": "m", "timestamp": time, "step": step, "value": 10.0} for time in (1, 2) for step in range(count)
        ]
        rest.made("runs/log-batch", {"run_id": identity, "metrics": points})

    def steps(**query: Any) -> list[int]:
        status, answer = rest.get("metrics/get-history-bulk-interval", {"metric_key": "m", "max_results": 5, **query})
        assert status == 200, answer
        return [metric["step"] for metric in answer["metrics"] if metric["timestamp"] == 1]

    assert steps(run_ids=[run_id]) == [0, 2, 4, 6, 8, 9]
    assert steps(run_ids=[run_id], start_step=0, end_step=4) == [0, 1, 2, 3, 4]
    assert steps(run_ids=[run_id, other]) == [0, 4, 8, 9, 0, 4, 8, 9, 12, 16, 19]


def test_bulk_histories_are_sorted_by_run_time_step_and_value(rest: Rest, run_id: str) -> None:
    points = [(1, 3, 12.0), (2, 3, 12.0), (1, 2, 10.0), (1, 3, 11.0)]
    metrics = [{"key": "a", "timestamp": time, "step": step, "value": value} for time, step, value in points]
    rest.made("runs/log-batch", {"run_id": run_id, "metrics": metrics})
    _, answer = rest.get("metrics/get-history-bulk", {"run_id": [run_id], "metric_key": "a"})
    ordered = sorted(metrics, key=lambda metric: (metric["timestamp"], metric["step"], metric["value"]))
    assert answer["metrics"] == [{**metric, "run_id": run_id} for metric in ordered]


@pytest.mark.database
def test_a_batch_that_a_client_sends_again_after_a_fault_is_stored_once(rest: Rest, run_id: str) -> None:
    batch = {"run_id": run_id, "metrics": [{"key": "a", "timestamp": 1, "step": 1, "value": 2.0}]}
    for _ in range(2):
        rest.made("runs/log-batch", batch)
    assert len(rest.get("metrics/get-history", {"run_id": run_id, "metric_key": "a"})[1]["metrics"]) == 1


def test_experiments_are_ordered_by_creation_and_filtered_and_the_default_one_exists(rest: Rest) -> None:
    _, answer = rest.get("experiments/search", {"max_results": 10})
    assert [experiment["name"] for experiment in answer["experiments"]] == ["Default"]
    ids = {}
    for name, tags in (
        ("a", [{"key": "key", "value": "value"}]),
        ("ab", [{"key": "key", "value": "vaLue"}]),
        ("Abc", []),
    ):
        ids[name] = rest.made("experiments/create", {"name": name, "tags": tags})["experiment_id"]

    def names(**query: Any) -> list[str]:
        return [each["name"] for each in rest.made("experiments/search", query)["experiments"]]

    assert names(filter="attribute.name = 'a'") == ["a"]
    assert names(filter="attribute.name != 'a'") == ["Abc", "ab", "Default"]
    assert names(filter="name LIKE 'a%'") == ["ab", "a"]
    assert names(filter="tag.key != 'value'") == ["ab"]
    assert names(filter="tag.key ILIKE '%alu%'") == ["ab", "a"]
    assert names(order_by=["name DESC"]) == sorted(["ab", "a", "Default", "Abc"], reverse=True)
    rest.made("experiments/delete", {"experiment_id": ids["ab"]})
    assert names(view_type="ACTIVE_ONLY") == ["Abc", "a", "Default"]
    assert names(view_type=2) == ["ab"]
    assert names(view_type="ALL") == ["Abc", "ab", "a", "Default"]
    first = rest.made("experiments/search", {"max_results": 2})
    assert names(page_token=first["next_page_token"]) == ["Default"]
    refused = rest.post("experiments/update", {"experiment_id": ids["ab"], "new_name": "x"})
    assert (refused[0], refused[1]["error_code"]) == (400, "INVALID_STATE")
    taken = rest.post("experiments/create", {"name": "ab"})
    assert taken[1]["error_code"] == "RESOURCE_ALREADY_EXISTS"
    assert "already exists in deleted state" in taken[1]["message"]
    assert rest.post("experiments/create", {"name": "a"})[1]["message"].endswith("already exists")


def test_runs_of_a_deleted_experiment_are_deleted_until_it_is_restored(
    rest: Rest, experiment_id: str, run_id: str
) -> None:
    def found(view: str) -> list[str]:
        query = {"experiment_ids": [experiment_id], "run_view_type": view}
        return [run["info"]["run_id"] for run in rest.made("runs/search", query).get("runs", [])]

    rest.made("experiments/delete", {"experiment_id": experiment_id})
    assert (found("ACTIVE_ONLY"), found("DELETED_ONLY"), found("ALL")) == ([], [run_id], [run_id])
    assert rest.get("runs/get", {"run_id": run_id})[1]["run"]["info"]["lifecycle_stage"] == "deleted"
    rest.made("experiments/restore", {"experiment_id": experiment_id})
    assert found("ACTIVE_ONLY") == [run_id]


def test_words_of_missing_and_deleted_runs_and_tags(rest: Rest, run_id: str) -> None:
    assert rest.post("runs/delete-tag", {"run_id": "none", "key": "k"})[1] == {
        "error_code": "RESOURCE_DOES_NOT_EXIST", "message": "Run with id=none not found"
    }  # fmt: skip
    assert "No tag with name: k" in rest.post("runs/delete-tag", {"run_id": run_id, "key": "k"})[1]["message"]
    rest.made("runs/delete", {"run_id": run_id})
    status, answer = rest.post("runs/set-tag", {"run_id": run_id, "key": "k", "value": "v"})
    assert answer["message"].startswith(f"The run {run_id} must be in the 'active' state")
    rest.made("runs/restore", {"run_id": run_id})
    rest.made("runs/log-parameter", {"run_id": run_id, "key": "p", "value": "1"})
    status, answer = rest.post("runs/log-parameter", {"run_id": run_id, "key": "p", "value": "2"})
    assert (status, answer["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert "Changing param values is not allowed" in answer["message"]
    rest.made("runs/log-parameter", {"run_id": run_id, "key": "long", "value": "x" * 7_000})
    parameters = rest.get("runs/get", {"run_id": run_id})[1]["run"]["data"]["params"]
    assert {"key": "long", "value": "x" * 6_000} in parameters


def test_a_run_without_a_name_gets_one(rest: Rest, run_id: str) -> None:
    run = rest.get("runs/get", {"run_id": run_id})[1]["run"]
    assert run["info"]["run_name"]
    assert {"key": "mlflow.runName", "value": run["info"]["run_name"]} in run["data"]["tags"]


def test_datasets_are_logged_searched_and_listed_once(rest: Rest, experiment_id: str, run_id: str) -> None:
    dataset = {"name": "name1", "digest": "digest1", "source_type": "s", "source": "there"}
    item = {"dataset": dataset, "tags": [{"key": "mlflow.data.context", "value": "training"}]}
    for _ in range(2):
        rest.made("runs/log-inputs", {"run_id": run_id, "datasets": [item]})
    assert rest.get("runs/get", {"run_id": run_id})[1]["run"]["inputs"]["dataset_inputs"] == [item]
    found = rest.made("experiments/search-datasets", {"experiment_ids": [experiment_id]})["dataset_summaries"]
    assert found == [{"experiment_id": experiment_id, "name": "name1", "digest": "digest1", "context": "training"}]
    for term, count in (
        ("name = 'name1'", 1),
        ("digest = 'x'", 0),
        ("context = 'training'", 1),
        ("name LIKE 'na%'", 1),
    ):
        query = {"experiment_ids": [experiment_id], "filter": f"dataset.{term}"}
        assert len(rest.made("runs/search", query).get("runs", [])) == count, term


def test_artifacts_by_the_pages_endpoints_and_paths_that_climb_out(rest: Rest, run_id: str) -> None:
    upload = f"{AJAX}upload-artifact?run_uuid={run_id}"
    for query, words in (("?", "Request must specify run_uuid."), (f"?run_uuid={run_id}", "Request must specify path."),
                         (f"?run_uuid={run_id}&path=../x", "Invalid path"),
                         (f"?run_uuid={run_id}&path=a.txt", "Request must specify data.")):  # fmt: skip
        answer = rest.client.post(f"{AJAX}upload-artifact{query}", b"", content_type="application/octet-stream")
        assert (answer.status_code, answer.json()["message"]) == (400, words)
    answer = rest.client.post(f"{upload}&path=d/a.txt", b"hello world", content_type="application/octet-stream")
    assert answer.status_code == 200
    download = rest.client.get("/get-artifact", {"run_uuid": run_id, "path": "d/a.txt"})
    assert b"".join(download) == b"hello world"
    for path in ("../path", "/etc/passwd", "a/../../b", "%2e%2e/x", "a\\..\\b"):
        for address in (f"{API}artifacts/list", "/get-artifact"):
            refused = rest.client.get(address, {"run_id": run_id, "path": path})
            assert refused.status_code == 400
            assert refused.json() == {"error_code": "INVALID_PARAMETER_VALUE", "message": "Invalid path"}
        stored = rest.client.put(f"/api/2.0/mlflow-artifacts/artifacts/0/{run_id}/artifacts/{path}", b"x")
        assert stored.status_code in (400, 404)
    listed = rest.get("artifacts/list", {"run_id": run_id, "path": "."})[1]
    assert listed["files"] == [{"path": "d", "is_dir": True}]


def test_a_logged_model_is_created_filled_finalised_found_and_deleted(
    rest: Rest, experiment_id: str, run_id: str
) -> None:
    created = rest.made(
        "logged-models",
        {"experiment_id": experiment_id, "name": "bert", "source_run_id": run_id, "model_type": "Agent",
         "params": [{"key": "layers", "value": "12"}], "tags": [{"key": "team", "value": "a"}]},
    )["model"]  # fmt: skip
    identity = created["info"]["model_id"]
    assert created["info"]["status"] == "LOGGED_MODEL_PENDING"
    store = f"/api/2.0/mlflow-artifacts/artifacts/{created['info']['artifact_uri'].removeprefix('mlflow-artifacts:/')}"
    assert rest.client.put(f"{store}/MLmodel", b"flavors: {}").status_code == 200
    assert b"".join(rest.client.get(f"{store}/MLmodel")) == b"flavors: {}"
    assert (
        rest.call("patch", f"logged-models/{identity}", {"model_id": identity, "status": 2})[1]["model"]["info"][
            "status"
        ]
        == "LOGGED_MODEL_READY"
    )
    rest.call("patch", f"logged-models/{identity}/tags", {"tags": [{"key": "team", "value": "b"}]})
    rest.made(f"logged-models/{identity}/params", {"model_id": identity, "params": [{"key": "heads", "value": "4"}]})
    metric = {"run_id": run_id, "key": "accuracy", "value": 0.5, "timestamp": 1, "step": 3, "model_id": identity}
    rest.made("runs/log-metric", metric)
    rest.made("runs/outputs", {"run_id": run_id, "models": [{"model_id": identity, "step": 3}]})

    model = rest.get(f"logged-models/{identity}", root=API)[1]["model"]
    assert model["info"]["tags"] == [{"key": "team", "value": "b"}]
    assert {pair["key"] for pair in model["data"]["params"]} == {"layers", "heads"}
    assert model["data"]["metrics"][0]["value"] == 0.5
    run = rest.get("runs/get", {"run_id": run_id})[1]["run"]
    assert run["outputs"]["model_outputs"] == [{"model_id": identity, "step": 3}]
    listed = rest.get(f"logged-models/{identity}/artifacts/directories", root=API)[1]["files"]
    assert listed == [{"path": "MLmodel", "is_dir": False, "file_size": 11}]
    shown = rest.client.get(f"{AJAX}logged-models/{identity}/artifacts/files", {"artifact_file_path": "MLmodel"})
    assert b"".join(shown) == b"flavors: {}"
    status, answer = rest.get(f"logged-models/{identity}/artifacts/files")
    assert (status, answer["error_code"]) == (400, "BAD_REQUEST")
    assert 'must include the "artifact_file_path" query parameter' in answer["message"]
    assert rest.get(f"logged-models/{identity}/artifacts/files", {"artifact_file_path": "../a"})[0] == 400
    assert rest.get(f"logged-models/{identity}/artifacts/files", {"artifact_file_path": "a"})[0] == 404

    def count(condition: str) -> int:
        query = {
            "experiment_ids": [experiment_id],
            "filter": condition,
            "order_by": [{"field_name": "metrics.accuracy"}],
        }
        return len(rest.made("logged-models/search", query)["models"])

    conditions = {"name = 'bert'": 1, "name LIKE 'x%'": 0, "metrics.accuracy > 0.4": 1, "metrics.accuracy > 0.6": 0,
                  "params.layers = '12'": 1, "tags.team != 'b'": 0, "status = 'READY'": 1}  # fmt: skip
    assert {condition: count(condition) for condition in conditions} == conditions
    assert rest.call("delete", f"logged-models/{identity}/tags/team")[0] == 200
    assert rest.call("delete", f"logged-models/{identity}")[0] == 200
    assert rest.get(f"logged-models/{identity}", root=API)[0] == 404
    assert rest.get(f"logged-models/{identity}", {"allow_deleted": "true"}, root=API)[0] == 200


def test_models_are_found_by_the_datasets_of_their_metrics(rest: Rest, experiment_id: str, run_id: str) -> None:
    measured = {"a": {("test", "1"): 0.9, ("valid", "2"): 0.4}, "b": {("test", "3"): 0.3}, "c": {}}
    for name, values in measured.items():
        model = rest.made("logged-models", {"experiment_id": experiment_id, "name": name, "source_run_id": run_id})
        for (dataset, digest), value in values.items():
            named = {"model_id": model["model"]["info"]["model_id"], "dataset_name": dataset, "dataset_digest": digest}
            metric = {"key": "accuracy", "value": value, "timestamp": 1, "step": 1, **named}
            rest.made("runs/log-metric", {"run_id": run_id, **metric})

    def found(condition: str, *datasets: tuple[str, str]) -> str:
        chosen = [{"dataset_name": name} | ({"dataset_digest": digest} if digest else {}) for name, digest in datasets]
        query = {"experiment_ids": [experiment_id], "filter": condition, "datasets": chosen}
        models = rest.made("logged-models/search", query)["models"]
        return "".join(sorted(model["info"]["name"] for model in models))

    assert found("") == "abc"
    assert found("", ("test", "")) == "ab", "those with any metric of it"
    assert found("", ("test", "1")) == "a"
    assert found("", ("test", "2")) == ""
    assert found("", ("test", "3"), ("valid", "2")) == "ab"
    assert found("metrics.accuracy < 0.5", ("test", "")) == "b"
    assert found("metrics.accuracy < 0.5") == "ab", "any of its values"
    assert found("metrics.accuracy > 0.5") == "a"
    assert found("name = 'b'", ("valid", "")) == ""


def test_a_model_without_a_run_gets_one_that_holds_its_files(rest: Rest, experiment_id: str) -> None:
    model = rest.made("logged-models", {"experiment_id": experiment_id, "name": "alone"})["model"]
    assert model["info"]["source_run_id"] == ""
    assert Experiment.objects.get(name="rest").runs.get().label == "alone"


def test_a_model_of_a_run_that_nobody_has_begun_keeps_its_name(rest: Rest, experiment_id: str) -> None:
    named = {"experiment_id": experiment_id, "name": "later", "source_run_id": "a-run"}
    assert rest.made("logged-models", named)["model"]["info"]["source_run_id"] == "a-run"
    assert rest.made("logged-models", named | {"name": "again"})["model"]["info"]["source_run_id"] == "a-run"
    status, answer = rest.post("logged-models", named | {"source_run_id": "a/../b"})
    assert (status, answer["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


def test_what_is_not_served_is_a_clear_error_and_never_a_5xx(rest: Rest) -> None:
    for path in ("registered-models/create", "model-versions/search", "traces", "artifacts/presigned-upload-url",
                 "gateway-proxy", "runs/create-promptlab-run", "webhooks", "datasets/create"):  # fmt: skip
        status, answer = rest.post(path, {})
        assert status == 404
        assert answer["error_code"] in ("NOT_IMPLEMENTED", "ENDPOINT_NOT_FOUND")
    for address in ("/api/2.0/mlflow-artifacts/presigned/0/x", "/api/3.0/mlflow/traces/start", "/v1/traces",
                    "//model-versions/get-artifact"):  # fmt: skip
        assert rest.client.post(address).json()["error_code"] in ("NOT_IMPLEMENTED", "ENDPOINT_NOT_FOUND")


def test_tags_of_a_deleted_experiment_stay_and_missing_ones_are_named(rest: Rest, experiment_id: str) -> None:
    absent = rest.post("experiments/delete-experiment-tag", {"experiment_id": experiment_id, "key": "k"})
    assert absent == (
        404,
        {"error_code": "RESOURCE_DOES_NOT_EXIST",
         "message": f"No tag with name: k in experiment with id {experiment_id}"},
    )  # fmt: skip
    rest.made("experiments/set-experiment-tag", {"experiment_id": experiment_id, "key": "k", "value": "a\nb"})
    rest.made("experiments/delete", {"experiment_id": experiment_id})
    for path in ("experiments/set-experiment-tag", "experiments/delete-experiment-tag"):
        status, answer = rest.post(path, {"experiment_id": experiment_id, "key": "k", "value": "c"})
        assert (status, answer["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
        assert "must be in the 'active' state" in answer["message"]
    tags = rest.get("experiments/get", {"experiment_id": experiment_id})[1]["experiment"]["tags"]
    assert tags == [{"key": "k", "value": "a\nb"}]


@pytest.mark.database
def test_runs_are_ordered_with_nan_after_numbers_and_before_runs_without_the_metric(
    rest: Rest, experiment_id: str
) -> None:
    values = {"none": None, "nan": "NaN", "inf": "Infinity", "-inf": "-Infinity", "-1": -1.0, "0": 0.0, "7": 7.0}
    for name, value in values.items():
        run_id = rest.made("runs/create", {"experiment_id": experiment_id, "run_name": name})["run"]["info"]["run_id"]
        if value is not None:
            rest.made("runs/log-metric", {"run_id": run_id, "key": "x", "value": value, "timestamp": 1})

    def names(order: str) -> list[str]:
        query = {"experiment_ids": [experiment_id], "order_by": [order]}
        return [run["info"]["run_name"] for run in rest.made("runs/search", query)["runs"]]

    assert names("metrics.x ASC") == ["-inf", "-1", "0", "7", "inf", "nan", "none"]
    assert names("metrics.x DESC") == ["inf", "7", "0", "-1", "-inf", "nan", "none"]


@pytest.mark.database
def test_nan_differs_from_every_number_and_compares_with_none(rest: Rest, experiment_id: str) -> None:
    for name, value in {"none": None, "nan": "NaN", "zero": 0.0, "one": 1.0}.items():
        run_id = rest.made("runs/create", {"experiment_id": experiment_id, "run_name": name})["run"]["info"]["run_id"]
        if value is not None:
            rest.made("runs/log-metric", {"run_id": run_id, "key": "x", "value": value, "timestamp": 1})

    def names(text: str) -> set[str]:
        query = {"experiment_ids": [experiment_id], "filter": text}
        return {run["info"]["run_name"] for run in rest.made("runs/search", query).get("runs", [])}

    assert names("metrics.x != 0") == {"nan", "one"}
    assert names("metrics.x = 0") == names("metrics.x < 1") == {"zero"}
    assert names("metrics.x IS NOT NULL") == {"nan", "zero", "one"}


@pytest.mark.database
def test_runs_are_found_by_every_entity_and_comparison(rest: Rest, experiment_id: str) -> None:
    for name, loss, rate, owner in (("one", 0.5, "0.1", "Ann"), ("two", 1.5, "0.2", "ben"), ("Three", 2.5, "0.1", "")):
        run = rest.made("runs/create", {"experiment_id": experiment_id, "run_name": name, "start_time": int(loss * 10)})
        tags = [{"key": "owner", "value": owner}] if owner else []
        rest.made(
            "runs/log-batch",
            {
                "run_id": run["run"]["info"]["run_id"],
                "metrics": [{"key": "train loss", "value": loss, "timestamp": 1}],
                "params": [{"key": "lr", "value": rate}],
                "tags": tags,
            },
        )

    def names(text: str) -> set[str]:
        query = {"experiment_ids": [experiment_id], "filter": text}
        return {run["info"]["run_name"] for run in rest.made("runs/search", query).get("runs", [])}

    for text, expected in (
        ("metrics.`train loss` >= 1.5", {"two", "Three"}),
        ('metrics."train loss" != 0.5 and params.lr = "0.1"', {"Three"}),
        ("params.lr != '0.1'", {"two"}),
        ("params.lr ILIKE '0._'", {"one", "two", "Three"}),
        ("tags.owner LIKE 'A%'", {"one"}),
        ("tags.owner ILIKE 'B%'", {"two"}),
        ("tags.owner != 'Ann'", {"two"}),
        ("tags.owner IS NULL", {"Three"}),
        ("tags.owner IS NOT NULL", {"one", "two"}),
        ("attributes.run_name IN ('one', 'two')", {"one", "two"}),
        ("run_name NOT IN ('one', 'two')", {"Three"}),
        ("attributes.start_time > 5 AND attributes.start_time <= 25", {"two", "Three"}),
        ("status = 'RUNNING'", {"one", "two", "Three"}),
        ("status != 'RUNNING'", set()),
        ("tags.`mlflow.runName` = 'Three'", {"Three"}),
    ):
        assert names(text) == expected, text


@pytest.mark.slow
def test_a_history_without_a_page_size_is_whole(rest: Rest, run_id: str) -> None:
    for first in range(0, 30_000, 1_000):
        points = [{"key": "m", "value": 1.0, "timestamp": 1, "step": step} for step in range(first, first + 1_000)]
        rest.made("runs/log-batch", {"run_id": run_id, "metrics": points})
    answer = rest.get("metrics/get-history", {"run_id": run_id, "metric_key": "m"})[1]
    assert (len(answer["metrics"]), "next_page_token" in answer) == (30_000, False)
    page = rest.get("metrics/get-history", {"run_id": run_id, "metric_key": "m", "max_results": 25_000})[1]
    rest_of_it = rest.get(
        "metrics/get-history",
        {"run_id": run_id, "metric_key": "m", "max_results": 25_000, "page_token": page["next_page_token"]},
    )[1]
    assert [len(page["metrics"]), len(rest_of_it["metrics"])] == [25_000, 5_000]
    assert rest.get("metrics/get-history", {"run_id": run_id, "metric_key": "m", "max_results": 0})[0] == 400
