"""How tests are divided among worker processes: costly fixtures are shared, and long files begin first."""

from __future__ import annotations

from zlib import crc32

import pytest
from xdist.scheduler import LoadFileScheduling

_BROWSER = ("dashboard", "first_path", "newcomer", "report", "smoothing")
_SLOW_BROWSER = ("nodes", "study")

GROUPS = {
    **{f"tests/browser/test_{name}.py": "browser" for name in (*_BROWSER, *_SLOW_BROWSER)},
    **{f"tests/slurm/test_{name}.py": "slurm" for name in ("jobs", "members", "server", "shipping")},
}
"""Files that one worker runs one after another; the other files of tests/browser are a group too."""
OTHER_BROWSER = "other browser"

FIRST = (
    "tests/browser/",
    "tests/slurm/",
    "tests/bench/",
    "tests/faults/",
    "tests/runners/test_daemon.py",
    "tests/runners/test_nodes.py",
    "tests/engines/",
    "tests/fleet/test_over_nodes.py",
    "tests/runners/test_supervise",
    "tests/client/test_trainers.py",
    "tests/formats/test_fuzz.py",
)
"""Beginnings of the paths of files that take longest, in this order."""


class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each worker a file at a time, or a group of files that share a demo or a cluster."""

    def _split_scope(self, nodeid: str) -> str:
        path = super()._split_scope(nodeid)
        return GROUPS.get(path) or (OTHER_BROWSER if path.startswith("tests/browser/") else path)


def rank(item: pytest.Item) -> int:
    """Return the place of a test's file in `FIRST`; files that it does not name come last."""
    return next((place for place, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))


def slow_part(item: pytest.Item) -> int:
    """Return the third of the slow tests to which a test belongs: 0, 1 or 2."""
    return crc32(item.nodeid.encode()) % 3
