"""A server that scripts reach, and scripts that report to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer

from parlab.lab.services.access.tokens import token_create

ROOT = Path(__file__).resolve().parents[2]
Script = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def client_home(tmp_path: Path) -> Path:
    """Directory of the client's spools and login."""
    return tmp_path / "client"


@pytest.fixture
def offline(client_home: Path) -> dict[str, str]:
    """Environment of scripts that reach no server: nothing listens at port 9."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PARLAB_", "SLURM_"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        variables.pop(name, None)
    return {
        **variables,
        "PARLAB_HOME": str(client_home),
        "PARLAB_URL": "http://127.0.0.1:9",
        "PYTHONPATH": str(ROOT),
        "NO_PROXY": "*",
    }


@pytest.fixture
def token(admin: User) -> str:
    """Secret of a token of a user with all permissions."""
    return token_create(user=admin, name="training script", by=admin)[1]


@pytest.fixture
def environ(offline: dict[str, str], live_server: LiveServer, token: str) -> dict[str, str]:
    """Environment of scripts that report to a running server."""
    return {**offline, "PARLAB_URL": live_server.url, "PARLAB_TOKEN": token}


@pytest.fixture
def start() -> Iterator[Script]:
    """Start a Python script: start(source, environ, *arguments, python=...); it ends with the test."""
    processes: list[subprocess.Popen[str]] = []

    def started(
        source: str, environ: dict[str, str], *arguments: str, python: str = sys.executable
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [python, "-c", source, *arguments],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> str:
    """Wait until a script has ended without error; return what it wrote to stderr."""
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return errors
