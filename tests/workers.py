"""How tests are divided among worker processes: costly fixtures are shared, and long files begin first."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

import pytest
from xdist.scheduler import LoadFileScheduling

GROUPS = ("tests/browser/", "tests/slurm/", "tests/kubernetes/")
"""Beginnings of the paths of files that one worker runs one after another: they share a demo or a cluster."""

FIRST = (
    *GROUPS,
    "tests/bench/",
    "tests/faults/test_kills.py",
    "tests/formats/test_fuzz.py",
    "tests/runners/test_daemon.py",
    "tests/runners/test_supervise",
)
"""Beginnings of the paths of files that take longest, in this order."""

WHOLE = (*GROUPS, "tests/upgrade/")
"""Files whose tests stay together where slow tests are divided: they share what is costly to start."""


class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each worker a file at a time, or a group of files that share a demo or a cluster."""

    def _split_scope(self, nodeid: str) -> str:
        path = super()._split_scope(nodeid)
        return next((group for group in GROUPS if path.startswith(group)), path)


def rank(item: pytest.Item) -> tuple[int, int]:
    """Return the place of a test's file: that in `FIRST`, then mixed, as some files compute and others wait."""
    path = item.nodeid.partition("::")[0]
    place = next((place for place, start in enumerate(FIRST) if path.startswith(start)), len(FIRST))
    return place, crc32(path.encode())


def part_of(items: Iterable[pytest.Item], part: str) -> set[pytest.Item]:
    """Return a part of the slow tests: `0/12` is the first of twelve.

    They are dealt like cards, so that each part has its share of every file; files of `WHOLE` stay whole.
    """
    number, parts = map(int, part.split("/"))
    dealt: dict[str, list[pytest.Item]] = {}
    for item in items:
        path = item.nodeid.partition("::")[0]
        dealt.setdefault(path if path.startswith(WHOLE) else item.nodeid, []).append(item)
    return {item for name in sorted(dealt)[number::parts] for item in dealt[name]}
