"""Strict names of fields: an unknown one is refused with the nearest name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 60


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the name most similar to `name`, ignoring case; None if none is similar."""
    by_lower = {candidate.lower(): candidate for candidate in names}
    matches = get_close_matches(name.lower()[:_LONGEST], by_lower, n=1, cutoff=0.55)
    return by_lower[matches[0]] if matches else None


def unknown_field(name: str, names: Iterable[str]) -> str:
    """Return the error message for an unknown field: its name, the nearest one, and all names."""
    names = list(names)
    nearest = nearest_name(name.rpartition(".")[2], names)
    hint = f"did you mean {nearest}? " if nearest else ""
    return f"unknown field {name[:_LONGEST]}; {hint}use one of {', '.join(names)}"


def refuse_unknown(section: str, data: Iterable[str], names: Iterable[str]) -> None:
    """Raise ValueError if `data` has a field outside of `names`."""
    names = list(names)
    unknown = [unknown_field(f"{section}.{name}", names) for name in map(str, data) if name not in names]
    if unknown:
        raise ValueError("; ".join(unknown))
