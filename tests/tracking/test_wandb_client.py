"""The unmodified client of W&B against a running server: the scripts of `make bench-wandb` that say most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pytest_django.live_server_helper import LiveServer

from tests.bench.campaigns.wandbs import Served, problem_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.mark.parametrize(
    "name",
    [
        "live", "resume_allow", "artifact", "offline_sync", "shared", "failing", "torchtitan_logger", "verl_tracking"
    ],
)  # fmt: skip
def test_a_script_ends_as_it_should_and_is_stored_once(
    live_server: LiveServer, token: str, tmp_path: Path, settings: Any, name: str
) -> None:
    settings.ARTIFACTS_DIR = tmp_path / "artifacts"
    assert problem_of(name, Served(live_server.url, token), lambda: None, tmp_path) == ""
