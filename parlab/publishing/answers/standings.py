"""The finished runs of an experiment in order of their speed, like with like, and how sure their order is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from parlab.charts.format import DIGITS, SPACE, printed_digits, quantity
from parlab.findings.noise import Noise, noise
from parlab.lab.models import Run
from parlab.lab.selectors.analysis.identities import Identity
from parlab.lab.selectors.analysis.repeats import repeat_groups
from parlab.lab.selectors.runs import step_time
from runners.wire.protocol import RunState

SPEEDS = {"samples_per_s": "samples/s", "tokens_per_s": "tokens/s", "tflops_per_gpu": "TFLOP/s", "fps": "fps"}
"""What speeds are compared in, in order of preference; without any of them by the step time."""


class Standing(NamedTuple):
    """A point of an experiment with its speed."""

    runs: Sequence[Run]
    """Its repeats, mostly one."""
    identity: Identity
    value: float
    """The number that is shown: mean over the repeats."""
    speed: float
    """What is compared: higher is better; per GPU where the numbers of GPUs differ."""
    spread: float | None
    """Half the range of p10 to p90 of the step times, as a share of their median."""

    @property
    def run(self) -> Run:
        return self.runs[0]

    @property
    def values(self) -> Mapping[str, Any]:
        return self.identity.values

    @property
    def memory(self) -> float | None:
        return self.run.memory_max_bytes


class Standings(NamedTuple):
    """Points of an experiment, fastest first."""

    rows: list[Standing]
    unit: str
    is_per_gpu: bool
    repeats: Noise | None
    """Of repeats; None without any."""
    is_on_cpu: bool = False
    """Whether the devices are processes on CPUs, which are not called GPUs."""

    @property
    def devices(self) -> str:
        return "processes" if self.is_on_cpu else "GPUs"

    @property
    def device(self) -> str:
        return "process" if self.is_on_cpu else "GPU"

    def ahead(self, first: Standing, second: Standing) -> float:
        """Return how many times as fast the first is as the second."""
        return first.speed / second.speed

    def noise_of(self, first: Standing, second: Standing) -> float | None:
        """Return the relative difference that noise explains; None if it is unknown."""
        if self.repeats:
            return self.repeats.limit(len(first.runs), len(second.runs))
        return None if first.spread is None or second.spread is None else max(first.spread, second.spread)

    def is_unsure(self, first: Standing, second: Standing) -> bool:
        """Whether the difference of two points is within their noise."""
        limit = self.noise_of(first, second)
        return limit is not None and abs(self.ahead(first, second) - 1) < limit

    def shown(self, row: Standing) -> str:
        """Return the number of a point: `138 samples/s`, `675 tokens/s per GPU`."""
        digits = printed_digits(row.value, self.unit) if row.run.has_printed_numbers else DIGITS
        if self.is_per_gpu and row.run.gpus and self.unit not in ("s", "TFLOP/s"):
            return f"{quantity(row.value / row.run.gpus, self.unit, DIGITS)} per {self.device}"
        each = " per GPU" if self.unit == "TFLOP/s" else ""
        return f"{quantity(row.value, self.unit, digits)}{each}"


def standings(runs: Sequence[Run], known: Mapping[int, Identity]) -> Standings:
    """Rank the finished runs; those without the speed of the others are left out."""
    finished = [run for run in runs if run.state == RunState.FINISHED]
    groups = repeat_groups(finished)
    name = _compared(finished)
    is_per_gpu = len({run.gpus for run in finished}) > 1 and all(run.gpus for run in finished)
    rows = [row for group in groups if (row := _row(group, known, name, is_per_gpu)) is not None]
    rows.sort(key=lambda row: (-row.speed, row.run.number))
    several = [[value for run in group if (value := _value(run, name)) is not None] for group in groups]
    return Standings(rows, _unit(name, finished), is_per_gpu, noise(several), _is_on_cpu(finished))


def _unit(name: str, runs: Sequence[Run]) -> str:
    """Return the unit of a speed; one that only the files define has the name that they all give it."""
    stated = {figure for run in runs for figure in run.summary.get("figures") or {} if figure.endswith("fps")}
    return stated.pop() if name == "fps" and len(stated) == 1 else SPEEDS.get(name, "s")


def _compared(finished: Sequence[Run]) -> str:
    """Return the speed that most runs state, else one that any states, else the step time."""
    counts = {name: sum(_value(run, name) is not None for run in finished) for name in SPEEDS}
    most = [name for name, count in counts.items() if 2 * count > len(finished)]
    return next(iter([*most, *(name for name, count in counts.items() if count)]), "step_time_s")


def _row(group: Sequence[Run], known: Mapping[int, Identity], name: str, is_per_gpu: bool) -> Standing | None:
    measured = [value for run in group if (value := _value(run, name))]
    if not measured:
        return None
    value = fmean(measured)
    gpus = float(group[0].gpus or 1) if is_per_gpu and name != "tflops_per_gpu" else 1.0
    speed = 1 / (value * gpus) if name == "step_time_s" else value / gpus
    return Standing(group, known[group[0].pk], value, speed, _spread(group[0]))


def _value(run: Run, name: str) -> float | None:
    if name == "step_time_s":
        spread = step_time(run.summary)
        return spread.median if spread else None
    value = getattr(run, name) if name in ("samples_per_s", "tokens_per_s") else run.summary.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _spread(run: Run) -> float | None:
    spread = step_time(run.summary)
    if spread is None or spread.p10 is None or spread.p90 is None or not spread.median:
        return None
    return (spread.p90 - spread.p10) / 2 / spread.median


def _is_on_cpu(runs: Sequence[Run]) -> bool:
    """Whether the runs are processes on CPUs, which are not called GPUs."""
    return bool(runs) and all(run.is_on_cpu for run in runs)


def noise_text(limit: float) -> str:
    """Return noise as the text of a tag: `within noise ±22 %`."""
    return f"within noise ±{100 * limit:.0f}{SPACE}%"
