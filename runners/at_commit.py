"""Moved to runners/node/launch/at_commit.py; configurations of earlier releases name this file. Goes with 0.3."""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).parent / "node" / "launch" / "at_commit.py"), run_name="__main__")
