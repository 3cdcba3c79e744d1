"""What the figures of an experiment are drawn from: its runs as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .format import exact_quantity, field_title, field_value
from .theme import plain

EMULATED = "emulated"


def emulated_share(marks: Sequence[bool]) -> str:
    """Say of numbers together whether their runs only waited: emulated, partly emulated, or nothing."""
    return "" if not any(marks) else EMULATED if all(marks) else f"partly {EMULATED}"


class Spread(NamedTuple):
    """A median with its 10th and 90th percentile, where these were measured."""

    median: float
    p10: float | None = None
    p90: float | None = None


class Timer(NamedTuple):
    """Seconds of one phase per step: mean over all ranks, and the range of those that were in it."""

    median: float
    min: float
    max: float


class Roof(NamedTuple):
    """What a device could do with a run's work at best."""

    peak_flops: float
    """FLOP/s."""
    memory_bandwidth: float | None
    """Bytes/s; None where nobody knows it."""
    intensity: float
    """FLOPs for each byte of weights that is read: both grow with the tokens of a micro batch."""


class RunPoint(NamedTuple):
    """One run of an experiment as its figures see it."""

    number: int
    state: str
    values: Mapping[str, Any]
    """Values of the axes that vary, in the order of the axes."""
    gpus: int
    step_time_s: Spread | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    memory_by_rank: Mapping[int, float] = {}
    memory_min: float | None = None
    memory_max: float | None = None
    timers: Mapping[str, Timer] = {}
    global_batch_size: int | None = None
    mfu_pct: float | None = None
    hfu_pct: float | None = None
    gpu_util_pct: float | None = None
    loss: float | None = None
    """Of the last step."""
    flops_per_gpu: float | None = None
    peak: str = ""
    """What MFU divides by, in words."""
    roof: Roof | None = None
    is_published: bool = False
    """Figures from elsewhere, which hold what their authors chose to publish."""
    is_emulated: bool = False
    """Its stages waited for given times instead of computing."""

    @property
    def outcome(self) -> str:
        """Say how the run ended, and whether its times are its own: for tables of numbers, which leave this page."""
        return f"{self.state}, {EMULATED}" if self.is_emulated else self.state

    @property
    def label(self) -> str:
        """Name the point in words: `schedule gpipe, micro batch size 2`."""
        named = [f"{field_title(axis).lower()} {field_value(value)}" for axis, value in self.values.items()]
        return ", ".join([*named, *([EMULATED] if self.is_emulated else [])]) or f"run {self.number}"

    @property
    def short_label(self) -> str:
        """Name the point for a tick: its number and values only."""
        values = " ".join(field_value(value) for value in self.values.values())
        return plain(" ".join(filter(None, [f"#{self.number}", values, EMULATED if self.is_emulated else ""])))

    def hover(self, *numbers: tuple[str, float | None, str]) -> str:
        """Write the hover text: configuration, then each number with all its digits."""
        lines = [
            f"run {self.number} ({self.state})",
            self.label if self.values or self.is_emulated else "",
            f"{self.gpus} GPUs or processes",
        ]
        lines += [f"{name}: {exact_quantity(value, unit)}" for name, value, unit in numbers if value is not None]
        return "<br>".join(plain(line) for line in lines if line)


def varied(points: Sequence[RunPoint]) -> list[str]:
    """Axes on which the points differ, in the order in which the points name them."""
    axes = dict.fromkeys(axis for point in points for axis in point.values)
    return [axis for axis in axes if len({repr(point.values.get(axis)) for point in points}) > 1]


def in_order(values: Iterable[Any]) -> list[Any]:
    """Sort axis values once each: numbers by size before words in the order they came."""
    unique = list({repr(value): value for value in values}.values())
    numbers = [value for value in unique if is_number(value)]
    return sorted(numbers) + [value for value in unique if not is_number(value)]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


MAX_BARS = 60
"""Runs beside each other that still can be told apart."""


def fastest(points: Sequence[RunPoint], limit: int = MAX_BARS) -> tuple[list[RunPoint], str]:
    """Keep so many runs, the fastest ones in their order, and say so where some are left out."""
    if len(points) <= limit:
        return list(points), ""
    kept = {point.number for point in sorted(points, key=lambda point: -(point.samples_per_s or 0.0))[:limit]}
    words = f" The {limit} fastest of {len(points)} runs are drawn; the numbers hold all."
    return [point for point in points if point.number in kept], words
