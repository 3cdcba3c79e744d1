"""Connections of a web process to PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SETTINGS = "import json, parlab.asgi; from django.db import connection as c; print(json.dumps(c.settings_dict))"


@pytest.mark.parametrize(
    ("given", "limit"), [({}, 40), pytest.param({"PARLAB_DATABASE_POOL": "7"}, 7, marks=pytest.mark.slow)]
)
def test_requests_of_a_web_process_wait_for_a_limited_number_of_connections(given: dict[str, str], limit: int) -> None:
    environment = {**os.environ, "DATABASE_URL": "postgres://u@127.0.0.1:1/d", "DEBUG": "1", **given}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    printed = subprocess.run([sys.executable, "-c", SETTINGS], capture_output=True, text=True, env=environment)
    shown = json.loads(printed.stdout.splitlines()[-1])
    assert (shown["OPTIONS"]["pool"]["max_size"], shown["CONN_MAX_AGE"]) == (limit, 0), printed.stderr
