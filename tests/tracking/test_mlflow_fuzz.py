"""Whatever arrives at an endpoint of MLflow's protocol, the answer is JSON and never a 5xx."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parlab.lab.services.access.tokens import token_create
from parlab.lab.services.experiments import experiment_create
from parlab.tracking import runs
from parlab.tracking.mlflow import urls

pytestmark = pytest.mark.django_db
RUN = "5eed" * 8
_STATED = [
    "run_id",
    "run_uuid",
    "experiment_id",
    "experiment_ids",
    "experiment_name",
    "key",
    "value",
    "timestamp",
    "step",
    "name",
    "new_name",
    "metrics",
    "params",
    "tags",
    "filter",
    "order_by",
    "max_results",
    "page_token",
    "status",
    "view_type",
    "models",
    "metric_key",
    "run_ids",
    "start_step",
    "end_step",
    "path",
    "model_json",
    "datasets",
    "run_view_type",
    "num_parts",
    "upload_id",
    "source_run_id",
    "model_type",
    "end_time",
    "start_time",
    "run_name",
    "user_id",
    "artifact_location",
    "parts",
]
_OF_ITEMS = [
    "key",
    "value",
    "timestamp",
    "step",
    "dataset",
    "tags",
    "model_id",
    "name",
    "digest",
    "field_name",
    "ascending",
    "part_number",
]
_TEXTS = [
    "",
    "0",
    "1",
    RUN,
    "loss",
    "a/../b",
    "\x00",
    "\ud800",
    "ü" * 300,
    "metrics.loss < 1",
    "tags.a LIKE '%'",
    "name DESC",
    "dataset.name = 'x'",
    "params.`a b` IN ('1', '2')",
    "NaN",
    "1e999",
    "-5",
    "RUNNING",
    "ALL",
    "eyJvZmZzZXQiOiA1fQ==",
    "attributes.start_time > 5",
    "' OR 1=1",
    "[" * 2_000,
    "{}",
    "status = 'READY'",
]
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(_TEXTS),
)
_items = st.dictionaries(st.sampled_from(_OF_ITEMS), _scalars | st.just({"name": "a", "digest": "b"}), max_size=5)
_values = st.one_of(_scalars, st.lists(_scalars | _items, max_size=4), _items)
_bodies = st.one_of(
    st.dictionaries(st.sampled_from(_STATED), _values, max_size=8),
    _values,
)


def endpoints() -> list[tuple[str, str]]:
    """Return method and address of every endpoint, with a run and a model in its places."""
    found = []
    for table, prefix in ((urls._ENDPOINTS, "mlflow"), (urls._STORE, "mlflow-artifacts")):
        for name, entry in table.items():
            methods = [entry[0]] if isinstance(entry, tuple) else list(entry)
            path = name.replace("<path:artifact_path>", f"0/{RUN}/artifacts/a.txt").replace("<str:model_id>", "m-1")
            found += [(method, f"/api/2.0/{prefix}/{path.replace('<path:tag_key>', 'k')}") for method in methods]
    return [*found, ("GET", "/get-artifact"), ("PUT", "/api/2.0/mlflow-artifacts/parts/0/1"), ("POST", "/graphql")]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "PATCH", "DELETE"])
def test_no_request_is_answered_with_a_5xx(admin: User, settings_of_files: None, method: str) -> None:
    secret = token_create(user=admin, name="fuzz", by=admin)[1]
    experiment = experiment_create(name="fuzzed", owner=admin)
    runs.tracked_run_start(experiment=experiment, user=admin, run_uuid=RUN)
    client = Client(headers={"Authorization": f"Bearer {secret}"}, raise_request_exception=True)
    targets = [address for own, address in endpoints() if own == method]
    assert targets

    @settings(max_examples=60, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
    @given(address=st.sampled_from(targets), body=_bodies, run=st.booleans())
    def try_one(address: str, body: Any, run: bool) -> None:
        if run and isinstance(body, dict):
            body = {"run_id": RUN, "experiment_id": str(experiment.pk), "experiment_ids": [str(experiment.pk)], **body}
        query = {}
        if method == "GET" and isinstance(body, dict):
            query = {"QUERY_STRING": "&".join(f"{name}={json.dumps(value)[:200]}" for name, value in body.items())}
        data = "" if method == "GET" else json.dumps(body)
        answer = client.generic(method, address, data, content_type="application/json", **query)  # type: ignore[arg-type]
        assert answer.status_code < 500, (address, body)
        if answer.status_code >= 400:
            assert set(json.loads(answer.content)) == {"error_code", "message"}, (address, body)

    try_one()


@pytest.fixture
def settings_of_files(settings: Any, tmp_path: Any) -> None:
    settings.ARTIFACTS_DIR = tmp_path
