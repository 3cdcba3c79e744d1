"""What a run's machine was doing, second by second: small figures of its GPUs, its network and its processor."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from . import theme
from .curves import Curve, rounded
from .format import SPACE, significant, unit_for
from .theme import Drawing, Table

Key = tuple[str, int]
"""Metric, and rank: -1 is the node, else the GPU that trains as this rank (in an imported file: the GPU's number)."""
HEIGHT = 240
MAX_NAMES = 6
"""Names of lines that leave room for the lines."""


class Kind(NamedTuple):
    """One figure: which metrics it shows, in which unit."""

    title: str
    subtitle: str
    lines: Mapping[str, str]
    """Metric, or its beginning up to a slash -> what its line is called beside its GPU or interface."""
    unit: str
    factor: float | None
    """None: the prefix that fits."""
    column: str

    def metrics(self, known: Collection[str]) -> list[str]:
        """Pick the metrics that this figure shows."""
        return sorted(metric for metric in known if metric.partition("/")[0] in self.lines)


KINDS = {
    "gpu-utilisation": Kind(
        "GPU utilisation",
        "share of time in which a kernel ran",
        {"gpu_util_pct": ""},
        "%",
        1.0,
        "gpu_util_pct",
    ),
    "gpu-memory": Kind(
        "GPU memory", "in use on the device, by all processes", {"gpu_mem_bytes": ""}, "B", None, "gpu_mem_bytes"
    ),
    "power": Kind("Power", "drawn by each GPU", {"power_watts": ""}, "W", 1.0, "power_watts"),
    "temperature": Kind(
        "Temperature", "of each GPU", {"temperature_celsius": ""}, "°C", 1.0, "temperature_celsius"
    ),
    "clocks": Kind(
        "Clocks", "of each GPU", {"sm_clock_hz": "SM", "memory_clock_hz": "memory"}, "MHz", 1e6, "hz"
    ),
    "network": Kind(
        "Network",
        "all traffic of the node but within itself",
        {"nic_rx_bytes_per_s": "received", "nic_tx_bytes_per_s": "sent"},
        "B/s",
        None,
        "bytes_per_s",
    ),
    "processor": Kind("Processor", "all processes of the run; 100 % is one core", {"cpu_pct": ""}, "%", 1.0, "cpu_pct"),
}  # fmt: skip


class Extent(NamedTuple):
    """What is told of a series, whatever part of it is drawn."""

    samples: int
    mean: float
    low: float
    high: float
    middle: float


class Whole(NamedTuple):
    """The series of which parts are drawn."""

    extents: Mapping[Key, Extent]
    start: float | None
    """When the first sample was taken, Unix seconds; None where a file has no clock and `times` count samples."""


def figure(kind: str, series: Mapping[Key, Curve], names: Sequence[str], whole: Whole | None = None) -> Drawing:
    """Draw one kind against the seconds since its first sample; `names` are the GPUs by rank."""
    what = KINDS[kind]
    present = {key: curve for key, curve in sorted(series.items()) if _has_values(curve)}
    if not present:
        return theme.nothing(f"{what.title}: not measured. It comes once a second, where the node can tell it.")
    extents, start = whole or Whole({key: _extent(curve) for key, curve in present.items()}, _start(present))
    unit = unit_for((extents[key].middle for key in present), what.unit) if what.factor is None else None
    factor, unit_name = (unit.factor, unit.name) if unit else (what.factor or 1.0, what.unit)
    drawing = go.Figure(
        layout=theme.layout(
            title=what.title,
            subtitle=what.subtitle,
            x="Sample" if start is None else "Time since the first sample (s)",
            y=f"{what.title} ({unit_name})",
            height=HEIGHT,
            xaxis={"rangemode": "tozero"},
            yaxis={"rangemode": "tozero", "nticks": 5},
        )
    )
    shown = _drawn(present, extents)
    labels = {key: _label(what, key, names) for key in present}
    groups = list(dict.fromkeys(_group(key) for key in shown))
    dashes = {metric: theme.DASHES[index] for index, metric in enumerate(what.lines)}
    first = {_group(key): key for key in reversed(shown)}
    is_grouped = len(what.lines) > 1 and len(shown) > MAX_NAMES
    if is_grouped:
        drawing.update_layout(title_subtitle_text=f"{what.subtitle}; {_dash_words(what)}")
    for key, curve in shown.items():
        drawing.add_trace(
            go.Scatter(
                x=_x(curve, start),
                y=rounded(curve.values, factor),
                name=_whose(key, names) if is_grouped else labels[key],
                showlegend=not is_grouped or first[_group(key)] == key,
                legendgroup=_group(key) if is_grouped else None,
                mode="lines" if len(curve.times) > 1 else "markers",
                line={
                    "color": theme.RANK_COLOURS[groups.index(_group(key)) % len(theme.RANK_COLOURS)],
                    "width": 1.5,
                    "dash": dashes[key[0].partition("/")[0]],
                },
                hovertemplate=f"{theme.plain(labels[key])}<br>%{{x}}<br>%{{y:.4g}} {unit_name}<extra></extra>",
            )
        )
    # Which of several GPUs a line is must be said even where the others lack this counter.
    drawing.update_layout(showlegend=len(shown) > 1 or any(rank >= 0 for _, rank in shown))
    return Drawing(
        drawing, _caption(what, extents, len(shown) < len(present), factor, unit_name), _table(what, present, labels)
    )


def _has_values(curve: Curve) -> bool:
    return any(math.isfinite(value) for value in curve.values)


def _extent(curve: Curve) -> Extent:
    values = sorted(float(value) for value in curve.values if math.isfinite(value))
    return Extent(len(values), sum(values) / len(values), values[0], values[-1], values[len(values) // 2])


def _start(series: Mapping[Key, Curve]) -> float | None:
    """Find when the first sample was taken; None where an imported file has no clock."""
    start = min(float(curve.times[0]) for curve in series.values())
    times = [time for curve in series.values() for time in curve.times]
    return None if len(times) > len(series) and all(time == start for time in times) else start


def _x(curve: Curve, start: float | None) -> list[float]:
    """Count the seconds since the first sample, or the samples."""
    if start is not None:
        return [round(float(time) - start, 3) for time in curve.times]
    counted = any(time != curve.times[0] for time in curve.times)
    return [float(time) for time in curve.times] if counted else [float(n) for n in range(1, len(curve.times) + 1)]


def _dash_words(what: Kind) -> str:
    """Say which dash is which, where a legend of all lines would cover the plot."""
    return ", ".join(f"{line} {dash}" for line, dash in zip(what.lines.values(), theme.DASHES, strict=False))


def _group(key: Key) -> str:
    """What shares a colour: the lines of one GPU, or those of one interface."""
    return key[0].partition("/")[2] if key[1] < 0 else str(key[1])


def _label(what: Kind, key: Key, names: Sequence[str]) -> str:
    return " ".join(filter(None, [_whose(key, names), what.lines[key[0].partition("/")[0]]])) or "all processes"


def _whose(key: Key, names: Sequence[str]) -> str:
    """Name the GPU or the interface; the processor of a run has none."""
    if key[1] < 0:
        return key[0].partition("/")[2]
    return names[key[1]] if key[1] < len(names) else f"GPU {key[1]}"


def _drawn(series: Mapping[Key, Curve], extents: Mapping[Key, Extent]) -> dict[Key, Curve]:
    """Draw a few GPUs one by one; of many only the one with the highest and the one with the lowest mean."""
    groups: dict[str, list[float]] = {}
    for key in series:
        groups.setdefault(_group(key), []).append(extents[key].mean)
    if len(groups) <= theme.MAX_RANKS:
        return dict(series)
    by_mean = sorted(groups, key=lambda group: groups[group][0])
    return {key: curve for key, curve in series.items() if _group(key) in (by_mean[0], by_mean[-1])}


def _caption(what: Kind, extents: Mapping[Key, Extent], is_part: bool, factor: float, unit: str) -> str:
    parts = []
    for metric, line in what.lines.items():
        known = [extent for key, extent in extents.items() if key[0].partition("/")[0] == metric]
        if known:
            mean = sum(one.mean * one.samples for one in known) / sum(one.samples for one in known) / factor
            low, high = min(one.low for one in known) / factor, max(one.high for one in known) / factor
            middle = f"{significant(mean)}{SPACE}{unit}"
            parts.append(f"{line} {middle}, {significant(low)} to {significant(high)}".strip())
    words = f"On average {'; '.join(parts)}."
    return f"{words} Of many only the highest and the lowest are drawn." if is_part else words


def _table(what: Kind, present: Mapping[Key, Curve], labels: Mapping[Key, str]) -> Table:
    rows = [
        [labels[key], int(step), float(time), float(value)]
        for key, curve in present.items()
        for step, time, value in zip(curve.steps, curve.times, curve.values, strict=True)
    ]
    return Table(["of", "step", "unix_time_s", what.column], rows)
