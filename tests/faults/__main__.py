"""Inject faults into the real server, three nodes and a Slurm cluster; print a table and write build/faults.json."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import django

from tests.faults import rows, stages

if TYPE_CHECKING:
    from tests.faults.stack import Stack

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "faults.json"
ROWS = OUTPUT.with_suffix(".jsonl")
LOGS = OUTPUT.with_name("faults-logs")


def main() -> int:
    """Run one campaign; return 1 if anything was lost, doubled, left or false."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="number of faults")
    parser.add_argument("--first", type=int, default=1, help="number of the first fault; another campaign of a seed")
    parser.add_argument("--resume", action="store_true", help="go on after the last fault of this seed in --rows")
    parser.add_argument(
        "--stage", type=int, default=100, help="faults after which everything is judged and starts anew"
    )
    parser.add_argument("--seed", type=int, default=1, help="the same seed chooses the same kinds and pauses")
    parser.add_argument(
        "--kinds", default="", help="kinds of faults, separated by commas, or all; default: kill -9 on nodes"
    )
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite", help="default: sqlite")
    parser.add_argument("--at-once", type=int, default=2, help="most faults at one moment")
    parser.add_argument("--no-slurm", action="store_true", help="without a Slurm cluster")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FILE", help="output file (JSON)")
    parser.add_argument(
        "--rows", type=Path, default=ROWS, metavar="FILE", help="file to which each fault is added (JSON lines)"
    )
    parser.add_argument("--table", action="store_true", help="print the table of all faults in that file and end")
    arguments = parser.parse_args()
    if arguments.table:
        kept = rows.read(arguments.rows)
        sys.stdout.write(f"{rows.total(kept)}\n\n{rows.table(kept)}\n")
        return 0
    # Also then everything that was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.resume or arguments.kills > arguments.stage:
        return stages.run(arguments)
    with tempfile.TemporaryDirectory(prefix="parlab-faults-", dir="/var/tmp") as directory:
        return _run(arguments, Path(directory))


def _run(arguments: argparse.Namespace, directory: Path) -> int:
    # Set before Django reads its settings, so that a campaign never touches a user's data.
    os.environ |= {"PARLAB_DATA_DIR": str(directory), "LOG_LEVEL": "INFO", "DJANGO_SETTINGS_MODULE": "parlab.settings"}

    from tests.faults.stack import KEY, Stack
    from tests.slurm.install import why_not

    reason = "--no-slurm" if arguments.no_slurm else why_not()
    if reason:
        sys.stdout.write(f"without Slurm: {reason}\n")
    has_postgres = arguments.database == "postgres"
    with contextlib.closing(Stack(directory, has_slurm=not reason, has_postgres=has_postgres)) as stack:
        os.environ |= {name: stack.environment[name] for name in ("REDIS_URL", "DATABASE_URL")}
        os.environ |= {"PARLAB_NODE_KEY": KEY, "LOG_LEVEL": "WARNING"}
        django.setup()
        try:
            return _campaign(stack, arguments)
        except Exception:
            # Printed here, because what then fails while the stack is closed would hide it.
            traceback.print_exc()
            stack.keep_logs(LOGS / f"{arguments.seed}-{arguments.first}")
            raise


def _campaign(stack: Stack, arguments: argparse.Namespace) -> int:
    from django.core.management import call_command

    from tests.faults.campaign import Campaign
    from tests.faults.injected import KINDS, impossible
    from tests.faults.kinds import DEFAULT_KINDS
    from tests.faults.workload import Workload

    kinds = tuple(name for name in arguments.kinds.split(",") if name) or DEFAULT_KINDS
    if kinds == ("all",):
        kinds = tuple(KINDS)
    if unknown := set(kinds) - set(KINDS):
        sys.stderr.write(f"unknown kind {', '.join(sorted(unknown))}; use all, {', '.join(KINDS)}\n")
        return 2
    without = impossible(kinds, stack)
    for kind, reason in without.items():
        sys.stdout.write(f"without {kind}: {reason}\n")
    call_command("migrate", verbosity=0)
    stack.start()
    kinds = tuple(kind for kind in kinds if kind not in without)
    chance = random.Random(f"{arguments.seed} {arguments.first}")

    commit = stages.commit()

    def keep(row: rows.Row) -> None:
        row.seed, row.database, row.commit = arguments.seed, arguments.database, commit
        rows.append(arguments.rows, row)

    campaign = Campaign(stack, Workload(stack), chance, kinds, arguments.at_once, arguments.first, keep)
    # Ctrl-C: the fault in progress is judged, and the table has those so far.
    signal.signal(signal.SIGINT, campaign.stop)
    campaign.run(arguments.kills)
    summary = campaign.summary()
    if summary["wrong"]:
        sys.stdout.write(stack.log())
        stack.keep_logs(LOGS / f"{arguments.seed}-{arguments.first}")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({"seed": arguments.seed, **summary}, indent=1) + "\n")
    events = f"{summary['events_stored']} of {summary['events_printed']} events stored, each once"
    sys.stdout.write(
        f"\nseed {arguments.seed}, {summary['attempts']} attempts, {events}\n\n{rows.table(campaign.rows)}\n"
    )
    return 1 if summary["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
