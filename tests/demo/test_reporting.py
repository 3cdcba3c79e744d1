"""The four scripts of the demo, as real processes against a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer

from parlab.demo import reporting
from parlab.lab.models import Run
from parlab.lab.services.access.tokens import token_create
from parlab.lab.services.experiments import experiment_create
from tests.patience import TRAINING_S
from tests.tracking.directories import files_below, stores_import


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_each_way_brings_in_one_run_with_its_loss(live_server: LiveServer, admin: User, tmp_path: Path) -> None:
    experiment_create(name=reporting.EXPERIMENT, owner=admin)
    _, secret = token_create(user=admin, name="scripts", by=admin)
    variables = {
        "PARLAB_URL": live_server.url, "PARLAB_TOKEN": secret, "PARLAB_HOME": str(tmp_path),
        "MLFLOW_TRACKING_URI": live_server.url, "MLFLOW_TRACKING_TOKEN": secret, "GIT_PYTHON_REFRESH": "quiet",
    }  # fmt: skip
    *scripts, _ = reporting.commands()
    for command in scripts:
        done = subprocess.run(
            command,
            cwd=reporting.ROOT,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=TRAINING_S,
        )
        assert done.returncode == 0, done.stderr
    stores_import(files=files_below(reporting.STORE), user=admin)

    runs = {run.label: run for run in Run.objects.filter(experiment__name=reporting.EXPERIMENT)}
    assert set(runs) == {"parlab client", "MLflow client", "parlab run", "MLflow file store"}
    assert {run.state for run in runs.values()} == {"finished"}
    for run in runs.values():
        assert run.summary["loss"]["last"] < run.summary["loss"]["first"], run.label


def test_what_runs_ends_with_it() -> None:
    script = "print('running', flush=True); import time; time.sleep(600)"
    one = "from parlab.demo import reporting; "
    one += f"reporting.commands = lambda: [[{sys.executable!r}, '-c', {script!r}]]; reporting.main()"
    with subprocess.Popen(
        [sys.executable, "-c", one], cwd=reporting.ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.terminate()
        # The pipe ends when the last process that writes to it has ended.
        assert process.stdout.read() == ""
    assert process.returncode == 128 + signal.SIGTERM
