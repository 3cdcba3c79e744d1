"""Problems of a configuration: field, value and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Problem(NamedTuple):
    """One problem of a configuration: dotted field, its value, and a message with a remedy."""

    field: str
    value: Any
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class ConfigError(ValueError):
    """Raised for a configuration that cannot run, with all its problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(str(problem) for problem in problems))


def divisors(number: int, limit: int = 12) -> str:
    """Return the divisors of a number as text for a remedy, at most `limit` of them."""
    values = [str(n) for n in range(1, min(number, 4096) + 1) if number % n == 0]
    return ", ".join(values[:limit]) + (", ..." if len(values) > limit else "")
