"""The events of a trace file -> columns of a rank: kernels, launches, steps, collectives, memory.

Only what the breakdown needs is stored: 40 bytes per kernel. Names are stored once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .chunks import Event, TraceFile
from .intervals import Times
from .kinds import COMMUNICATION, kind_of

_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "Runtime")
_ANNOTATIONS = ("user_annotation", "gpu_user_annotation")
_STEP = "ProfilerStep#"
_GLOO = ("gloo:", "c10d::", "nccl:")
MAX_MEMORY_POINTS = 4_000
_MICRO = 1e-6


class Message(NamedTuple):
    """A collective of one rank."""

    group: str
    name: str
    sequence: int
    """Number within its group and name; from the trace where it has one, else counted."""
    begin_s: float
    end_s: float
    bytes: float
    group_size: int


class StepRange(NamedTuple):
    """A step of the profiler."""

    number: int
    begin_s: float
    end_s: float


class Events(NamedTuple):
    """Events of threads: of the processor, or annotations."""

    starts: Times
    ends: Times
    lanes: NDArray[np.int32]
    names: NDArray[np.int32]


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
    starts: Times
    ends: Times
    kinds: NDArray[np.int8]
    streams: NDArray[np.int32]
    name_ids: NDArray[np.int32]
    launches: Times
    """When the launch of each kernel was called; NaN if unknown."""
    steps: list[StepRange]
    messages: list[Message]
    memory: list[tuple[float, float, float]]
    """(time, allocated, reserved bytes), at most some thousand points; the highest of each piece."""
    is_gpu: bool
    events: int
    bytes_read: int
    operations: Events
    """Of the processor, in a trace of a GPU."""
    spans: Events
    """Annotations such as steps and phases."""
    properties: Mapping[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def begin_s(self) -> float:
        """Start of the first kernel or operation."""
        return float(self.starts.min()) if len(self.starts) else 0.0

    @property
    def end_s(self) -> float:
        """End of the last one."""
        return float(self.ends.max()) if len(self.ends) else 0.0


class _Columns:
    """Columns that grow with the events."""

    def __init__(self) -> None:
        self.starts, self.lengths = array("d"), array("d")
        self.kinds, self.streams, self.names, self.correlations = array("b"), array("i"), array("i"), array("q")

    def add(self, start: float, length: float, kind: int, stream: int, name: int, correlation: int) -> None:
        self.starts.append(start)
        self.lengths.append(length)
        self.kinds.append(kind)
        self.streams.append(stream)
        self.names.append(name)
        self.correlations.append(correlation)


class _Reader:
    """Collects the events of one file."""

    def __init__(self) -> None:
        self.kernels, self.operations, self.spans = _Columns(), _Columns(), _Columns()
        self.launch_ids, self.launch_times = array("q"), array("d")
        self.name_ids: dict[str, int] = {}
        self.cpu_steps: dict[int, tuple[float, float]] = {}
        self.gpu_steps: dict[int, tuple[float, float]] = {}
        self.messages: list[tuple[str, str, int | None, float, float, float, int]] = []
        self.memory = _Memory()
        self.threads: dict[Any, int] = {}
        self.texts: dict[str, str] = {}
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
            except (KeyError, TypeError, ValueError, OverflowError):
                self.malformed += 1

    def _span(self, event: Event) -> None:
        category = event.get("cat", "")
        if category in _KERNELS:
            self._kernel(event, category)
        elif category in _LAUNCHES:
            arguments = event.get("args")
            if arguments and (correlation := arguments.get("correlation")) is not None:
                self.launch_ids.append(correlation)
                self.launch_times.append(event["ts"])
        elif category == "cpu_op":
            name = event["name"]
            if not name.startswith("c10d::"):  # a collective is queued here; it runs in gloo or NCCL
                self._operation(event, name, 0)
        elif category in _ANNOTATIONS:
            self._annotation(event, category)

    def _kernel(self, event: Event, category: str) -> None:
        name, arguments = event["name"], event.get("args") or {}
        kind = kind_of(name, category)
        start, length = event["ts"], event["dur"]
        stream = arguments.get("stream", event.get("tid", 0))
        self.kernels.add(start, length, kind, _whole(stream), self._name(name), _whole(arguments.get("correlation")))
        if kind == COMMUNICATION:
            self._message(arguments.get("Collective name") or name, arguments, start, length)

    def _operation(self, event: Event, name: str, kind: int) -> None:
        thread = self.threads.setdefault(event.get("tid"), len(self.threads))
        self.operations.add(event["ts"], event["dur"], kind, thread, self._name(name), -1)

    def _annotation(self, event: Event, category: str) -> None:
        name = event["name"]
        if category == "user_annotation" and not name.startswith(_GLOO):
            thread = self.threads.setdefault(event.get("tid"), len(self.threads))
            self.spans.add(event["ts"], event["dur"], 0, thread, self._name(name), -1)
        if name.startswith(_STEP):
            steps = self.gpu_steps if category == "gpu_user_annotation" else self.cpu_steps
            steps[int(name[len(_STEP) :])] = (event["ts"], event["ts"] + event["dur"])
        elif name.startswith(_GLOO) and category == "user_annotation" and name.startswith("gloo:"):
            self._operation(event, name, COMMUNICATION)
            self._message(name.removeprefix("gloo:"), event.get("args") or {}, event["ts"], event["dur"])

    def _message(self, name: str, arguments: Event, start: float, length: float) -> None:
        group = str(arguments.get("Process Group Name", ""))
        elements = arguments.get("Out msg nelems") or arguments.get("In msg nelems") or 0
        elements = max(elements, arguments.get("In msg nelems") or 0)
        size = float(elements) * _SIZES.get(str(arguments.get("dtype", "")), 0)
        sequence = arguments.get("Seq")
        number = sequence if isinstance(sequence, int) else None
        ranks = arguments.get("Group size") or 0
        # Each event has its own copy of these texts.
        group, name = self.texts.setdefault(group, group), self.texts.setdefault(name, name)
        self.messages.append((group, name, number, start, start + length, size, int(ranks)))

    def _name(self, name: str) -> int:
        return self.name_ids.setdefault(name, len(self.name_ids))


_SIZES = {
    "Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Int": 4, "Long": 8, "Byte": 1, "Char": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip


def _whole(value: object) -> int:
    return value if isinstance(value, int) and -(2**31) <= value < 2**31 else -1


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


def read_trace(file: IO[bytes]) -> RankTrace:
    """Read the trace of a rank. Raises chunks.BadTrace if the file has no events; other problems are noted."""
    source, reader = TraceFile(file), _Reader()
    for events in source.chunks():
        reader.take(events)
    return _rank_trace(source, reader)


def _rank_trace(source: TraceFile, reader: _Reader) -> RankTrace:
    problems = list(source.problems)
    if reader.malformed:
        problems.append(f"{reader.malformed} of {reader.events} events have no valid name, time or duration")
    is_gpu = len(reader.kernels.starts) > 0
    columns = reader.kernels if is_gpu else reader.operations
    starts, ends, valid = _spans(columns)
    if not valid.all():
        problems.append(f"{int((~valid).sum())} events with times that are not finite are left out")
    # A selection copies the columns, a slice does not.
    chosen = slice(None) if valid.all() else valid
    starts, ends = starts[chosen], ends[chosen]
    origin = float(starts.min()) if len(starts) else 0.0
    starts -= origin
    ends -= origin
    shared = source.properties.get("distributedInfo")
    shared = shared if isinstance(shared, dict) else {}
    base = source.properties.get("baseTimeNanoseconds")
    step_ranges = reader.gpu_steps if is_gpu and reader.gpu_steps else reader.cpu_steps
    steps = [
        StepRange(number, begin * _MICRO - origin, end * _MICRO - origin)
        for number, (begin, end) in sorted(step_ranges.items())
    ]
    if not len(valid):
        problems.append("the trace has no kernels and no operations")
    devices = source.properties.get("deviceProperties")
    return RankTrace(
        rank=shared.get("rank") if isinstance(shared.get("rank"), int) else None,
        world_size=shared.get("world_size") if isinstance(shared.get("world_size"), int) else None,
        host=str(source.properties.get("host_name") or ""),
        device=str(devices[0].get("name", "")) if isinstance(devices, list) and devices and is_gpu else "",
        origin_s=origin + (base / 1e9 if isinstance(base, int | float) else 0.0),
        names=list(reader.name_ids),
        starts=starts,
        ends=ends,
        kinds=np.asarray(columns.kinds, np.int8)[chosen],
        streams=np.asarray(columns.streams, np.int32)[chosen],
        name_ids=np.asarray(columns.names, np.int32)[chosen],
        launches=_launches(reader, np.asarray(columns.correlations, np.int64)[chosen], origin),
        steps=steps,
        messages=_messages(reader, origin),
        memory=[(at * _MICRO - origin, used, reserved) for at, used, reserved in reader.memory.points()],
        is_gpu=is_gpu,
        events=reader.events,
        bytes_read=source.bytes_read,
        operations=_events(reader.operations, origin),
        spans=_events(reader.spans, origin),
        properties=source.properties,
        problems=problems,
    )


def _spans(columns: _Columns) -> tuple[Times, Times, NDArray[np.bool_]]:
    """Return starts and ends of events in seconds, and whether both are finite."""
    starts: Times = np.asarray(columns.starts) * _MICRO
    ends = np.maximum(np.asarray(columns.lengths), 0.0)
    ends *= _MICRO
    ends += starts
    return starts, ends, np.isfinite(starts) & np.isfinite(ends)


def _events(columns: _Columns, origin: float) -> Events:
    starts, ends, valid = _spans(columns)
    lanes, names = np.asarray(columns.streams, np.int32), np.asarray(columns.names, np.int32)
    return Events(starts[valid] - origin, ends[valid] - origin, lanes[valid], names[valid])


def _launches(reader: _Reader, correlations: NDArray[np.int64], origin: float) -> Times:
    """Return the time of the launch of each kernel (s after `origin`); NaN without one."""
    ids, times = np.asarray(reader.launch_ids, np.int64), np.asarray(reader.launch_times)
    if not len(ids):
        return np.full(len(correlations), np.nan)
    order = np.argsort(ids, kind="stable")
    ids, times = ids[order], times[order]
    place = np.minimum(np.searchsorted(ids, correlations), len(ids) - 1)
    launched: Times = np.where((ids[place] == correlations) & (correlations >= 0), times[place], np.nan)
    launched *= _MICRO
    launched -= origin
    return launched


def _messages(reader: _Reader, origin: float) -> list[Message]:
    """Number the collectives of each group and name in the order of their start, unless the trace numbers them."""
    counted: dict[tuple[str, str], int] = {}
    messages = []
    for group, name, sequence, begin, end, size, ranks in sorted(reader.messages, key=lambda item: item[3]):
        key = (group, name)
        counted[key] = counted.get(key, -1) + 1
        number = counted[key] if sequence is None else sequence
        messages.append(Message(group, name, number, begin * _MICRO - origin, end * _MICRO - origin, size, ranks))
    return messages
