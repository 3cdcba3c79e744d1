"""What the server writes can be read by its account only, also in a directory that is open to others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from parlab import celery, checks
from parlab.embedded import redis_command
from parlab.settings import BASE_DIR
from tests.patience import PATIENCE_S
from tests.private import readable_by_others

WRITING = "import sqlite3; from django.db import connection; connection.cursor().execute('CREATE TABLE t (x)')"


def test_keys_database_and_configuration_of_redis_are_private(tmp_path: Path, settings: Any) -> None:
    tmp_path.chmod(0o755)
    environment = {**os.environ, "PARLAB_DATA_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "parlab.settings"}
    environment.pop("DATABASE_URL", None)
    command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", WRITING]
    subprocess.run(
        command, cwd=BASE_DIR, env=environment, umask=0o022, check=True, capture_output=True, timeout=PATIENCE_S
    )
    redis_command(1, tmp_path, "a password")
    assert {"secret_key", "node_key", "parlab.sqlite3", "redis.conf"} <= {path.name for path in tmp_path.iterdir()}
    assert readable_by_others(tmp_path) == []
    settings.DATA_DIR = tmp_path
    assert checks.data_is_private() == []
    (tmp_path / "secret_key").chmod(0o644)
    (warning,) = checks.data_is_private()
    assert f"can read {tmp_path}/secret_key" in warning.msg
    assert f"chmod 700 {tmp_path}" in str(warning.hint)


def test_workers_write_private_files(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        celery.write_private_files()
        (tmp_path / "file").touch()
    finally:
        os.umask(before)
    assert readable_by_others(tmp_path) == []
