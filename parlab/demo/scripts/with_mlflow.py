"""Report a training with the calls of an MLflow client: by the package mlflow, or plain HTTP where it is missing."""

import json
import os
import time
import urllib.error
import urllib.request
from typing import Any

from parlab.demo.scripts.training import SETTINGS, steps

EXPERIMENT, NAME = "Four ways in", "MLflow client"
METRICS = ("train/loss", "samples_per_s")


def by_package() -> None:
    import mlflow

    mlflow.set_experiment(EXPERIMENT)
    with mlflow.start_run(run_name=NAME):
        mlflow.log_params(SETTINGS)
        for step in steps(seed=2):
            mlflow.log_metrics(dict(zip(METRICS, (step.loss, step.samples_per_s), strict=True)), step=step.number)


def call(path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{os.environ['MLFLOW_TRACKING_URI']}/api/2.0/mlflow/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['MLFLOW_TRACKING_TOKEN']}"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def by_http() -> None:
    search = {"filter": f"name = '{EXPERIMENT}'"}
    experiments = call("experiments/search", search).get("experiments", [])
    experiment = (experiments or [call("experiments/create", {"name": EXPERIMENT})])[0]["experiment_id"]
    started_ms = int(time.time() * 1000)
    created = call("runs/create", {"experiment_id": experiment, "run_name": NAME, "start_time": started_ms})
    run_id = created["run"]["info"]["run_id"]
    params = [{"key": key, "value": str(value)} for key, value in SETTINGS.items()]
    call("runs/log-batch", {"run_id": run_id, "params": params})
    metrics = [
        {"key": key, "value": value, "timestamp": int(time.time() * 1000), "step": step.number}
        for step in steps(seed=2)
        for key, value in zip(METRICS, (step.loss, step.samples_per_s), strict=True)
    ]
    call("runs/log-batch", {"run_id": run_id, "metrics": metrics})
    call("runs/update", {"run_id": run_id, "status": "FINISHED", "end_time": int(time.time() * 1000)})


if __name__ == "__main__":
    try:
        by_package()
    except ImportError:
        by_http()
