"""A backup of a running server, restored into an empty directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parlab.settings import BASE_DIR
from tests.patience import TRAINING_S
from tests.private import readable_by_others

CREATE = "from django.contrib.auth.models import User; User.objects.create_user('ada', password='correct horse')"
READ = "from django.contrib.auth.models import User; print(User.objects.get().check_password('correct horse'))"


def manage(data: Path, *arguments: str) -> str:
    environment = {**os.environ, "PARLAB_DATA_DIR": str(data), "DJANGO_SETTINGS_MODULE": "parlab.settings"}
    for name in ("DATABASE_URL", "PARLAB_SECRET_KEY", "PARLAB_NODE_KEY"):
        environment.pop(name, None)
    command = [sys.executable, "manage.py", *arguments]
    done = subprocess.run(command, cwd=BASE_DIR, env=environment, capture_output=True, text=True, timeout=TRAINING_S)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_backup_is_private_and_brings_everything_back(tmp_path: Path) -> None:
    server, other, backup = tmp_path / "server", tmp_path / "other", tmp_path / "backup"
    tmp_path.chmod(0o755)
    manage(server, "migrate", "--verbosity", "0")
    manage(server, "shell", "--no-imports", "-c", CREATE)
    (server / "artifacts").mkdir()
    (server / "artifacts" / "model.bin").write_bytes(b"weights")
    assert " bytes" in manage(server, "backup", str(backup))
    assert f"{backup} exists; choose a directory" in manage(server, "backup", str(backup))
    assert readable_by_others(tmp_path) == []
    assert "start the server" in manage(other, "backup", "--restore", str(backup))
    assert manage(other, "shell", "--no-imports", "-c", READ).strip().endswith("True")
    for name in ("secret_key", "node_key", "artifacts/model.bin"):
        assert (other / name).read_bytes() == (server / name).read_bytes()
    assert "the database is not empty" in manage(other, "backup", "--restore", str(backup))
    assert "is no whole backup" in manage(tmp_path / "third", "backup", "--restore", str(server))
