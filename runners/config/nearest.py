"""The nearest valid name for a misspelled one, for the remedy of a message."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "did you mean NAME? " for the nearest name, or an empty string; dotted names match by their last part."""
    by_last: dict[str, str] = {}
    for candidate in names:
        by_last.setdefault(candidate.rpartition(".")[2], candidate)
    section = name.rpartition(".")[0]
    matches = get_close_matches(name.rpartition(".")[2], by_last, n=3, cutoff=0.6)
    in_section = [by_last[match] for match in matches if section and by_last[match].startswith(f"{section}.")]
    nearest = in_section or [by_last[match] for match in matches]
    return f"did you mean {nearest[0]}? " if nearest else ""
