"""The ranks that curves show: chosen in the address as `all` or as numbers and ranges, `0, 8..15`."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

ALL = "all"
MAX_TOGETHER = 64
"""More ranks in one figure cannot be told apart, not even by hovering."""
_PART = re.compile(r"(\d{1,7})(?:(?:\.\.|-)(\d{1,7}))?")


class ChosenRanks(NamedTuple):
    """A choice of ranks, as a person typed it."""

    text: str = ""
    ranks: frozenset[int] = frozenset()
    problem: str = ""

    @property
    def is_all(self) -> bool:
        return self.text == ALL

    @property
    def is_automatic(self) -> bool:
        """Whether the figure chooses."""
        return not self.is_all and not self.ranks

    def of(self, present: Collection[int]) -> list[int] | None:
        """Return the chosen ones of the ranks of a run, in order; None if the figure chooses."""
        if self.is_automatic:
            return None
        return sorted(present)[:MAX_TOGETHER] if self.is_all else sorted(self.ranks & set(present))

    def note(self, present: Collection[int]) -> str:
        """Return a sentence about ranks that are left out, or about a text without meaning; else an empty string."""
        if self.problem:
            return f" {self.problem}"
        if self.is_all and len(present) > MAX_TOGETHER:
            return f" The first {MAX_TOGETHER} of {len(present)} ranks are drawn; choose others by number."
        if absent := sorted(self.ranks - set(present)):
            last = max(present, default=-1)
            return f" No curve of rank {', '.join(map(str, absent[:5]))}; the ranks are 0 to {last}."
        return ""


AUTOMATIC = ChosenRanks()


def ranks_in(text: str) -> ChosenRanks:
    """Read `all`, or ranks and ranges separated by commas: `0, 8..15`; an empty text is the automatic choice."""
    text = " ".join(text[:200].split())
    if text in ("", ALL):
        return ChosenRanks(text)
    ranks: set[int] = set()
    for part in filter(None, re.split(r"[,\s]+", text)):
        match = _PART.fullmatch(part)
        if match is None:
            return ChosenRanks(text, problem=f"{part} is not a rank; enter all, or ranks such as 0, 8..15.")
        first, last = int(match[1]), int(match[2] or match[1])
        # A longer range would be cut anyway.
        ranks.update(range(first, min(last, first + MAX_TOGETHER - 1) + 1))
    if len(ranks) > MAX_TOGETHER:
        return ChosenRanks(text, problem=f"{len(ranks)} ranks do not fit into a figure; enter {MAX_TOGETHER} at most.")
    return ChosenRanks(text, frozenset(ranks))
