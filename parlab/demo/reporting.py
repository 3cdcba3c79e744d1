"""Fill a fresh demo with a run by each of the four ways of docs/use/logging.md, from real client processes.

`python -m parlab.demo.reporting` runs beside the demo after it is ready, so that its start does not wait for it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

EXPERIMENT, SLUG = "Four ways in", "four-ways-in"
STORE = Path(__file__).parent / "stores" / "mlruns"
"""An MLflow file store, as the client of mlflow 3.17 wrote it for `scripts.training`."""
ROOT = Path(__file__).resolve().parent.parent.parent


def commands() -> list[list[str]]:
    """Return the commands, one per way."""
    python = [sys.executable, "-m"]
    wrapped = [*python, "parlab.demo.scripts.printing"]
    return [
        [*python, "parlab.demo.scripts.with_client"],
        [*python, "parlab.demo.scripts.with_mlflow"],
        [
            *python,
            "parlab.client.command.commands",
            "run",
            "--experiment",
            EXPERIMENT,
            "--name",
            "parlab run",
            "--",
            *wrapped,
        ],
        [sys.executable, str(ROOT / "manage.py"), "ingest", str(STORE), "--experiment", SLUG],
    ]


def main() -> int:
    """Run the commands one after the other; SIGTERM ends the one that runs too. Returns how many failed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failed = 0
    for command in commands():
        with subprocess.Popen(command, cwd=ROOT) as process:
            try:
                failed += process.wait() != 0
            except SystemExit:
                process.terminate()
                raise
    return failed


if __name__ == "__main__":
    sys.exit(main())
