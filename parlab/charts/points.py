"""The runs of an experiment as plain data for its figures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .fields import value_label
from .format import DIGITS, exact_quantity, field_value, printed_digits
from .theme import Table, plain

EMULATED = "emulated"
LEARNT = "learnt"
"""Marks of a run: its stages waited instead of computing; its numbers were read with a learnt format."""


def shared_marks(marks: Sequence[Collection[str]]) -> str:
    """Return the marks of a group of runs as text: `emulated`, `partly learnt`, or empty."""
    shares = []
    for mark in (EMULATED, LEARNT):
        count = sum(mark in own for own in marks)
        if count:
            shares.append(mark if count == len(marks) else f"partly {mark}")
    return ", ".join(shares)


class Spread(NamedTuple):
    """A median with its 10th and 90th percentiles, if these were measured."""

    median: float
    p10: float | None = None
    p90: float | None = None

    def of(self, value: float, *, is_time: bool) -> Spread:
        """Return a number with the range that follows from these step times: as long, or as fast.

        Without percentiles the number alone.
        """
        if not self.median or not self.p10 or not self.p90:
            return Spread(value)
        if is_time:
            return Spread(value, value * self.p10 / self.median, value * self.p90 / self.median)
        return Spread(value, value * self.median / self.p90, value * self.median / self.p10)


class Timer(NamedTuple):
    """Seconds of a phase per step: mean over all ranks, and the range over the ranks that have it."""

    median: float
    min: float
    max: float


class Roof(NamedTuple):
    """The limits of a device for the work of a run."""

    peak_flops: float
    """FLOP/s."""
    memory_bandwidth: float | None
    """Bytes/s; None if unknown."""
    intensity: float
    """FLOPs per byte of weights read; it grows with the tokens of a micro batch."""


class MemoryBound(NamedTuple):
    """The memory that a rank can use."""

    bytes: float
    name: str
    """What sets it: a device, or a limit of the configuration."""


# Column of numbers that files may state -> the figure of a summary whose kind it has.
_FIGURES = {
    **{name: name for name in (
        "step_time_s", "samples_per_s", "tokens_per_s", "ms_per_sample", "mfu_pct", "hfu_pct", "gpu_util_pct",
        "memory_peak_bytes", "median_s", "loss", "fps",
    )},
    "step_time": "step_time_s", "memory": "memory_peak_bytes", "mfu": "mfu_pct", "utilisation": "gpu_util_pct",
    "compute": "tflops_per_gpu", "flops_per_gpu": "tflops_per_gpu", "flops_per_device": "tflops_per_gpu",
}  # fmt: skip
# Computed by parlab from what a file states.
_COMPUTED = frozenset({"ms_per_sample"})


def with_kinds(header: Sequence[str], rows: Sequence[Sequence[Any]], points: Sequence[RunPoint]) -> Table:
    """Return the numbers of a figure with the kinds of those that files state; `points` are those of the rows."""
    names = [name for name in header if name in _FIGURES]
    if not any(point.is_printed or point.kinds for point in points):
        names = []
    return Table(
        [*header, *(f"kind of {name}" for name in names)],
        [
            [*row, *(point.kind_of(name) if row[header.index(name)] is not None else "" for name in names)]
            for row, point in zip(rows, points, strict=True)
        ],
    )


MAX_LISTED = 6
"""Repeats whose numbers a text lists."""
MAX_NAMED = 4
"""Axes of a run that a caption names."""


def first_ones(named: Sequence[str]) -> list[str]:
    """Return the axes that a text names: of more than MAX_NAMED the first ones and `…`."""
    return list(named) if len(named) <= MAX_NAMED else [*named[: MAX_NAMED - 1], "…"]


class RunPoint(NamedTuple):
    """A run of an experiment, for its figures."""

    number: int
    state: str
    values: Mapping[str, Any]
    """Values of the axes that vary, in the order of the axes."""
    gpus: int | None
    """Number of GPUs, or of processes; None if it is unknown."""
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
    fps: float | None = None
    """Throughput in frames per second, as stated by tools that do not define the frame."""
    layout: tuple[int, int] | None = None
    """Tensor and pipeline parallel size; None if one of them is unknown."""
    flops_per_gpu: float | None = None
    peak: str = ""
    """The peak that MFU refers to, as text."""
    roof: Roof | None = None
    memory_bound: MemoryBound | None = None
    """None if it is unknown."""
    is_published: bool = False
    """Figures from elsewhere, as far as their authors published them."""
    is_printed: bool = False
    """The figures have the digits with which a file prints them."""
    kinds: Mapping[str, str] = {}
    """How figures of a file came about that it does not print as such: average, derived, smoothed."""
    marks: tuple[str, ...] = ()
    """EMULATED, LEARNT."""
    is_on_cpu: bool = False
    """Whether `gpus` counts processes on processors, which are not called GPUs."""
    repeats: tuple[RunPoint, ...] = ()
    """The runs of which this point is the mean; empty for a single run."""

    def kind_of(self, name: str) -> str:
        """Return how a figure of a file came about; empty for what parlab has measured."""
        stated = "derived" if name in _COMPUTED else "printed"
        return self.kinds.get(_FIGURES.get(name, name)) or (stated if self.is_printed else "")

    @property
    def outcome(self) -> str:
        """Return the state of the run with its marks, for tables of numbers that are exported."""
        return ", ".join([self.state, *self.marks])

    @property
    def label(self) -> str:
        """Return the point as text: `schedule gpipe, micro batch size 2`."""
        return ", ".join([*self._named(), *self.marks]) or f"run {self.number}"

    def _named(self) -> list[str]:
        return [value_label(axis, value) for axis, value in self.values.items()]

    @property
    def full_label(self) -> str:
        """Return the point and the number of its run, for captions: `schedule gpipe (run 3)`.

        Of many axes it names the first ones: the number tells the run apart.
        """
        named = self._named()
        if len(named) > MAX_NAMED:
            return f"{', '.join([*first_ones(named), *self.marks])} ({self.runs})"
        number = self.runs
        return number if self.label == number else f"{self.label} ({number})"

    @property
    def runs(self) -> str:
        """Return the runs of this point as text: `run 3`, `mean of runs 3, 7, 11`."""
        if not self.repeats:
            return f"run {self.number}"
        numbers = ", ".join(str(point.number) for point in self.repeats[:MAX_LISTED])
        return f"mean of runs {numbers}{', …' if len(self.repeats) > MAX_LISTED else ''}"

    @property
    def short_label(self) -> str:
        """Return the point as the text of a tick: its number and values."""
        values = " ".join(field_value(value) for value in self.values.values())
        return plain(" ".join(filter(None, [f"#{self.number}", values, *self.marks])))

    def digits(self, value: float | None, unit: str = "") -> int:
        """Return the significant digits of a number of this run: as many as its file prints, else DIGITS."""
        return printed_digits(value, unit) if self.is_printed else DIGITS

    def hover(self, *numbers: tuple[str, float | None, str]) -> str:
        """Return the hover text: configuration, then each number with all digits."""
        lines = [
            f"{self.runs} ({self.state})",
            self.label if self.values or self.marks else "",
            counted_devices([self], self.gpus) if self.gpus else "unknown number of GPUs or processes",
        ]
        lines += [f"{name}: {exact_quantity(value, unit)}" for name, value, unit in numbers if value is not None]
        return "<br>".join(plain(line) for line in lines if line)


def devices(points: Sequence[RunPoint]) -> str:
    """Return what the runs are counted in: GPUs, or processes if all are on processors."""
    known = [point.is_on_cpu for point in points if point.gpus]
    if not known or not any(known):
        return "GPUs"
    return "processes" if all(known) else "GPUs or processes"


def device(points: Sequence[RunPoint]) -> str:
    """Return one of them: GPU, or process."""
    return {"GPUs": "GPU", "processes": "process"}.get(devices(points), "GPU or process")


def counted_devices(points: Sequence[RunPoint], count: int) -> str:
    """Return a number of devices with its word: `1 GPU`, `8 processes`."""
    return f"{count:,} {device(points) if count == 1 else devices(points)}"


def varied(points: Sequence[RunPoint]) -> list[str]:
    """Return the axes on which the points differ, in the order of the points."""
    axes = dict.fromkeys(axis for point in points for axis in point.values)
    return [axis for axis in axes if len({repr(point.values.get(axis)) for point in points}) > 1]


def in_order(values: Iterable[Any]) -> list[Any]:
    """Return the distinct axis values: numbers sorted, then texts in their order."""
    unique = list({repr(value): value for value in values}.values())
    numbers = [value for value in unique if is_number(value)]
    return sorted(numbers) + [value for value in unique if not is_number(value)]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


MAX_BARS = 60
"""More runs side by side cannot be told apart."""


def fastest(points: Sequence[RunPoint], limit: int = MAX_BARS) -> tuple[list[RunPoint], str]:
    """Return the fastest runs in their order, with a note for the caption if some are omitted."""
    if len(points) <= limit:
        return list(points), ""
    numbers = {point.number for point in sorted(points, key=lambda point: -(point.samples_per_s or 0.0))[:limit]}
    note = f" Only the {limit} fastest of {len(points)} runs are drawn; the CSV contains all."
    return [point for point in points if point.number in numbers], note
