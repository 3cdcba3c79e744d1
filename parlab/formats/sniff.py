"""Which format a text is in, from its content."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from parlab.formats.peel import peel

UNKNOWN = "unknown"
HEAD_CHARACTERS = 512 * 1024
ENOUGH = 20
THRESHOLD = 3

Signs = Sequence[tuple[re.Pattern[str], int]]


class Signed(Protocol):
    """What recognition needs of a reader: patterns of its lines, each with its weight."""

    @property
    def SIGNS(self) -> Signs: ...


def scores(head: Iterable[str], formats: Mapping[str, Signed]) -> dict[str, int]:
    """Count for each format the weights of its signs; a sign counts at most ENOUGH times."""
    left = {name: {pattern: ENOUGH for pattern, _ in reader.SIGNS} for name, reader in formats.items()}
    found = dict.fromkeys(formats, 0)
    for _, _, _, line in peel(head):
        text = line[:2000]
        for name, reader in formats.items():
            budget = left[name]
            for pattern, weight in reader.SIGNS:
                if budget[pattern] and pattern.search(text):
                    budget[pattern] -= 1
                    found[name] += weight
    return found


def sniff(head: Sequence[str], formats: Mapping[str, Signed]) -> str:
    """Name the format with the strongest signs, `unknown` without any; the first registered wins a tie."""
    found = scores(head, formats)
    best = max(found, key=lambda name: found[name], default=UNKNOWN)
    return best if found.get(best, 0) >= THRESHOLD else UNKNOWN
