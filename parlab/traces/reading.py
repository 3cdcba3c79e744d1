"""The events of a trace file -> timelines, launches, steps, collectives and memory of a rank.

Events may come in any order. Only what the breakdown and the view need is stored, 29 bytes per event, on the disk if
there are many. Names are stored once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from .chunks import Event, TraceFile
from .events import LAUNCH, Message, Messages, Timeline
from .kinds import COMMUNICATION, kind_of
from .spool import Spool

_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "Runtime")
_ANNOTATIONS = ("user_annotation", "gpu_user_annotation")
_STEP = "ProfilerStep#"
_GLOO = ("gloo:", "c10d::", "nccl:")
MAX_MEMORY_POINTS = 4_000
_MICRO = 1e-6
_LATEST = 1e17
"""The year 5138 (us)."""
_MOST = 1e15
"""Elements of a message."""


class StepRange(NamedTuple):
    number: int
    begin_s: float
    end_s: float


@dataclass
class RankTrace:
    """One rank of a traced run. Times in seconds on the clock of its node, relative to `origin_s`."""

    rank: int | None
    world_size: int | None
    host: str
    device: str
    """Name of the GPU; empty for a trace of the processor only."""
    origin_s: float
    names: list[str]
    timeline: Timeline
    """Kernels and copies; in a trace of the processor alone, operations."""
    launches: Spool
    """Of kernels, by number; on the clock of the timeline before its shift."""
    steps: list[StepRange]
    messages: list[Message]
    """The first MAX_MESSAGES collectives."""
    message_count: int
    memory: list[tuple[float, float, float]]
    """(time, allocated, reserved bytes), at most some thousand points; the highest of each piece."""
    is_gpu: bool
    events: int
    bytes_read: int
    operations: Timeline
    """Of the processor, in a trace of a GPU."""
    spans: Timeline
    """Annotations such as steps and phases."""
    problems: list[str] = field(default_factory=list)


class _Reader:
    """Collects the events of one file."""

    def __init__(self, folder: Path | None) -> None:
        self.kernels, self.operations, self.spans = Timeline(folder), Timeline(folder), Timeline(folder)
        self.launches = Spool(LAUNCH, "number", folder)
        self.name_ids: dict[str, int] = {}
        self.steps = {category: _Steps() for category in _ANNOTATIONS}
        self.messages = Messages()
        self.memory = _Memory()
        self.threads: dict[Any, int] = {}
        self.events = self.malformed = 0

    def take(self, events: Iterable[Event]) -> None:
        """Add events; one that lacks a time or a name is counted and left out."""
        for event in events:
            self.events += 1
            try:
                phase = event["ph"]
                if phase == "X":
                    self._span(event)
                elif phase in "iI" and event.get("name") == "[memory]":
                    self.memory.add(event)
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError, struct.error):
                self.malformed += 1

    def _span(self, event: Event) -> None:
        category = event.get("cat", "")
        if category in _KERNELS:
            self._kernel(event, category)
        elif category in _LAUNCHES:
            arguments = event.get("args")
            if arguments and (number := _whole(arguments.get("correlation"))) >= 0:
                self.launches.add(number, event["ts"] * _MICRO)
        elif category == "cpu_op":
            name = event["name"]
            if not name.startswith("c10d::"):  # a collective is queued here; it runs in gloo or NCCL
                self._event(self.operations, event, self._thread(event))
        elif category in _ANNOTATIONS:
            self._annotation(event, category)

    def _kernel(self, event: Event, category: str) -> None:
        name, arguments = event["name"], event.get("args") or {}
        kind = kind_of(name, category)
        stream = _whole(arguments.get("stream", event.get("tid", 0)))
        times = self._event(self.kernels, event, stream, kind, _whole(arguments.get("correlation")))
        if kind == COMMUNICATION:
            self._message(arguments.get("Collective name") or name, arguments, *times)

    def _event(
        self, timeline: Timeline, event: Event, lane: int, kind: int = 0, launch: int = -1
    ) -> tuple[float, float]:
        """Add an event; return its start and end (s)."""
        start_s, end_s = _times(event)
        names = self.name_ids
        timeline.add(start_s, end_s, names.setdefault(event["name"], len(names)), lane, kind, launch)
        return start_s, end_s

    def _annotation(self, event: Event, category: str) -> None:
        name = event["name"]
        if category == "user_annotation" and not name.startswith(_GLOO):
            self._event(self.spans, event, self._thread(event))
        if name.startswith(_STEP):
            self.steps[category].add(_step_number(name), event)
        elif category == "user_annotation" and name.startswith("gloo:"):
            times = self._event(self.operations, event, self._thread(event), COMMUNICATION)
            self._message(name.removeprefix("gloo:"), event.get("args") or {}, *times)

    def _message(self, name: str, arguments: Event, begin_s: float, end_s: float) -> None:
        group = str(arguments.get("Process Group Name", ""))
        elements = arguments.get("Out msg nelems") or arguments.get("In msg nelems") or 0
        elements = max(elements, arguments.get("In msg nelems") or 0)
        size = min(float(elements), _MOST) * _SIZES.get(str(arguments.get("dtype", "")), 0)
        sequence = arguments.get("Seq")
        number = sequence if isinstance(sequence, int) else None
        self.messages.add(group, name, number, begin_s, end_s, size, int(arguments.get("Group size") or 0))

    def _thread(self, event: Event) -> int:
        return self.threads.setdefault(event.get("tid"), len(self.threads))


def _times(event: Event) -> tuple[float, float]:
    """Return start and end (s). Raises ValueError for times that no clock has."""
    at, length = event["ts"], event["dur"]
    if not (-_LATEST < at < _LATEST and 0 <= length < _LATEST):
        raise ValueError(f"an event at {at} for {length} us")
    start_s = at * _MICRO
    return start_s, start_s + length * _MICRO


class _Steps:
    """The steps of the profiler. On a GPU each stream has an annotation of a step; the step contains them all."""

    def __init__(self) -> None:
        self._ranges: dict[int, tuple[float, float]] = {}
        self._places: set[tuple[int, str]] = set()
        self.repeated: set[int] = set()

    def add(self, number: int, event: Event) -> None:
        begin_s, end_s = _times(event)
        place = (number, f"{event.get('pid')} {event.get('tid')}")
        if place in self._places:
            self.repeated.add(number)
        self._places.add(place)
        begin, end = self._ranges.get(number, (begin_s, end_s))
        self._ranges[number] = (min(begin, begin_s), max(end, end_s))

    def in_order(self, shift_s: float) -> list[StepRange]:
        rows = [StepRange(number, begin - shift_s, end - shift_s) for number, (begin, end) in self._ranges.items()]
        return sorted(rows, key=lambda step: step.begin_s)


_SIZES = {
    "Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Int": 4, "Long": 8, "Byte": 1, "Char": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip


def _whole(value: object) -> int:
    return value if isinstance(value, int) and -(2**31) <= value < 2**31 else -1


def _step_number(name: str) -> int:
    number = _whole(int(name[len(_STEP) :]))
    if number < 0:
        raise ValueError(f"{name[:40]} has no number of a step")
    return number


class _Memory:
    """The memory of the busiest device, thinned to the highest point of each piece."""

    def __init__(self) -> None:
        self._by_device: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
        self._every: dict[tuple[int, int], int] = {}

    def add(self, event: Event) -> None:
        arguments = event["args"]
        device = (int(arguments["Device Type"]), int(arguments["Device Id"]))
        point = (float(event["ts"]), float(arguments["Total Allocated"]), float(arguments["Total Reserved"]))
        points = self._by_device.setdefault(device, [])
        points.append(point)
        if len(points) >= 2 * MAX_MEMORY_POINTS:
            pairs = zip(points[::2], points[1::2], strict=False)
            self._by_device[device] = [max(pair, key=lambda item: item[1]) for pair in pairs]

    def points(self) -> list[tuple[float, float, float]]:
        """Return the points of the GPU, else of the processor."""
        if not self._by_device:
            return []
        device = max(self._by_device, key=lambda key: (key[0] != 0, max(p[1] for p in self._by_device[key])))
        return sorted(self._by_device[device])


def read_trace(file: IO[bytes], folder: Path | None = None) -> RankTrace:
    """Read the trace of a rank; `folder` is where events are written that do not fit into memory.

    Raises chunks.BadTrace if the file has no events; other problems are noted.
    """
    source, reader = TraceFile(file), _Reader(folder)
    for events in source.chunks():
        reader.take(events)
    return _rank_trace(source, reader)


def _rank_trace(source: TraceFile, reader: _Reader) -> RankTrace:
    is_gpu = len(reader.kernels) > 0
    timeline = reader.kernels if is_gpu else reader.operations
    origin = timeline.begin_s
    for each in (reader.kernels, reader.operations, reader.spans):
        each.shift_s = origin
    cpu, gpu = (reader.steps[category] for category in _ANNOTATIONS)
    steps = gpu if is_gpu and gpu.in_order(0.0) else cpu
    shared = source.properties.get("distributedInfo")
    shared = shared if isinstance(shared, dict) else {}
    base = source.properties.get("baseTimeNanoseconds")
    devices = source.properties.get("deviceProperties")
    return RankTrace(
        rank=rank if (rank := _whole(shared.get("rank"))) >= 0 else None,
        world_size=size if (size := _whole(shared.get("world_size"))) > 0 else None,
        host=str(source.properties.get("host_name") or ""),
        device=str(devices[0].get("name", "")) if isinstance(devices, list) and devices and is_gpu else "",
        origin_s=origin + (base / 1e9 if isinstance(base, int | float) else 0.0),
        names=list(reader.name_ids),
        timeline=timeline,
        launches=reader.launches,
        steps=steps.in_order(origin),
        messages=reader.messages.numbered(origin),
        message_count=reader.messages.count,
        memory=[(at * _MICRO - origin, used, reserved) for at, used, reserved in reader.memory.points()],
        is_gpu=is_gpu,
        events=reader.events,
        bytes_read=source.bytes_read,
        operations=reader.operations if is_gpu else Timeline(),
        spans=reader.spans,
        problems=[*source.problems, *_problems(reader, steps)],
    )


def _problems(reader: _Reader, steps: _Steps) -> Iterator[str]:
    if reader.malformed:
        yield f"{reader.malformed} of {reader.events} events have no valid name, time or duration"
    if steps.repeated:
        listed = ", ".join(map(str, sorted(steps.repeated)[:5]))
        yield f"steps are recorded more than once ({listed}): the file may contain several traces"
    if not len(reader.kernels) and not len(reader.operations):
        yield "the trace has no kernels and no operations"
