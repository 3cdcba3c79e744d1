"""Telemetry of a run's nodes, sampled once a second: GPUs, network and processor."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.format import SPACE, significant, unit_for
from parlab.charts.theme import Drawing, Table

from .curves import Curve, rounded

Key = tuple[str, int]
"""Metric and rank: -1 - node rank is a node, other ranks are GPUs (in an imported file: the number of the GPU)."""
HEIGHT = 240
MAX_NAMES = 6
"""With more lines than this, the legend groups them by GPU."""


class Kind(NamedTuple):
    """A figure: the metrics it shows, and their unit."""

    title: str
    subtitle: str
    lines: Mapping[str, str]
    """Metric, or its part before a slash -> label of its line beside the GPU or interface."""
    unit: str
    factor: float | None
    """None: the prefix that suits the values."""
    column: str

    def metrics(self, available: Collection[str]) -> list[str]:
        """Return the available metrics that this figure shows."""
        return sorted(metric for metric in available if metric.partition("/")[0] in self.lines)


KINDS = {
    "gpu-utilisation": Kind(
        "GPU utilisation",
        "share of time in which a kernel was running",
        {"gpu_util_pct": ""},
        "%",
        1.0,
        "gpu_util_pct",
    ),
    "gpu-memory": Kind(
        "GPU memory", "in use on the device, by all processes", {"gpu_mem_bytes": ""}, "B", None, "gpu_mem_bytes"
    ),
    "gpu-memory-traffic": Kind(
        "GPU memory traffic",
        "share of time in which its memory was accessed",
        {"memory_util_pct": ""},
        "%",
        1.0,
        "memory_util_pct",
    ),
    "power": Kind(
        "Power",
        "drawn by each GPU, and by the processors of each node with their memory",
        {"power_watts": "", "cpu_power_watts": "processors"},
        "W",
        1.0,
        "power_watts",
    ),
    "temperature": Kind(
        "Temperature", "of each GPU", {"temperature_celsius": ""}, "°C", 1.0, "temperature_celsius"
    ),
    "clocks": Kind(
        "Clocks", "of each GPU", {"sm_clock_hz": "SM", "memory_clock_hz": "memory"}, "MHz", 1e6, "hz"
    ),
    "network": Kind(
        "Network",
        "all traffic of the node except loopback",
        {"nic_rx_bytes_per_s": "received", "nic_tx_bytes_per_s": "sent"},
        "B/s",
        None,
        "bytes_per_s",
    ),
    "processor": Kind("Processor", "all processes of the run; 100 % is one core", {"cpu_pct": ""}, "%", 1.0, "cpu_pct"),
}  # fmt: skip


class Extent(NamedTuple):
    """Statistics of a whole series, whichever part of it is drawn."""

    samples: int
    mean: float
    low: float
    high: float
    middle: float


class Whole(NamedTuple):
    """The whole series, of which parts are drawn."""

    extents: Mapping[Key, Extent]
    start: float | None
    """Unix time of the first sample; None for a file without times, where `times` are sample numbers."""


class Names(NamedTuple):
    """Names of what is measured."""

    gpus: Sequence[str] = ()
    """By rank, with the node if there are several; further GPUs are named by their rank."""
    nodes: Sequence[str] = ()
    """By node rank; empty for a run on one node."""

    def whose(self, key: Key) -> str:
        """Name the GPU, the interface or the node; empty for the processor of the only node."""
        metric, rank = key
        if rank >= 0:
            return self.gpus[rank] if rank < len(self.gpus) else f"GPU {rank}"
        node = self.nodes[-1 - rank] if -1 - rank < len(self.nodes) else ""
        return " ".join(filter(None, [node, metric.partition("/")[2]]))


class _Lines(NamedTuple):
    """The lines of a figure, and how its legend names them."""

    curves: Mapping[Key, Curve]
    names: Names
    is_grouped: bool
    """Whether lines of one GPU or interface share an entry of the legend, because there are many."""

    def in_legend(self, key: Key) -> bool:
        return not self.is_grouped or key == next(other for other in self.curves if _group(other) == _group(key))


def figure(kind: str, series: Mapping[Key, Curve], names: Names, whole: Whole | None = None) -> Drawing:
    """Draw one kind against the seconds since its first sample."""
    what = KINDS[kind]
    present = {key: curve for key, curve in sorted(series.items()) if _has_values(curve)}
    if not present:
        return theme.missing(what.title, "not measured; nodes sample it once a second where they can")
    extents, start = whole or Whole({key: _extent(curve) for key, curve in present.items()}, _start(present))
    factor, unit = _unit(what, [extents[key] for key in present])
    drawn = _drawn(present, extents)
    lines = _Lines(drawn, names, len(what.lines) > 1 and len(drawn) > MAX_NAMES)
    drawing = go.Figure(
        layout=theme.layout(
            title=what.title,
            subtitle=f"{what.subtitle}; {_dash_legend(what)}" if lines.is_grouped else what.subtitle,
            x="Sample" if start is None else "Time since the first sample (s)",
            y=f"{what.title} ({unit})",
            height=HEIGHT,
            xaxis={"rangemode": "tozero"},
            yaxis={"rangemode": "tozero", "nticks": 5},
            meta=_panel_unit(extents, factor, unit),
        )
    )
    for key in drawn:
        drawing.add_trace(_trace(what, key, lines, start, factor, unit))
    # A single line is named too if it is that of a GPU: other GPUs can lack this counter.
    drawing.update_layout(showlegend=len(drawn) > 1 or any(rank >= 0 for _, rank in drawn))
    labels = {key: _label(what, key, names) for key in present}
    caption = _extent_caption(what, extents, len(drawn) < len(present), factor, unit)
    return Drawing(drawing, caption, _samples_table(what, present, labels))


def _panel_unit(extents: Mapping[Key, Extent], factor: float, unit: str) -> dict[str, str]:
    """Return what stands beside the title in a panel: the unit, and of a single line its mean."""
    means = [extent.mean / factor for extent in extents.values()]
    return {"unit": f"{unit}, mean {significant(means[0])}" if len(means) == 1 else unit}


def _unit(what: Kind, extents: Sequence[Extent]) -> tuple[float, str]:
    """Return the factor and the name of the unit."""
    if what.factor is not None:
        return what.factor, what.unit
    unit = unit_for((extent.middle for extent in extents), what.unit)
    return unit.factor, unit.name


def _trace(what: Kind, key: Key, lines: _Lines, start: float | None, factor: float, unit: str) -> go.Scatter:
    curve, group, label = lines.curves[key], _group(key), _label(what, key, lines.names)
    groups = list(dict.fromkeys(_group(other) for other in lines.curves))
    dashes = dict(zip(what.lines, theme.DASHES, strict=False))
    return go.Scatter(
        x=_x(curve, start),
        y=rounded(curve.values, factor),
        name=theme.plain(lines.names.whose(key) if lines.is_grouped else label),
        showlegend=lines.in_legend(key),
        legendgroup=group if lines.is_grouped else None,
        mode="lines" if len(curve.times) > 1 else "markers",
        line={
            "color": theme.RANK_COLOURS[groups.index(group) % len(theme.RANK_COLOURS)],
            "width": 1.5,
            "dash": dashes[key[0].partition("/")[0]],
        },
        hovertemplate=f"{theme.plain(label)}<br>%{{x}}<br>%{{y:.4g}} {unit}<extra></extra>",
    )


def _has_values(curve: Curve) -> bool:
    return any(math.isfinite(value) for value in curve.values)


def _extent(curve: Curve) -> Extent:
    values = sorted(float(value) for value in curve.values if math.isfinite(value))
    return Extent(len(values), sum(values) / len(values), values[0], values[-1], values[len(values) // 2])


def _start(series: Mapping[Key, Curve]) -> float | None:
    """Return the Unix time of the first sample; None for an imported file without times."""
    start = min(float(curve.times[0]) for curve in series.values())
    times = [time for curve in series.values() for time in curve.times]
    return None if len(times) > len(series) and all(time == start for time in times) else start


def _x(curve: Curve, start: float | None) -> list[float]:
    """Return the seconds since the first sample, or sample numbers without times."""
    if start is not None:
        return [round(float(time) - start, 3) for time in curve.times]
    counted = any(time != curve.times[0] for time in curve.times)
    return [float(time) for time in curve.times] if counted else [float(n) for n in range(1, len(curve.times) + 1)]


def _dash_legend(what: Kind) -> str:
    """Explain the dashes where a legend of all lines would cover the plot."""
    return ", ".join(f"{line} {dash}" for line, dash in zip(what.lines.values(), theme.DASHES, strict=False))


def _group(key: Key) -> str:
    """Return what lines of one colour share: the GPU, or the node and its interface."""
    return f"{key[1]} {key[0].partition('/')[2]}" if key[1] < 0 else str(key[1])


def _label(what: Kind, key: Key, names: Names) -> str:
    return " ".join(filter(None, [names.whose(key), what.lines[key[0].partition("/")[0]]])) or "all processes"


def _drawn(series: Mapping[Key, Curve], extents: Mapping[Key, Extent]) -> dict[Key, Curve]:
    """Return all lines of a few GPUs or nodes; of more than MAX_RANKS those with the highest and the lowest mean."""
    groups: dict[str, list[float]] = {}
    for key in series:
        groups.setdefault(_group(key), []).append(extents[key].mean)
    if len(groups) <= theme.MAX_RANKS:
        return dict(series)
    by_mean = sorted(groups, key=lambda group: groups[group][0])
    return {key: curve for key, curve in series.items() if _group(key) in (by_mean[0], by_mean[-1])}


def _extent_caption(what: Kind, extents: Mapping[Key, Extent], is_part: bool, factor: float, unit: str) -> str:
    parts = []
    for metric, line in what.lines.items():
        of_metric = [extent for key, extent in extents.items() if key[0].partition("/")[0] == metric]
        if of_metric:
            samples = sum(extent.samples for extent in of_metric)
            mean = sum(extent.mean * extent.samples for extent in of_metric) / samples / factor
            low = min(extent.low for extent in of_metric) / factor
            high = max(extent.high for extent in of_metric) / factor
            middle = f"{significant(mean)}{SPACE}{unit}"
            parts.append(f"{line} {middle}, {significant(low)} to {significant(high)}".strip())
    caption = f"Mean and range: {'; '.join(parts)}."
    which = "GPUs" if all(rank >= 0 for _, rank in extents) else "lines"
    return f"{caption} Only the {which} with the highest and the lowest mean are drawn." if is_part else caption


def _samples_table(what: Kind, present: Mapping[Key, Curve], labels: Mapping[Key, str]) -> Table:
    rows = [
        [labels[key], int(step), float(time), float(value)]
        for key, curve in present.items()
        for step, time, value in zip(curve.steps, curve.times, curve.values, strict=True)
    ]
    return Table(["of", "step", "unix_time_s", what.column], rows)
