"""Nodes as tiles of squares: one for each GPU, or samples of the processor where there is none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from parlab.charts.format import DASH, SPACE, quantity
from parlab.charts.svg import Look, Svg
from parlab.fleet import capacity
from parlab.lab.models import Exclusion, Member, Node, Run
from parlab.lab.models.access.viewer import is_shown
from parlab.lab.models.node import QUEUES
from parlab.lab.services.access.rights import project_of
from parlab.watch.models import Alert

from .gauges import GPU, GPU_MEMORY, HEAT, POWER, Gauges, gauges_of, held_by
from .samples import Samples, samples

SAMPLES = 16
"""Squares of a node without GPUs: equal parts of the last half hour."""
LEVELS = 6
COOL_C, TOP_C, HOT_C = 30.0, 90.0, 85.0
"""Ends of the scale of temperatures, and that from which a GPU is marked (degrees Celsius)."""
_LEAST_WATTS = 100.0
OFF = "off"
"""The class of a square without a value."""
GOOD, WARNED, BAD = "good", "degraded", "out"


class Scale(NamedTuple):
    """What squares can show."""

    name: str
    title: str
    low: str
    high: str


class Square(NamedTuple):
    """One square: a class for each of the scales, and all its values as text."""

    classes: str
    title: str


class Tile(NamedTuple):
    node: Node
    squares: list[Square]
    values: list[tuple[str, str]]
    """By name of the scale, the value of the whole node."""
    state: str
    """What keeps it from work: `offline`, `left out`, `draining`, `disabled`; `free` without runs; else empty."""
    kind: str
    """bad, warn, muted or empty: the colour of the state."""
    label: str
    """The run on it, or why it has none."""
    look: Look | None
    """The colour of its run."""
    has_gpus: bool
    excluded: str = ""
    """Compute nodes of its Slurm that get no jobs."""

    @property
    def is_busy(self) -> bool:
        return self.look is not None


class Pool(NamedTuple):
    name: str
    kind: str
    """`daemon`, `daemons`, `Slurm` or `Kubernetes`."""
    text: str
    tiles: list[Tile]
    bar: Svg
    """How many of its GPUs (of its nodes where there are none) are busy, free and away."""


class Tiles(NamedTuple):
    """All pools, and the scales of their squares."""

    pools: list[Pool]
    scales: list[Scale]

    @property
    def nodes(self) -> list[Tile]:
        return [tile for pool in self.pools for tile in pool.tiles]


def tiles(nodes: Sequence[Node], now: datetime) -> Tiles:
    """Return the tiles of nodes by pool; the pools with the most busy nodes first."""
    held = held_by(nodes)
    devices = gauges_of(held)
    measured = samples([node for node in nodes if not capacity.gpu_count(node)], now, SAMPLES)
    looks = _looks(held)
    scales = _scales(nodes, devices)
    warned, excluded = _warned(nodes), _excluded(nodes)
    by_pool: dict[str, list[Tile]] = defaultdict(list)
    for node in nodes:
        tile = _Shown(node, held.get(node.pk, []), node.name in warned, scales)
        shown = tile.tile(devices.get(node.pk, {}), measured.get(node.pk), looks)
        by_pool[node.pool].append(shown._replace(excluded=", ".join(excluded.get(node.pk, []))))
    pools = [_pool(name, members) for name, members in by_pool.items()]
    return Tiles(
        sorted(pools, key=lambda pool: (-sum(tile.is_busy for tile in pool.tiles), -len(pool.tiles), pool.name)),
        [*scales.values()],
    )


def _looks(held: Mapping[int, Sequence[Member]]) -> dict[int, Look]:
    """Give each run on the page a colour."""
    runs = sorted({member.attempt.run_id for own in held.values() for member in own})
    return {run: Look(1 + place % 8) for place, run in enumerate(runs)}


def _excluded(nodes: Sequence[Node]) -> dict[int, list[str]]:
    queues = [node for node in nodes if node.is_queue]
    rows = Exclusion.objects.open().of_hosts().filter(node__in=queues).order_by("host") if queues else []
    hosts: dict[int, list[str]] = defaultdict(list)
    for row in rows:
        hosts[row.node_id].append(row.host)
    return hosts


def _warned(nodes: Sequence[Node]) -> set[str]:
    """Return the names of nodes with an open change for the worse."""
    alerts = Alert.objects.open().filter(is_worse=True)
    own = alerts.filter(watch__node__in=nodes).values_list("watch__node__name", flat=True)
    named = alerts.filter(node__in=[node.name for node in nodes]).values_list("node", flat=True)
    return {*own, *named}


def _scales(nodes: Sequence[Node], devices: Mapping[int, Mapping[int, Gauges]]) -> dict[str, Scale]:
    """Return the scales; the last two only where something measures them."""
    largest = max((memory for node in nodes if (memory := _memory(node))), default=0.0)
    watts = [value for own in devices.values() for each in own.values() if (value := each.get(POWER))]
    has_heat = any(HEAT in each for own in devices.values() for each in own.values())
    rows = [
        Scale("utilisation", "Utilisation", "0", f"100{SPACE}%"),
        Scale("memory", "Memory", "0", quantity(largest, "B") if largest else ""),
    ]
    if watts:
        rows.append(Scale("power", "Power", "0", f"{_top(watts):.0f}{SPACE}W"))
    if has_heat:
        rows.append(Scale("temperature", "Temperature", f"{COOL_C:.0f}", f"{TOP_C:.0f}{SPACE}°C"))
    return {row.name: row for row in [*rows, Scale("health", "Health", "", "")]}


def _top(watts: Sequence[float]) -> float:
    return max(_LEAST_WATTS, 100.0 * -(-max(watts) // 100))


def _memory(node: Node) -> float | None:
    """Return the memory of a GPU of a node, or of the node without GPUs (bytes)."""
    gpus = node.hardware.get("gpus") or []
    value = gpus[0].get("memory_bytes") if gpus else node.hardware.get("memory_bytes")
    return float(value) if isinstance(value, int | float) and value > 0 else None


class _Shown:
    """Makes the tile of one node."""

    def __init__(self, node: Node, members: Sequence[Member], is_warned: bool, scales: Mapping[str, Scale]) -> None:
        self.node, self.members, self.is_warned, self.scales = node, members, is_warned, scales
        self.memory = _memory(node)
        self.watts = float(scales["power"].high.partition(SPACE)[0]) if "power" in scales else _LEAST_WATTS

    def tile(self, devices: Mapping[int, Gauges], own: Samples | None, looks: Mapping[int, Look]) -> Tile:
        gpus = capacity.gpu_count(self.node)
        squares = self._of_gpus(devices, gpus) if gpus else self._of_samples(own)
        runs = {member.attempt.run_id: member.attempt.run for member in self.members}
        state, kind = _state(self.node, is_busy=bool(runs))
        return Tile(
            self.node,
            squares,
            self._values(devices, own),
            state,
            kind,
            _label(self.node, [*runs.values()]),
            looks.get(next(iter(runs))) if runs else None,
            bool(gpus),
        )

    @property
    def _health(self) -> str:
        if not self.node.is_online:
            return OFF
        return "hbad" if self.node.left_out else "hwarn" if self.is_warned else "hok"

    def _of_gpus(self, devices: Mapping[int, Gauges], count: int) -> list[Square]:
        squares = []
        for index in range(count):
            values = devices.get(index, {})
            squares.append(self._square(f"GPU {index}", values, self.memory))
        return squares

    def _square(self, name: str, values: Mapping[str, float], memory: float | None) -> Square:
        classes = [
            _level("u", values.get(GPU), 0, 100),
            _level("m", values.get(GPU_MEMORY), 0, memory),
            _level("p", values.get(POWER), 0, self.watts),
            _level("t", values.get(HEAT), COOL_C, TOP_C),
            self._health,
        ]
        texts = [text for metric, unit in _UNITS.items() if (text := _text(values.get(metric), unit))]
        # A ring marks what breaks a rule, whatever the colour shows.
        is_hot = values.get(HEAT, 0.0) >= HOT_C
        if is_hot:
            classes.append("ring")
        return Square(" ".join(classes), f"{name}: {', '.join(texts) or 'no run'}{', hot' if is_hot else ''}")

    def _of_samples(self, own: Samples | None) -> list[Square]:
        if own is None:
            return []
        squares = []
        for share, memory in zip(own.utilisation, own.memory, strict=True):
            percent = None if share is None else 100 * share
            classes = [
                _level("u", percent, 0, 100),
                _level("m", memory, 0, self.memory),
                "p-off",
                "t-off",
                self._health,
            ]
            texts = [text for text in (_text(percent, "%"), _text(memory, "B")) if text]
            squares.append(Square(" ".join(classes), ", ".join(texts) or "no run"))
        return squares

    def _values(self, devices: Mapping[int, Gauges], own: Samples | None) -> list[tuple[str, str]]:
        def of(metric: str) -> list[float]:
            return [each[metric] for each in devices.values() if metric in each]

        busy, memory, watts, heat = of(GPU), of(GPU_MEMORY), of(POWER), of(HEAT)
        if own is not None:
            busy = [100 * share for share in own.utilisation[-2:] if share is not None][-1:]
            memory = [value for value in own.memory[-2:] if value is not None][-1:]
        texts = {
            "utilisation": _text(sum(busy) / len(busy) if busy else None, "%"),
            "memory": _text(max(memory, default=None), "B"),
            "power": _text(sum(watts) if watts else None, "W"),
            "temperature": _text(max(heat, default=None), "°C"),
            "health": {OFF: "", "hok": GOOD, "hwarn": WARNED, "hbad": BAD}[self._health],
        }
        return [(name, texts[name] or DASH) for name in self.scales]


_UNITS = {GPU: "%", GPU_MEMORY: "B", POWER: "W", HEAT: "°C"}


def _level(kind: str, value: float | None, low: float, high: float | None) -> str:
    """Return the class of a value on a scale of six: `u0` to `u5`, `u-off` without one."""
    if value is None or not high:
        return f"{kind}-off"
    return f"{kind}{min(LEVELS - 1, max(0, int(LEVELS * (value - low) / (high - low))))}"


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return quantity(value, unit) if unit in ("B", "W") else f"{value:.0f}{SPACE}{unit}"


def _state(node: Node, *, is_busy: bool) -> tuple[str, str]:
    """Return what keeps a node from work, and its colour."""
    if not node.is_online:
        return "offline", "bad"
    if node.left_out:
        return "left out", "bad"
    if node.has_conflict:
        return "name conflict", "bad"
    if node.is_draining:
        return "draining", "warn"
    if not node.is_enabled:
        return "disabled", "warn"
    return ("", "") if is_busy else ("free", "muted")


def _label(node: Node, runs: Sequence[Run]) -> str:
    if runs:
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        if not is_shown(project_of(runs[0])):
            return f"a run of another project{more}"
        return f"{runs[0].experiment.name} #{runs[0].number}{more}"
    return node.left_out or ""


def _pool(name: str, members: Sequence[Tile]) -> Pool:
    system = next((tile.node.system for tile in members if tile.node.is_queue), "")
    kind = QUEUES.get(system) or ("daemon" if len(members) == 1 else "daemons")
    has_gpus = any(tile.has_gpus for tile in members)
    counts: dict[str, int] = {"busy": 0, "free": 0, "away": 0}
    for tile in members:
        state = "busy" if tile.is_busy else "free" if tile.state == "free" else "away"
        counts[state] += len(tile.squares) if has_gpus else 1
    total = sum(counts.values())
    words = [f"{len(members)} node{'' if len(members) == 1 else 's'}"]
    words += [f"{total} GPUs"] if has_gpus else []
    words.append(", ".join(f"{count} {word}" for word, count in counts.items() if count))
    return Pool(name, kind, f" {chr(183)} ".join(words), list(members), _bar(counts))


def _bar(counts: Mapping[str, int]) -> Svg:
    total, done, parts = max(1, sum(counts.values())), 0.0, []
    for kind, count in counts.items():
        width = 100 * count / total
        parts.append(f'<rect class="pool-{kind}" x="{done:.1f}" width="{width:.1f}" height="6"/>')
        done += width
    label = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    size = 'viewBox="0 0 100 6" width="180" height="6" preserveAspectRatio="none"'
    return Svg(f'<svg class="pb" {size} role="img" aria-label="{label}">{"".join(parts)}</svg>')
