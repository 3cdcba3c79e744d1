"""The unmodified MLflow client against our server and against the newest MLflow server, in its own environment."""

from __future__ import annotations

import http.client
import os
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from urllib.error import URLError
from urllib.request import urlopen

import mlflow
from mlflow.entities import Metric

from parlab.embedded import free_port
from tests.bench import environments
from tests.bench.client import METRICS, running, server
from tests.bench.result import Result, Scale, Unavailable


def log_batch_ratio(scale: Scale) -> Result:
    """Measure points/s of `log_batch` with 1,000 metrics a call, one client, both servers on SQLite, alternating."""
    if scale.is_quick:
        raise Unavailable("--quick installs nothing")
    calls, repeats = scale.of(100), scale.repeats(3)
    os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "GIT_PYTHON_REFRESH": "quiet"}
    values, others = [], []
    with tempfile.TemporaryDirectory(prefix="parlab-mlflow-") as directory:
        command, version = _installed(Path(directory))
        port = free_port()
        store = ["--backend-store-uri", f"sqlite:///{directory}/mlflow.db", "--artifacts-destination", directory]
        command += ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *store]
        url = f"http://127.0.0.1:{port}"
        with running(command, partial(_is_healthy, url)), server() as (own_url, token):
            for _ in range(repeats):
                values.append(_rate(own_url, calls, token))
                others.append(_rate(url, calls, ""))
    value, other = median(values), median(others)
    return Result(value, "points/s", f"{other:,.0f} with mlflow server {version}", value / other, repeats)


def _installed(directory: Path) -> tuple[list[str], str]:
    """Install the newest mlflow into an environment that ends with the benchmark; return its command and version."""
    python = environments.installed(directory, "mlflow")
    code = "import mlflow; print(mlflow.__version__)"
    version = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return [python, "-m", "mlflow"], version


def _is_healthy(url: str) -> bool:
    try:
        with urlopen(f"{url}/health") as response:
            return bool(response.status == 200)
    except (URLError, OSError, http.client.HTTPException):
        return False


def _rate(url: str, calls: int, token: str) -> float:
    os.environ["MLFLOW_TRACKING_TOKEN"] = token
    if not token:
        del os.environ["MLFLOW_TRACKING_TOKEN"]
    client = mlflow.MlflowClient(url)
    run = client.create_run("0").info.run_id
    now = int(time.time() * 1000)
    steps = 1000 // len(METRICS)
    batches = [
        [Metric(name, value, now, call * steps + step) for step in range(steps) for name, value in METRICS.items()]
        for call in range(calls)
    ]
    began = time.perf_counter()
    for batch in batches:
        client.log_batch(run, metrics=batch)
    return calls * 1000 / (time.perf_counter() - began)
