"""Measures that figures can draw, and the options that choose measure, axes and scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from .format import DIGITS, SPACE, quantity, significant
from .points import RunPoint

Scale = Literal["auto", "linear", "log"]
SCALES: tuple[Scale, ...] = ("auto", "linear", "log")


class Measure(NamedTuple):
    """A number of a run that a figure can draw."""

    title: str
    unit: str
    value: Callable[[RunPoint], float | None]
    kind: Literal["rate", "time", "other"]
    """How it depends on step time: a rate falls as steps take longer, a time grows."""
    is_cost: bool = False
    """Less is better, though it does not follow step time."""
    is_stated: bool = True
    """Whether files state it; else parlab computes it, and shows it with the digits of computed numbers."""

    @property
    def least_is_best(self) -> bool:
        return self.kind == "time" or self.is_cost

    @property
    def heading(self) -> str:
        """The title with the unit, as menus list it."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def is_as_it_is(self) -> bool:
        """Whether values keep this unit; others get the prefix that suits their size."""
        return self.unit in ("ms", "%", "", "fps")

    def text(self, value: float | None, digits: int = DIGITS) -> str:
        """Write a value with its unit."""
        if self.is_as_it_is:
            return f"{significant(value, digits)}{SPACE}{self.unit}".strip()
        return quantity(value, self.unit, digits)

    def text_of(self, point: RunPoint) -> str:
        """Write the value of a run with its unit, and with the digits that its file prints."""
        value = self.value(point)
        return self.text(value, self.digits(point, value))

    def digits(self, point: RunPoint, value: float | None) -> int:
        """Return the significant digits of a value of a run: as many as its file prints, if files state the measure."""
        return point.digits(value, self.unit) if self.is_stated else DIGITS


def _step_time(point: RunPoint) -> float | None:
    return point.step_time_s.median if point.step_time_s else None


def _ms_per_sample(point: RunPoint) -> float | None:
    if point.samples_per_s:
        return 1000 / point.samples_per_s
    if point.step_time_s and point.global_batch_size:
        return 1000 * point.step_time_s.median / point.global_batch_size
    return None


MEASURES: Mapping[str, Measure] = {
    "samples_per_s": Measure("Throughput", "samples/s", lambda point: point.samples_per_s, "rate"),
    "tokens_per_s": Measure("Token throughput", "tokens/s", lambda point: point.tokens_per_s, "rate"),
    "step_time": Measure("Step time", "s", _step_time, "time"),
    "ms_per_sample": Measure("Time per sample", "ms", _ms_per_sample, "time", is_stated=False),
    "memory": Measure("Peak memory", "B", lambda point: point.memory_max, "other", is_cost=True),
    "compute": Measure("Compute per device", "FLOP/s", lambda point: point.flops_per_gpu, "other"),
    "mfu": Measure("MFU", "%", lambda point: point.mfu_pct, "other"),
    "fps": Measure("Throughput as stated", "fps", lambda point: point.fps, "rate"),
    "utilisation": Measure("GPU utilisation", "%", lambda point: point.gpu_util_pct, "other"),
    "loss": Measure("Loss of the last step", "", lambda point: point.loss, "other", is_cost=True),
}
"""By the names in addresses; the first is the default of all figures."""
DEFAULT = "samples_per_s"


class Options(NamedTuple):
    """What a person chose; empty fields are chosen by the figure."""

    y: str = DEFAULT
    x: str = ""
    """An axis of the points, `GPUs` or `Run`."""
    by: Sequence[str] = ()
    """Axes that tell the lines apart."""
    x_scale: Scale = "auto"
    y_scale: Scale = "auto"
    as_share: bool = False
    """Whether phases are drawn in per cent of the step."""

    @property
    def measure(self) -> Measure:
        """The measure of the y axis; throughput if the name is unknown."""
        return MEASURES.get(self.y, MEASURES[DEFAULT])


AUTO = Options()


class Available(NamedTuple):
    """What an experiment has to draw, as far as it is known without reading series or predicting runs."""

    points: Sequence[RunPoint]
    options: Options = AUTO
    has_bandwidth: bool = False
    """Whether a run measures collective operations, or an imported file contains their bandwidths."""


def suited(points: Sequence[RunPoint], options: Options) -> Options:
    """Choose a measure that the runs have, where none was selected and no run has the default."""
    if options.y != DEFAULT or not points:
        return options
    names = list(measured(points))
    return options if not names or DEFAULT in names else options._replace(y=names[0])


def measured(points: Sequence[RunPoint]) -> dict[str, Measure]:
    """Return the measures of which at least one finished run has a value."""
    ended = [point for point in points if point.state != "oom"]
    return {
        name: measure for name, measure in MEASURES.items() if any(measure.value(point) is not None for point in ended)
    }
