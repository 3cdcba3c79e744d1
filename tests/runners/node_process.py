"""The real daemon with one thing replaced: instead of an engine, run N starts the script N.py of a directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from runners.config import RunConfig
from runners.daemon import main


def scripted(config: RunConfig, config_path: Path) -> list[str]:
    """Return the argv of the script that belongs to a run."""
    run = config_path.parent.name.partition("-")[0]
    return [sys.executable, str(Path(os.environ["TEST_SCRIPTS"]) / f"{run}.py"), "--config", str(config_path)]


if __name__ == "__main__":
    sys.exit(main(command=scripted))
