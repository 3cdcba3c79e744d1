"""Detection of the format of a text from its content."""

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
    """The part of a reader that detection uses: patterns of its lines with weights."""

    @property
    def SIGNS(self) -> Signs: ...


def scores(head: Iterable[str], formats: Mapping[str, Signed]) -> dict[str, int]:
    """Return the sum of the weights of each format's signs; a sign counts at most ENOUGH times."""
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
    """Return the format with the largest sum, `unknown` without signs; ties go to the first registered format."""
    found = scores(head, formats)
    best = max(found, key=lambda name: found[name], default=UNKNOWN)
    return best if found.get(best, 0) >= THRESHOLD else UNKNOWN
