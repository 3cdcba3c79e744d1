"""Processes start quickly because they do not import what they do not need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SERVER = {"torch", "polars", "playwright", "deepspeed", "transformers", "accelerate"}
NODE = SERVER | {"django.conf", "numpy", "plotly"}
START_WEB = "import parlab.asgi"
START_WORKER = (
    "from parlab.celery import app; from celery.signals import worker_init;"
    " app.loader.init_worker(); app.finalize(); worker_init.send(sender=app)"
)
START_BEAT = "from parlab.celery import app; app.Beat(quiet=True).init_loader()"


@pytest.mark.parametrize(
    ("start", "unneeded"),
    [
        (START_WEB, SERVER),
        (START_WORKER, SERVER),
        (START_BEAT, NODE - {"django.conf"} | {"parlab.lab", "parlab.fleet", "parlab.ingest", "parlab.pages"}),
        ("import runners.node.daemon", NODE | {"kubernetes"}),
        ("import runners.supervisor.supervise", NODE | {"celery", "kombu", "redis", "runners.config"}),
        ("import runners.node.slurm.member", NODE | {"celery", "kombu", "redis"}),
        ("import runners.node.kubernetes.member", NODE | {"celery", "kombu", "redis", "runners.config", "kubernetes"}),
        ("import runners.engines.command", NODE | {"celery", "kombu", "redis"}),
    ],
    ids=[
        "web",
        "worker",
        "beat",
        "daemon",
        "supervisor",
        "supervisor in a job",
        "supervisor in a pod",
        "engine command",
    ],
)
def test_a_process_does_not_import(start: str, unneeded: set[str], tmp_path: Path) -> None:
    program = f"{start}\nimport sys\nprint(*sys.modules)"
    environment = os.environ | {"PARLAB_DATA_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "parlab.settings"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "parlab.celery" in imported or "parlab.asgi" in imported or start.removeprefix("import ") in imported
    assert not imported & unneeded
    if start in (START_WEB, START_WORKER):
        # Who needs the first address, for example of a run that has ended, would import them inside a transaction.
        assert {"parlab.pages.urls", "parlab.api.urls"} <= imported
