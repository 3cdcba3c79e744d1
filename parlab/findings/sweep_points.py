"""Comparisons between the points of a sweep: throughput outliers, efficiency above 1, hidden settings."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from parlab.findings.contradictions import Contradiction, RunFacts, computed, percent, shown, times
from parlab.findings.facts import number, part, run_sizes, segment_sizes, stated
from parlab.findings.noise import Noise, noise
from parlab.formats.schema import Document, Segment

OFF = 2.0
"""Healthy points of published sweeps lie within 25 % of the interpolation; a factor of 2 has another cause."""

LEAST_POINTS = 4
"""With a point and its two neighbours it cannot be decided which of the three is wrong; a fourth point can tell."""

ABOVE_ONE = 0.05
"""Caches and clock rates may add a few percent; more means another configuration or another clock rate."""

# Settings that make two results incomparable if the difference is not visible.
HIDDEN = (
    "model.kind", "model.num_layers", "model.hidden_size", "model.sequence_length", "model.vocab_size",
    "model.attention_mask", "train.precision", "train.recompute", "train.optimizer",
)  # fmt: skip
# Settings that change with the number of GPUs; a comparison of efficiency needs all others to be equal.
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
    """An outlier, and the y that its neighbours give."""

    point: Point
    expected: float
    low: Point
    high: Point

    @property
    def factor(self) -> float:
        return max(self.expected / self.point.y, self.point.y / self.expected)


def off_neighbours(points: Sequence[Point]) -> list[Off]:
    """Return the points that are far from the log-log interpolation of their neighbours.

    A point is compared with its nearest neighbours that are not outliers themselves, and only if it is also far from
    the line through all points (Theil-Sen: the median slope of all pairs, which is robust against a quarter of wrong
    points). The two ends have a neighbour on one side only and are not checked.
    """
    positive = sorted((point for point in points if point.x > 0 and point.y > 0), key=lambda point: point.x)
    if len(positive) < LEAST_POINTS or len({point.x for point in positive}) < len(positive):
        return []
    residual = _residuals(positive)
    outliers: list[Off] = []
    remaining = list(positive)
    for point in sorted(positive[1:-1], key=lambda point: -abs(residual[point.owner])):
        at = remaining.index(point)
        if abs(residual[point.owner]) < math.log(OFF) or not 0 < at < len(remaining) - 1:
            continue
        low, high = remaining[at - 1], remaining[at + 1]
        outlier = Off(point, _interpolated(low, high, point.x), low, high)
        if outlier.factor >= OFF:
            outliers.append(outlier)
            remaining.remove(point)
    return outliers


def _residuals(points: Sequence[Point]) -> dict[int, float]:
    logs = [(math.log(point.x), math.log(point.y)) for point in points]
    slopes = [(y2 - y1) / (x2 - x1) for n, (x1, y1) in enumerate(logs) for x2, y2 in logs[n + 1 :] if x2 > x1]
    slope = median(slopes)
    level = median(y - slope * x for x, y in logs)
    return {point.owner: y - slope * x - level for point, (x, y) in zip(points, logs, strict=True)}


def _interpolated(low: Point, high: Point, x: float) -> float:
    share = math.log(x / low.x) / math.log(high.x / low.x)
    return math.exp(math.log(low.y) + share * (math.log(high.y) - math.log(low.y)))


def off(outlier: Off, axis: str, ms_per_sample: float | None = None, unit: str = "samples/s") -> Contradiction:
    """Describe an outlier in throughput, in ms per sample if the document states that."""
    point, low, high = outlier.point, outlier.low, outlier.high
    stated_text, expected = f"{shown(point.y)} {unit}", f"{computed(outlier.expected)} {unit}"
    if ms_per_sample is not None:
        stated_text = f"{shown(ms_per_sample)} ms per sample ({computed(point.y)} {unit})"
        expected = f"{computed(1e3 / outlier.expected)} ms ({expected})"
    compared = "slower" if outlier.expected > point.y else "faster"
    return Contradiction(
        f"{stated_text} at {axis} {shown(point.x)} is {times(outlier.factor)} {compared}"
        f" than the {expected} interpolated between its neighbours at {shown(low.x)} and {shown(high.x)}; check for"
        " a different configuration, a slow node or link, or a typing error.",
        {"throughput": point.y, "expected_throughput": outlier.expected, "factor": outlier.factor},
    )


def efficiency(smallest: Point, point: Point, unit: str = "samples/s") -> Contradiction | None:
    """Compare the throughput per GPU of a point with that of the smallest point; x is the number of GPUs."""
    if smallest.y <= 0 or not 0 < smallest.x < point.x:
        return None
    share = (point.y / point.x) / (smallest.y / smallest.x)
    if share <= 1 + ABOVE_ONE:
        return None
    return Contradiction(
        f"{shown(point.y)} {unit} on {shown(point.x)} GPUs is an efficiency of {percent(share)} relative to"
        f" {shown(smallest.y)} {unit} on {shown(smallest.x)}, more than 100 %: either the smaller run was slowed down,"
        " or the two do not do the same work.",
        {"efficiency": share, "throughput": point.y, "gpus": point.x, "smallest_throughput": smallest.y,
         "smallest_gpus": smallest.x},
    )  # fmt: skip


def _segment_points(document: Document) -> list[list[Point]]:
    """Group the launches of a document by the work that they do; x is the number of GPUs."""
    groups: dict[Hashable, list[Point]] = {}
    for index, segment in enumerate(document.segments):
        throughput, sizes = _throughput(segment), segment_sizes(segment)
        if throughput and sizes.gpus:
            key = (sizes.layers, sizes.hidden, sizes.sequence, sizes.precision, sizes.recompute)
            groups.setdefault(key, []).append(Point(index, float(sizes.gpus), throughput))
    return list(groups.values())


def _throughput(segment: Segment) -> float | None:
    figure = stated(segment, "ms_per_sample")
    if segment.samples_per_s:
        return segment.samples_per_s
    return 1e3 / figure.value if figure and figure.value and figure.value > 0 else None


def off_in_document(document: Document) -> Iterator[Contradiction]:
    for points in _segment_points(document):
        for outlier in off_neighbours(points):
            index = outlier.point.owner
            segment = document.segments[index]
            figure = None if segment.samples_per_s else stated(segment, "ms_per_sample")
            if figure:
                yield off(outlier, "GPUs", figure.value).at(figure.line, segment=index, figure="ms_per_sample")
            else:
                line = segment.lines.first if segment.lines else None
                yield off(outlier, "GPUs").at(line, segment=index, figure="samples_per_s")


def efficiency_in_document(document: Document) -> Iterator[Contradiction]:
    """Compare each launch with the smallest; nothing is compared if several launches have the smallest size."""
    for points in _segment_points(document):
        ordered = sorted(points, key=lambda point: point.x)
        if len(ordered) < 2 or ordered[0].x == ordered[1].x:
            continue
        for point in ordered[1:]:
            if contradiction := efficiency(ordered[0], point):
                lines = document.segments[point.owner].lines
                yield contradiction.at(lines.first if lines else None, segment=point.owner, figure="samples_per_s")


def hidden_in_document(document: Document) -> Iterator[Contradiction]:
    """Compare the work of the launches under the headings of a document, which readers will compare.

    A setting that a heading names is not hidden.
    """
    results = []
    for index, segment in enumerate(document.segments):
        if segment.section is not None and _throughput(segment):
            launch = segment.launch
            names = ("num_layers", "hidden_size", "sequence_length", "precision")
            work: dict[str, Any] = {name: getattr(launch, name) for name in names}
            work["recompute"] = segment_sizes(segment).recompute
            heading = segment.section.lower()
            unnamed_work = {name: value for name, value in work.items() if str(value).lower() not in heading}
            results.append(_Result(index, f"launch {index + 1}", unnamed_work))
    for result, contradiction in different(results):
        lines = document.segments[result.owner].lines
        yield contradiction.at(lines.first if lines else None, segment=result.owner, figure="launch")


class _Result(NamedTuple):
    owner: int
    name: str
    work: Mapping[str, Any]


def different(results: Sequence[_Result]) -> Iterator[tuple[_Result, Contradiction]]:
    """Return the results whose settings differ from the majority; unspecified settings are assumed equal.

    A setting without a majority was varied on purpose and is not hidden.
    """
    usual: dict[str, Any] = {}
    for name in dict.fromkeys(name for result in results for name in result.work):
        values = [result.work[name] for result in results if result.work.get(name) is not None]
        most = max(values, key=values.count, default=None)
        if values.count(most) * 2 > len(values):
            usual[name] = most
    for result in results:
        differences = {
            name: (value, usual[name])
            for name, value in result.work.items()
            if value is not None and name in usual and value != usual[name]
        }
        if differences:
            clauses = "; ".join(
                f"its {_title(name)} is {value}, not {most}" for name, (value, most) in differences.items()
            )
            numbers = {
                f"{prefix}{name}": numeric
                for name, pair in differences.items()
                for prefix, value in zip(("", "usual_"), pair, strict=True)
                if (numeric := number(value)) is not None
            }
            message = f"{result.name.capitalize()} does not do the same work as the other results: {clauses}."
            yield result, Contradiction(message, numbers)


def _title(name: str) -> str:
    return name.rpartition(".")[2].replace("_", " ")


def off_in_sweep(runs: Sequence[RunFacts]) -> Iterator[Contradiction]:
    """Check each run along every numeric axis of its sweep, among the runs that share all its other values."""
    measured = {index: run for index, run in enumerate(runs) if _samples_per_s(run)}
    reported: set[int] = set()
    for axis in dict.fromkeys(name for run in measured.values() for name in run.point):
        groups: dict[Hashable, list[Point]] = {}
        for index, run in measured.items():
            x, y = number(run.point.get(axis)), _samples_per_s(run)
            if x and y:
                others = tuple(sorted((name, repr(value)) for name, value in run.point.items() if name != axis))
                groups.setdefault((others, _work(run, [axis])), []).append(Point(index, x, y))
        for points in groups.values():
            for outlier in off_neighbours(points):
                owner = outlier.point.owner
                if owner not in reported:
                    reported.add(owner)
                    yield off(outlier, _title(axis)).at(run=runs[owner].number, figure="samples_per_s")


def efficiency_in_sweep(runs: Sequence[RunFacts]) -> Iterator[Contradiction]:
    """Compare runs that differ only in their number of GPUs, and settings that depend on it, with the smallest."""
    groups: dict[Hashable, list[Point]] = {}
    for index, run in enumerate(runs):
        gpus, throughput = run_sizes(run).gpus, _samples_per_s(run)
        if gpus and throughput:
            others = tuple(sorted((name, repr(value)) for name, value in run.point.items() if name not in _SCALE))
            groups.setdefault((others, _work(run, [])), []).append(Point(index, float(gpus), throughput))
    noisy = noise(run.repeats for run in runs)
    for points in groups.values():
        ordered = sorted(points, key=lambda point: (point.x, -point.y))
        for point in ordered[1:]:
            if contradiction := efficiency(ordered[0], point):
                contradiction = _with_noise(contradiction, runs[ordered[0].owner], runs[point.owner], noisy)
                yield contradiction.at(run=runs[point.owner].number, figure="samples_per_s")


def _with_noise(contradiction: Contradiction, smallest: RunFacts, run: RunFacts, noisy: Noise | None) -> Contradiction:
    """Add that the noise of the repeats explains an efficiency, where it does."""
    counts = max(1, len(smallest.repeats)), max(1, len(run.repeats))
    if noisy is None or contradiction.numbers["efficiency"] - 1 > noisy.limit(*counts):
        return contradiction
    message = f"{contradiction.message} The difference is smaller than the noise of the repeats"
    return contradiction._replace(message=f"{message} ({percent(noisy.limit(*counts))}).")


def hidden_in_sweep(runs: Sequence[RunFacts]) -> Iterator[Contradiction]:
    """Compare measured runs in the settings that are not axes of the sweep."""
    axes = {name for run in runs for name in run.point}
    names = [name for name in HIDDEN if name not in axes]
    results = [
        _Result(index, f"run {run.number}", {name: _setting(run, name) for name in names})
        for index, run in enumerate(runs)
        if _samples_per_s(run)
    ]
    for result, contradiction in different(results):
        yield contradiction.at(run=runs[result.owner].number)


def _work(run: RunFacts, but: Sequence[str]) -> tuple[str, ...]:
    return tuple(repr(_setting(run, name)) for name in HIDDEN if name not in but)


def _setting(run: RunFacts, dotted: str) -> Any:
    section, _, name = dotted.partition(".")
    argument = run.arguments.get(name)
    return argument if argument is not None else part(run.config, section).get(name)


def _samples_per_s(run: RunFacts) -> float | None:
    value = number(run.summary.get("samples_per_s"))
    return value if value and value > 0 else None
