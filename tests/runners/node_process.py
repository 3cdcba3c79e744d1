"""The real daemon, which measures nothing; instead of an engine, run N starts the script N.py of TEST_SCRIPTS.

Where TEST_SCRIPTS is empty, runs start their engines; with TEST_ENGINES, those do that have no script.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from runners.config import RunConfig
from runners.node.daemon import main
from runners.node.launch import launch
from runners.node.launch.share import Share
from runners.telemetry.measured import MATMUL, Kind


def scripted(config: RunConfig, config_path: Path, share: Share) -> list[str]:
    """Return the argv of the script that belongs to a run."""
    run = config_path.parent.name.partition("-")[0]
    script = Path(os.environ["TEST_SCRIPTS"]) / f"{run}.py"
    if "TEST_ENGINES" in os.environ and not script.exists():
        return launch.command(config, config_path, share)
    return [sys.executable, str(script), "--config", str(config_path)]


def measured(kind: Kind, _is_free: Callable[[], bool]) -> dict[str, Any] | None:
    """Return what TEST_MATMUL says: the real measurement takes seconds."""
    text = os.environ.get("TEST_MATMUL", "null") if kind is MATMUL else "null"
    return cast("dict[str, Any] | None", json.loads(text))


if __name__ == "__main__":
    sys.exit(main(command=scripted if os.environ["TEST_SCRIPTS"] else launch.command, measure=measured))
