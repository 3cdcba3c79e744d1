"""Reports that are odd or refused: steps that go back, values that are no numbers, wrong clocks, rights, limits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import Run
from parlab.lab.services.access.tokens import token_create

from .test_mlflow_rest import Rest, experiment_id, rest, run_id

pytestmark = pytest.mark.django_db
__all__ = ["experiment_id", "rest", "run_id"]


def test_steps_that_go_back_and_values_that_are_no_numbers_are_kept_in_order(
    rest: Rest, run_id: str, page: Client
) -> None:
    logged = [(5, 1.0), (3, "NaN"), (4, "Infinity"), (4, "-Infinity"), (-2, 0.5)]
    metrics = [{"key": "loss", "value": value, "timestamp": 1, "step": step} for step, value in logged]
    rest.made("runs/log-batch", {"run_id": run_id, "metrics": metrics})

    _, answer = rest.get("metrics/get-history", {"run_id": run_id, "metric_key": "loss"})
    assert [(point["step"], point["value"]) for point in answer["metrics"]] == logged
    run = Run.objects.get()
    assert page.get(run.get_absolute_url()).status_code == 200


@pytest.mark.parametrize("timestamp", [0, 1, 32_503_680_000_000, 99_999_999_999_999])
def test_a_clock_that_is_years_off_breaks_no_page(rest: Rest, run_id: str, page: Client, timestamp: int) -> None:
    metrics: list[dict[str, Any]] = [
        {"key": "loss", "value": 1.0, "timestamp": timestamp + step, "step": step} for step in range(3)
    ]
    if metrics[-1]["timestamp"] >= 10**14:
        metrics = metrics[:1]
    rest.made("runs/log-batch", {"run_id": run_id, "metrics": metrics})
    rest.made("runs/update", {"run_id": run_id, "status": "FINISHED", "end_time": timestamp})

    run = Run.objects.get()
    assert run.state == "finished"
    assert page.get(run.get_absolute_url()).status_code == 200
    assert page.get(run.experiment.get_absolute_url()).status_code == 200


def test_wrong_tokens_missing_rights_and_large_bodies_are_refused_in_mlflows_shape(
    rest: Rest, run_id: str, settings: Any
) -> None:
    eve = User.objects.create_user("eve")
    _, weak = token_create(user=eve, name="weak", by=eve)
    body = {"run_id": run_id, "key": "k", "value": "v"}
    for secret, status, code in (("parlab_wrong", 401, "UNAUTHENTICATED"), (weak, 403, "PERMISSION_DENIED")):
        assert Rest(secret).post("runs/set-tag", body)[0] == status
        assert Rest(secret).post("runs/set-tag", body)[1]["error_code"] == code
    assert Rest(weak).post("runs/search", {"experiment_ids": []})[0] == 200, "reading needs no right"
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1_000
    status, answer = rest.post("runs/set-tag", {**body, "value": "x" * 2_000})
    assert (status, answer["error_code"]) == (400, "BAD_REQUEST")
    assert json.dumps(answer).count("too large") == 1
