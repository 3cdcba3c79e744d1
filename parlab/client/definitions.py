"""What a script says about its metrics beside their values: own x axes, best values, values of the whole run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from parlab.client import lines, mending

BEST: dict[str, Callable[[float, float], float]] = {"min": min, "max": max}
MAX_DEPTH = 8


class Definition(NamedTuple):
    """What `define_metric` has said about the names that fit a pattern."""

    pattern: str
    step_metric: str
    best: str

    def fits(self, name: str) -> bool:
        return name == self.pattern or ("*" in self.pattern and fnmatchcase(name, self.pattern))


class Definitions:
    """All that a script has said, and the best values so far."""

    def __init__(self) -> None:
        self._definitions: list[Definition] = []
        self._best: dict[str, float] = {}
        self._axes: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._definitions)

    def add(self, definition: Definition) -> None:
        """Add a definition; it replaces an earlier one of the same pattern."""
        self._definitions = [each for each in self._definitions if each.pattern != definition.pattern]
        self._definitions.append(definition)

    def broken_axes(self, values: Mapping[str, Any]) -> list[str]:
        """Return the axes among values that are no whole numbers."""
        axes = {each.step_metric for each in self._definitions if each.step_metric}
        return [name for name in values if name in axes and whole_number(values[name]) is None]

    def parts(self, step: int, values: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Divide the values of a step into those of each step of their axes, with the best values so far.

        Where the axis has no whole number, its metrics are recorded at `step`.
        """
        for name, value in values.items():
            if (number := whole_number(value)) is not None:
                self._axes[name] = number
            else:
                self._axes.pop(name, None)
        by_step: dict[int, dict[str, Any]] = {}
        for name, value in values.items():
            definition = next((each for each in reversed(self._definitions) if each.fits(name)), None)
            axis = "" if definition is None or name == definition.step_metric else definition.step_metric
            part = by_step.setdefault(self._axes.get(axis, step), {})
            part[name] = value
            if definition is not None and definition.best:
                part |= self._best_of(name, value, definition.best)
        yield from by_step.items()

    def _best_of(self, name: str, value: Any, best: str) -> dict[str, float]:
        number = lines.number_of(value)
        if number is None or math.isnan(number):
            return {}
        key = f"{name}.{best}"
        self._best[key] = BEST[best](self._best.get(key, number), number)
        return {key: self._best[key]}


def whole_number(value: Any) -> int | None:
    """Return a value as a step; None for what is no whole number in range."""
    number = lines.number_of(value)
    if number is None or not math.isfinite(number) or abs(number) > lines.MAX_STEP or number != int(number):
        return None
    return int(number)


def flattened(values: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Yield values of nested mappings under dotted names: {"train": {"loss": 1}} -> ("train.loss", 1)."""
    for name, value in values.items():
        if isinstance(value, Mapping) and depth < MAX_DEPTH:
            yield from flattened(value, f"{prefix}{mending.text(name)}.", depth + 1)
        else:
            yield (f"{prefix}{mending.text(name)}" if prefix else name), value


class Summary:
    """Values of a whole run, as a mapping; each assignment is reported."""

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self._report = report
        self._values: dict[str, Any] = {}

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({mending.text(name): value})

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __repr__(self) -> str:
        return f"Summary({self._values!r})"

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or the default."""
        return self._values.get(name, default)

    def update(self, values: Any) -> None:
        """Set the values of a mapping: numbers, or anything that can be written as text."""
        if not isinstance(values, Mapping):
            values = {"summary": values}
        flat = {mending.text(name): value for name, value in flattened(values)}
        self._values.update(flat)
        self._report(flat)
