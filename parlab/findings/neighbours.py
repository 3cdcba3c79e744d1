"""Points of one sweep beside each other: throughput off the others', efficiency above 1, hidden settings."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from parlab.findings.doubts import Doubt, RunFacts, percent, shown, times
from parlab.findings.facts import number, part, run_sizes, segment_sizes, stated
from parlab.formats.schema import Document, Segment

OFF = 2.0
"""Healthy points of published sweeps lie within a quarter of what their neighbours give; twice is another cause."""

LEAST_POINTS = 4
"""With a point and its two neighbours nobody can say which of the three is wrong; a fourth can."""

ABOVE_ONE = 0.05
"""Caches and clocks make a run a few percent faster than its share; more is another configuration or another clock."""

# Settings that make two results incomparable when nobody sees that they differ.
HIDDEN = (
    "model.kind", "model.num_layers", "model.hidden_size", "model.sequence_length", "model.vocab_size",
    "model.attention_mask", "train.precision", "train.recompute", "train.optimizer",
)  # fmt: skip
# What changes with the number of GPUs; everything else must be the same for a comparison of efficiency.
_SCALE = (
    "parallel.data_parallel_size", "parallel.tensor_parallel_size", "parallel.pipeline_parallel_size",
    "cluster.nodes", "cluster.gpus_per_node", "train.global_batch_size",
)  # fmt: skip


class Point(NamedTuple):
    """One point along an axis; `owner` is the index of its launch or run."""

    owner: int
    x: float
    y: float


class Off(NamedTuple):
    """A point far off its neighbours, and the y between them."""

    point: Point
    expected: float
    low: Point
    high: Point

    @property
    def factor(self) -> float:
        return max(self.expected / self.point.y, self.point.y / self.expected)


def off_neighbours(points: Sequence[Point]) -> list[Off]:
    """Find the points far off the log-log interpolation of their neighbours.

    A point is judged by its nearest neighbours that are not doubted themselves, and only if it also stands out from
    the line through all points (Theil-Sen: the median of the slopes of all pairs, which a quarter of wrong points
    does not move). The two ends have a neighbour on one side only and are not judged.
    """
    known = sorted((point for point in points if point.x > 0 and point.y > 0), key=lambda point: point.x)
    if len(known) < LEAST_POINTS or len({point.x for point in known}) < len(known):
        return []
    residual = _residuals(known)
    doubted: list[Off] = []
    left = list(known)
    for point in sorted(known[1:-1], key=lambda point: -abs(residual[point.owner])):
        at = left.index(point)
        if abs(residual[point.owner]) < math.log(OFF) or not 0 < at < len(left) - 1:
            continue
        low, high = left[at - 1], left[at + 1]
        found = Off(point, _interpolated(low, high, point.x), low, high)
        if found.factor >= OFF:
            doubted.append(found)
            left.remove(point)
    return doubted


def _residuals(points: Sequence[Point]) -> dict[int, float]:
    logs = [(math.log(point.x), math.log(point.y)) for point in points]
    slopes = [(y2 - y1) / (x2 - x1) for n, (x1, y1) in enumerate(logs) for x2, y2 in logs[n + 1 :] if x2 > x1]
    slope = median(slopes)
    level = median(y - slope * x for x, y in logs)
    return {point.owner: y - slope * x - level for point, (x, y) in zip(points, logs, strict=True)}


def _interpolated(low: Point, high: Point, x: float) -> float:
    share = math.log(x / low.x) / math.log(high.x / low.x)
    return math.exp(math.log(low.y) + share * (math.log(high.y) - math.log(low.y)))


def off(found: Off, axis: str, ms_per_sample: float | None = None, unit: str = "samples/s") -> Doubt:
    """Say how far a throughput is off its neighbours', in ms per sample where that is what was stated."""
    point, low, high = found.point, found.low, found.high
    told, expected = f"{shown(point.y)} {unit}", f"{shown(found.expected)} {unit}"
    if ms_per_sample is not None:
        told = f"{shown(ms_per_sample)} ms per sample ({told})"
        expected = f"{shown(1e3 / found.expected)} ms ({expected})"
    compared = "slower" if found.expected > point.y else "faster"
    return Doubt(
        f"{told} at {axis} {shown(point.x)} is {times(found.factor)} {compared}"
        f" than the {expected} between its neighbours at {shown(low.x)} and {shown(high.x)}; look for another"
        " configuration, a slow node or link, or a slip in writing it down.",
        {"throughput": point.y, "expected_throughput": found.expected, "factor": found.factor},
    )


def efficiency(smallest: Point, point: Point, unit: str = "samples/s") -> Doubt | None:
    """Compare the throughput per GPU of a point with that of the smallest one; x counts GPUs."""
    if smallest.y <= 0 or not 0 < smallest.x < point.x:
        return None
    share = (point.y / point.x) / (smallest.y / smallest.x)
    if share <= 1 + ABOVE_ONE:
        return None
    return Doubt(
        f"{shown(point.y)} {unit} on {shown(point.x)} GPUs are an efficiency of {percent(share)} against"
        f" {shown(smallest.y)} {unit} on {shown(smallest.x)}: more than 100 %. Either the smaller run was slowed"
        " down or they do not do the same work.",
        {"efficiency": share, "throughput": point.y, "gpus": point.x, "smallest_throughput": smallest.y,
         "smallest_gpus": smallest.x},
    )  # fmt: skip


def _segment_points(document: Document) -> list[list[Point]]:
    """Group the launches of a document that do the same work by it; x counts GPUs."""
    groups: dict[Hashable, list[Point]] = {}
    for index, segment in enumerate(document.segments):
        throughput, sizes = _throughput(segment), segment_sizes(segment)
        if throughput and sizes.gpus:
            key = (sizes.layers, sizes.hidden, sizes.sequence, sizes.precision, sizes.recompute)
            groups.setdefault(key, []).append(Point(index, float(sizes.gpus), throughput))
    return list(groups.values())


def _throughput(segment: Segment) -> float | None:
    told = stated(segment, "ms_per_sample")
    if segment.samples_per_s:
        return segment.samples_per_s
    return 1e3 / told.value if told and told.value and told.value > 0 else None


def off_in_document(document: Document) -> Iterator[Doubt]:
    for points in _segment_points(document):
        for found in off_neighbours(points):
            index = found.point.owner
            segment = document.segments[index]
            told = None if segment.samples_per_s else stated(segment, "ms_per_sample")
            if told:
                yield off(found, "GPUs", told.value).at(told.line, segment=index, figure="ms_per_sample")
            else:
                line = segment.lines.first if segment.lines else None
                yield off(found, "GPUs").at(line, segment=index, figure="samples_per_s")


def efficiency_in_document(document: Document) -> Iterator[Doubt]:
    """Compare each launch with the smallest; several launches of the smallest size leave no one to compare with."""
    for points in _segment_points(document):
        ordered = sorted(points, key=lambda point: point.x)
        if len(ordered) < 2 or ordered[0].x == ordered[1].x:
            continue
        for point in ordered[1:]:
            if doubt := efficiency(ordered[0], point):
                lines = document.segments[point.owner].lines
                yield doubt.at(lines.first if lines else None, segment=point.owner, figure="samples_per_s")


def hidden_in_document(document: Document) -> Iterator[Doubt]:
    """Launches under headings of one document are meant to be compared: their work must be the same.

    A setting that a heading names is not hidden.
    """
    results = []
    for index, segment in enumerate(document.segments):
        if segment.section is not None and _throughput(segment):
            launch = segment.launch
            names = ("num_layers", "hidden_size", "sequence_length", "precision")
            work: dict[str, Any] = {name: getattr(launch, name) for name in names}
            work["recompute"] = segment_sizes(segment).recompute
            words = segment.section.lower()
            shown_work = {name: value for name, value in work.items() if str(value).lower() not in words}
            results.append(_Result(index, f"launch {index + 1}", shown_work))
    for result, doubt in different(results):
        lines = document.segments[result.owner].lines
        yield doubt.at(lines.first if lines else None, segment=result.owner, figure="launch")


class _Result(NamedTuple):
    owner: int
    name: str
    work: Mapping[str, Any]


def different(results: Sequence[_Result]) -> Iterator[tuple[_Result, Doubt]]:
    """Find the results whose settings are not those of most others; an untold setting counts as the same.

    Where no value has a majority the setting was varied on purpose, and it is no hidden one.
    """
    usual: dict[str, Any] = {}
    for name in dict.fromkeys(name for result in results for name in result.work):
        values = [result.work[name] for result in results if result.work.get(name) is not None]
        most = max(values, key=values.count, default=None)
        if values.count(most) * 2 > len(values):
            usual[name] = most
    for result in results:
        wrong = {
            name: (value, usual[name])
            for name, value in result.work.items()
            if value is not None and name in usual and value != usual[name]
        }
        if wrong:
            words = "; ".join(f"its {_title(name)} is {told}, not {other}" for name, (told, other) in wrong.items())
            numbers = {
                f"{whose}{name}": found
                for name, pair in wrong.items()
                for whose, value in zip(("", "usual_"), pair, strict=True)
                if (found := number(value)) is not None
            }
            message = f"{result.name.capitalize()} does other work than the results beside it: {words}."
            yield result, Doubt(message, numbers)


def _title(name: str) -> str:
    return name.rpartition(".")[2].replace("_", " ")


def off_in_sweep(runs: Sequence[RunFacts]) -> Iterator[Doubt]:
    """Judge each run along every numeric axis of its sweep, among the runs that share all its other values."""
    measured = {index: run for index, run in enumerate(runs) if _samples_per_s(run)}
    doubted: set[int] = set()
    for axis in dict.fromkeys(name for run in measured.values() for name in run.point):
        groups: dict[Hashable, list[Point]] = {}
        for index, run in measured.items():
            x, y = number(run.point.get(axis)), _samples_per_s(run)
            if x and y:
                others = tuple(sorted((name, repr(value)) for name, value in run.point.items() if name != axis))
                groups.setdefault((others, _work(run, [axis])), []).append(Point(index, x, y))
        for points in groups.values():
            for found in off_neighbours(points):
                owner = found.point.owner
                if owner not in doubted:
                    doubted.add(owner)
                    yield off(found, _title(axis)).at(run=runs[owner].number, figure="samples_per_s")


def efficiency_in_sweep(runs: Sequence[RunFacts]) -> Iterator[Doubt]:
    """Compare runs that differ in nothing but their number of GPUs (and what follows from it) with the smallest."""
    groups: dict[Hashable, list[Point]] = {}
    for index, run in enumerate(runs):
        gpus, throughput = run_sizes(run).gpus, _samples_per_s(run)
        if gpus and throughput:
            others = tuple(sorted((name, repr(value)) for name, value in run.point.items() if name not in _SCALE))
            groups.setdefault((others, _work(run, [])), []).append(Point(index, float(gpus), throughput))
    for points in groups.values():
        ordered = sorted(points, key=lambda point: (point.x, -point.y))
        for point in ordered[1:]:
            if doubt := efficiency(ordered[0], point):
                yield doubt.at(run=runs[point.owner].number, figure="samples_per_s")


def hidden_in_sweep(runs: Sequence[RunFacts]) -> Iterator[Doubt]:
    """Compare measured runs in the settings that no axis of the sweep shows."""
    axes = {name for run in runs for name in run.point}
    names = [name for name in HIDDEN if name not in axes]
    results = [
        _Result(index, f"run {run.number}", {name: _setting(run, name) for name in names})
        for index, run in enumerate(runs)
        if _samples_per_s(run)
    ]
    for result, doubt in different(results):
        yield doubt.at(run=runs[result.owner].number)


def _work(run: RunFacts, but: Sequence[str]) -> tuple[str, ...]:
    return tuple(repr(_setting(run, name)) for name in HIDDEN if name not in but)


def _setting(run: RunFacts, dotted: str) -> Any:
    section, _, name = dotted.partition(".")
    told = run.arguments.get(name)
    return told if told is not None else part(run.config, section).get(name)


def _samples_per_s(run: RunFacts) -> float | None:
    value = number(run.summary.get("samples_per_s"))
    return value if value and value > 0 else None
