"""A server that clients outside reach, and a user with a token."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer

from parlab.lab.services.access.tokens import token_create

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")


@pytest.fixture
def token(admin: User) -> str:
    """Secret of a token with all rights."""
    return token_create(user=admin, name="training script", by=admin)[1]


@pytest.fixture
def tracking_uri(
    live_server: LiveServer,
    token: str,
    settings: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """Address of a running server, with the token in the environment where clients look for it."""
    settings.ARTIFACTS_DIR = tmp_path / "artifacts"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", live_server.url)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", token)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    return live_server.url
