"""Settings of the test suite itself, so that no test can touch a person's data."""

import importlib.util
import shutil
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection

from parlab import embedded


def test_tests_have_a_data_directory_of_their_own(db: None) -> None:
    assert settings.DATA_DIR.name.startswith("parlab-test-")
    assert Path(settings.BASE_DIR) / "data" != settings.DATA_DIR


def test_the_database_answers(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_without_the_wheel_of_redis_the_installed_server_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(embedded.redis_executable()).exists()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert embedded.redis_executable() == "/usr/bin/redis-server"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(OSError, match="install the package redis-server"):
        embedded.redis_executable()
