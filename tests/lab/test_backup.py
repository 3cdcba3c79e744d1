"""A backup of a running server, restored into an empty directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from parlab.settings import BASE_DIR
from tests.faults.postgres import Postgres
from tests.patience import TRAINING_S
from tests.private import readable_by_others

CREATE = "from django.contrib.auth.models import User; User.objects.create_user('ada', password='correct horse')"
READ = "from django.contrib.auth.models import User; print(User.objects.get().check_password('correct horse'))"


class Server(NamedTuple):
    """A data directory and the variables of its database."""

    data: Path
    variables: dict[str, str]

    def manage(self, *arguments: str) -> str:
        environment = {**os.environ, "PARLAB_DATA_DIR": str(self.data), "DJANGO_SETTINGS_MODULE": "parlab.settings"}
        for name in ("DATABASE_URL", "PARLAB_SECRET_KEY", "PARLAB_NODE_KEY"):
            environment.pop(name, None)
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=BASE_DIR,
            env=environment | self.variables,
            capture_output=True,
            text=True,
            timeout=TRAINING_S,
            check=False,
        )
        return done.stdout + done.stderr


@pytest.fixture
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Two empty servers, each with a database of its own."""
    # PostgreSQL runs under an account of its own, which cannot reach pytest's private directories.
    with TemporaryDirectory(prefix="parlab-backup-", dir="/var/tmp") as root, ExitStack() as databases:
        made: list[Server] = []
        for name in ("server", "other"):
            variables: dict[str, str] = {}
            if request.param == "postgres":
                database = Postgres(Path(root) / name)
                database.directory.parent.mkdir()
                variables = {"DATABASE_URL": database.start()}
                databases.callback(database.close)
                variables["PATH"] = f"{database.programs}{os.pathsep}{os.environ['PATH']}"
            made.append(Server(tmp_path / name, variables))
        yield made[0], made[1]


@pytest.mark.slow
@pytest.mark.parametrize("servers", ["sqlite", "postgres"], indirect=True)
def test_a_backup_is_private_and_brings_everything_back(servers: tuple[Server, Server], tmp_path: Path) -> None:
    server, other = servers
    backup = tmp_path / "backup"
    tmp_path.chmod(0o755)
    server.manage("migrate", "--verbosity", "0")
    server.manage("shell", "--no-imports", "-c", CREATE)
    (server.data / "artifacts").mkdir()
    (server.data / "artifacts" / "model.bin").write_bytes(b"weights")
    assert " bytes" in server.manage("backup", str(backup))
    assert f"{backup} exists; choose a directory" in server.manage("backup", str(backup))
    assert readable_by_others(tmp_path) == []
    assert "start the server" in other.manage("backup", "--restore", str(backup))
    assert other.manage("shell", "--no-imports", "-c", READ).strip().endswith("True")
    for name in ("secret_key", "node_key", "artifacts/model.bin"):
        assert (other.data / name).read_bytes() == (server.data / name).read_bytes()
    assert "the database is not empty" in other.manage("backup", "--restore", str(backup))
    third = Server(tmp_path / "third", {})
    assert "is no whole backup" in third.manage("backup", "--restore", str(server.data))


@pytest.mark.slow
@pytest.mark.parametrize("servers", ["postgres"], indirect=True)
def test_a_backup_of_another_database_is_refused(servers: tuple[Server, Server], tmp_path: Path) -> None:
    server, _ = servers
    server.manage("migrate", "--verbosity", "0")
    without = server._replace(variables={**server.variables, "PATH": "/nowhere"})
    assert "install the client programs of PostgreSQL" in without.manage("backup", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    server.manage("backup", str(tmp_path / "backup"))
    other = Server(tmp_path / "third", {})
    assert "is a backup of postgresql" in other.manage("backup", "--restore", str(tmp_path / "backup"))
