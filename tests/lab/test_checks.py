"""Invalid settings are reported with a remedy, valid ones pass `check --deploy`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from parlab import checks
from tests.patience import PATIENCE_S


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:6379/0",
        "redis://:secret@redis.example:6379",
        "rediss://user:secret@redis.example/3",
        "redis://[::1]:6379/0",
        "unix:///run/redis.sock",
    ],
)
def test_a_valid_redis_url_passes(url: str, settings: Any) -> None:
    settings.REDIS_URL = url
    assert checks.redis_url_is_valid() == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "has the unknown scheme ''"),
        ("localhost:6379", "has the unknown scheme 'localhost'"),
        ("http://localhost", "has the unknown scheme 'http'"),
        ("redis:///0", "has no host"),
        ("redis://localhost:port/0", "is not a valid URL"),
        ("redis://localhost:99999/0", "is not a valid URL"),
        ("redis://localhost/zero", "database 'zero', which is not a number"),
    ],
)
def test_a_malformed_redis_url_is_an_error_with_a_hint(url: str, message: str, settings: Any) -> None:
    settings.REDIS_URL = url
    (error,) = checks.redis_url_is_valid()
    assert message in str(error.msg)
    assert "redis://" in str(error.hint)


def test_a_short_node_key_is_an_error(settings: Any) -> None:
    settings.NODE_KEY = b"short"
    (error,) = checks.node_key_is_long_enough()
    assert "5 bytes" in error.msg
    assert "PARLAB_NODE_KEY" in str(error.hint)


def test_a_data_directory_that_cannot_be_written_is_an_error(settings: Any, tmp_path: Path) -> None:
    settings.DATA_DIR = tmp_path / "gone"
    (error,) = checks.data_directory_is_writable()
    assert str(tmp_path) in error.msg
    settings.DATA_DIR = tmp_path
    assert checks.data_directory_is_writable() == []


def test_an_upload_limit_of_zero_is_an_error(settings: Any) -> None:
    settings.UPLOAD_LIMIT_MIB = 0
    (error,) = checks.upload_limit_is_positive()
    assert "PARLAB_UPLOAD_LIMIT_MIB is 0" in error.msg
    settings.UPLOAD_LIMIT_MIB = 1
    assert checks.upload_limit_is_positive() == []


@pytest.mark.parametrize(
    ("url", "warns"),
    [("redis://redis.example/0", True), ("redis://:pw@redis.example/0", False), ("redis://127.0.0.1/0", False)],
)
def test_a_remote_redis_without_a_password_is_a_warning(url: str, warns: bool, settings: Any) -> None:
    settings.REDIS_URL = url
    assert bool(checks.remote_redis_has_a_password()) is warns


def _check(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    passed_on = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=django_settings.BASE_DIR,
        env={**passed_on, "PARLAB_DATA_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "parlab.settings", **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.slow
def test_production_settings_pass_the_deployment_check(tmp_path: Path) -> None:
    result = _check(
        tmp_path,
        PARLAB_HTTPS="1",
        ALLOWED_HOSTS="lab.example.org",
        CSRF_TRUSTED_ORIGINS="https://lab.example.org",
        DATABASE_URL="postgres://parlab:secret@db.example.org/parlab",
        REDIS_URL="redis://:secret@redis.example.org:6379/0",
    )
    assert result.returncode == 0, result.stderr
    assert "no issues" in result.stdout
    secrets = [tmp_path / name for name in ("secret_key", "node_key")]
    assert [oct(path.stat().st_mode & 0o777) for path in secrets] == ["0o600", "0o600"]


@pytest.mark.slow
def test_an_invalid_production_setting_fails_the_deployment_check(tmp_path: Path) -> None:
    result = _check(tmp_path, PARLAB_HTTPS="1", ALLOWED_HOSTS="lab.example.org", REDIS_URL="redis.example.org:6379")
    assert result.returncode != 0
    assert "parlab.E001" in result.stderr
