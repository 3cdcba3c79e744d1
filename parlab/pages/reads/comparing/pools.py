"""Two pools side by side: what their nodes measured, what became of their hours, and the settings that ran on both."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from statistics import geometric_mean, median
from typing import Any, NamedTuple

from parlab.charts.format import DASH, SPACE, duration, quantity, signed_percent, significant
from parlab.charts.measures import MEASURES
from parlab.charts.repeats import pooled
from parlab.charts.svg import Svg
from parlab.charts.sweeps.compared import Sureness, sureness
from parlab.fleet import capacity
from parlab.lab.models import Node, Run
from parlab.lab.selectors.analysis.identities import identities
from parlab.lab.selectors.analysis.sweep import run_point
from parlab.lab.selectors.comparison.results import is_within_noise, noises
from parlab.pages.reads.cluster.goodput import CAUSES, WEEKS, pool_hours
from parlab.planner.job.measured import own_link, positive
from runners.config import SEED, digest
from runners.wire.protocol import RunState

MAX_RUNS = 1_000
"""The last runs of each pool in which equal settings are looked for."""
MOST_SHOWN = 12
_LONGEST = 17
"""Characters of a name in the picture."""
_PLACES = ("slurm", "kubernetes", "launcher")
"""Sections that say how a pool starts a run, and not what it computes."""
_PLACED = ("pool", "node_names", "interface")
_STEP = MEASURES["step_time"]


class Row(NamedTuple):
    """A property of both pools as text."""

    title: str
    first: str
    second: str
    change: str = ""
    """Of the second against the first."""


class Pair(NamedTuple):
    """Settings that ran on both pools."""

    name: str
    first: str
    second: str
    change: str
    is_noise: bool
    runs: str
    """Ids for the comparison of the runs."""


class PoolComparison(NamedTuple):
    names: tuple[str, str]
    answer: str
    detail: str
    rows: list[Row]
    pairs: list[Pair]
    more: int
    """Pairs that are not shown."""
    picture: Svg | None
    """The changes of the pairs with their noise."""


class _Ratio(NamedTuple):
    """The step times of settings on both pools (s)."""

    groups: tuple[list[Run], list[Run]]
    times: tuple[float, float]
    limit: float | None
    is_noise: bool

    @property
    def share(self) -> float:
        return self.times[1] / self.times[0] - 1


def pool_names() -> list[str]:
    return list(Node.objects.order_by("pool").values_list("pool", flat=True).distinct())


def compare_pools(first: str, second: str, now: datetime) -> PoolComparison:
    """Compare two pools of nodes."""
    ratios = _ratios(_finished(first), _finished(second))
    shown = ratios[:MOST_SHOWN]
    names = identities([ratio.groups[0][0] for ratio in shown])
    pairs = [_pair(ratio, names[ratio.groups[0][0].pk].name) for ratio in shown]
    drawn = [_drawn(ratio, names[ratio.groups[0][0].pk].name) for ratio in shown]
    return PoolComparison(
        (first, second),
        *_answer(second, ratios),
        rows=[*_hardware(first, second), *_use(first, second, now)],
        pairs=pairs,
        more=len(ratios) - len(shown),
        picture=sureness(drawn) if drawn else None,
    )


def _finished(pool: str) -> list[Run]:
    own = Run.objects.filter(origin=Run.Origin.MEASURED, state=RunState.FINISHED, resolved__cluster__pool=pool)
    return list(own.select_related("experiment", "config").defer("launch").order_by("-ended_at")[:MAX_RUNS])


def _settings(run: Run) -> str:
    """Identify what a run computes, wherever it runs, without its seed."""
    resolved = {name: section for name, section in run.resolved.items() if name not in _PLACES}
    for section, fields in (("cluster", _PLACED), (SEED.partition(".")[0], (SEED.partition(".")[2],))):
        if isinstance(resolved.get(section), Mapping):
            resolved[section] = {name: value for name, value in resolved[section].items() if name not in fields}
    return digest(resolved)


def _ratios(first: Sequence[Run], second: Sequence[Run]) -> list[_Ratio]:
    """Return the settings that ran on both pools, those with the largest change first."""
    sides: tuple[dict[str, list[Run]], dict[str, list[Run]]] = (defaultdict(list), defaultdict(list))
    for runs, side in zip((first, second), sides, strict=True):
        for run in runs:
            side[_settings(run)].append(run)
    both = [(sides[0][key], sides[1][key]) for key in sides[0] if key in sides[1]]
    noisy = noises([run for groups in both for group in groups for run in group])(_STEP)
    found = []
    for groups in both:
        points = [pooled([run_point(run, {}) for run in group]) for group in groups]
        times = [_STEP.value(point) for point in points]
        if times[0] and times[1]:
            limit = noisy.limit(*(len(group) for group in groups)) if noisy else None
            is_noise = is_within_noise(_STEP, points[0], points[1], noisy)
            found.append(_Ratio(groups, (times[0], times[1]), limit, is_noise))
    return sorted(found, key=lambda ratio: -abs(ratio.share))


def _pair(ratio: _Ratio, name: str) -> Pair:
    runs = [run.pk for group in ratio.groups for run in group[:1]]
    first, second = (_STEP.text(time) for time in ratio.times)
    title = f"{ratio.groups[0][0].experiment.name}: {name}"
    return Pair(title, first, second, _change(*ratio.times), ratio.is_noise, ",".join(map(str, runs)))


def _drawn(ratio: _Ratio, name: str) -> Sureness:
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
    word = "not proven" if ratio.is_noise else "proven" if ratio.limit is not None else "one run each"
    low = None if ratio.limit is None else max(-1.0, ratio.share - ratio.limit)
    high = None if ratio.limit is None else ratio.share + ratio.limit
    return Sureness(name, ratio.share, low, high, word, None if word != "proven" else ratio.share < 0)


def _answer(second: str, ratios: Sequence[_Ratio]) -> tuple[str, str]:
    if not ratios:
        return (
            "No settings have finished on both pools.",
            "Launch one configuration on each: as a sweep over cluster.pool.",
        )
    mean = geometric_mean([ratio.times[1] / ratio.times[0] for ratio in ratios]) - 1
    noise = sum(ratio.is_noise for ratio in ratios)
    count = f"{len(ratios)} setting{'' if len(ratios) == 1 else 's'} that ran on both"
    word = "less" if mean < 0 else "more"
    text = f"{second} takes {significant(abs(100 * mean), 1 if noise == len(ratios) else 2)}{SPACE}% {word} time a step"
    if noise == len(ratios):
        return "No difference is proven.", f"{text}, within noise; {count}."
    shares = [100 * ratio.share for ratio in ratios]
    reach = f", from {min(shares):+.0f} to {max(shares):+.0f}{SPACE}%" if len(ratios) > 1 else ""
    return f"{text}.", f"Geometric mean of {count}{reach}{f'; {noise} within noise' if noise else ''}."


def _hardware(first: str, second: str) -> list[Row]:
    sides = [list(Node.objects.filter(pool=pool)) for pool in (first, second)]
    return [
        Row("Nodes", *(_nodes(nodes) for nodes in sides)),
        Row("Devices", *(_devices(nodes) for nodes in sides)),
        *_rates(*sides),
    ]


def _nodes(nodes: Sequence[Node]) -> str:
    online = sum(node.is_online for node in nodes)
    return f"{len(nodes)}, {online} online" if online < len(nodes) else str(len(nodes))


def _devices(nodes: Sequence[Node]) -> str:
    counts: Counter[str] = Counter()
    for node in nodes:
        gpus = node.hardware.get("gpus") or []
        counts.update(str(gpu.get("name", "GPU")) for gpu in gpus)
        if not gpus:
            counts[str(node.hardware.get("cpu_model") or "CPU")] += max(1, capacity.gpu_count(node))
    return ", ".join(f"{count} \N{MULTIPLICATION SIGN} {name}" for name, count in counts.most_common()) or DASH


def _link(rates: Mapping[str, Any]) -> float | None:
    link = own_link(rates)
    return link.bandwidth if link else None


_MEASURED: tuple[tuple[str, str, Callable[[Mapping[str, Any]], Any]], ...] = (
    ("Matrix products, bf16", "FLOP/s", lambda rates: (rates.get("matrix") or {}).get("bf16")),
    ("Matrix products, fp32", "FLOP/s", lambda rates: (rates.get("matrix") or {}).get("fp32")),
    ("Attention", "FLOP/s", lambda rates: rates.get("attention")),
    ("Memory", "B/s", lambda rates: rates.get("memory")),
    ("From the host", "B/s", lambda rates: rates.get("host")),
    ("Between devices", "B/s", _link),
)
"""What nodes measure of themselves, by title and unit; see `runners.engines.node_rates`."""


def _rates(*sides: Sequence[Node]) -> Iterable[Row]:
    rates = [
        [node.hardware["rates"] for node in nodes if isinstance(node.hardware.get("rates"), dict)] for nodes in sides
    ]
    for title, unit, read in _MEASURED:
        values = [[value for own in side if (value := positive(read(own)))] for side in rates]
        middles = [median(own) if own else None for own in values]
        if any(middles):
            first, second = (quantity(middle, unit) if middle else DASH for middle in middles)
            yield Row(f"{title} (median node)", first, second, _change(*middles))


def _use(first: str, second: str, now: datetime) -> list[Row]:
    """Return what the last weeks were like: waiting, goodput, what was lost to what."""
    waits = [_waiting_s(pool, now) for pool in (first, second)]
    hours = [pool_hours(pool, now) for pool in (first, second)]
    totals = [sum(own.values()) for own in hours]
    rows = [
        Row("Waiting in the queue (median)", *(DASH if wait is None else duration(wait) for wait in waits)),
        Row("Device hours", *(significant(total) for total in totals)),
    ]
    for cause, title in CAUSES.items():
        if any(own[cause] for own in hours):
            shares = [
                f"{100 * own[cause] / total:.1f}{SPACE}%" if total else DASH
                for own, total in zip(hours, totals, strict=True)
            ]
            rows.append(Row(title, *shares))
    return rows


def _waiting_s(pool: str, now: datetime) -> float | None:
    began = Run.objects.filter(resolved__cluster__pool=pool, queued_at__gte=now - WEEKS, started_at__isnull=False)
    pairs = began.order_by("-queued_at").values_list("queued_at", "started_at")[:MAX_RUNS]
    waits = [(started - queued).total_seconds() for queued, started in pairs if started]
    return median(waits) if waits else None


def _change(first: float | None, second: float | None) -> str:
    if not first or not second:
        return ""
    return signed_percent(second / first - 1)
