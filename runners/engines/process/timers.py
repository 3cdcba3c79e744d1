"""Timers of a step, with Megatron's timer names.

On a CPU a mark is a clock reading. On a GPU it is an event in the compute stream, read after the device has finished
the step: no clock is read before the work it measures is done, and the device is never made to wait inside a step.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

NO_MICRO_BATCH = -1
"""Micro batch of work that is done once per step, like the optimizer."""


class Clock(Protocol):
    """Sets marks during a step and returns their times afterwards, in seconds since the start of the step."""

    def begin(self) -> None: ...
    def mark(self) -> Any: ...
    def finish(self) -> float: ...
    def seconds(self, mark: Any) -> float: ...


class CpuClock:
    """Work is done when the call returns: a mark is a clock reading."""

    def begin(self) -> None:
        self._origin = time.perf_counter()

    def mark(self) -> float:
        return time.perf_counter()

    def finish(self) -> float:
        return time.perf_counter() - self._origin

    def seconds(self, mark: float) -> float:
        return mark - self._origin


class CudaClock:
    """Work is only queued when the call returns: a mark is an event on the device's stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._origin_event = _event()
        self._events: list[torch.cuda.Event] = []
        self._used = 0

    def begin(self) -> None:
        self._used = 0
        torch.cuda.synchronize(self._device)
        self._origin = time.perf_counter()
        self._origin_event.record()

    def mark(self) -> torch.cuda.Event:
        if self._used == len(self._events):  # only in the first step: later ones use the same events again
            self._events.append(_event())
        event = self._events[self._used]
        self._used += 1
        event.record()
        return event

    def finish(self) -> float:
        torch.cuda.synchronize(self._device)
        return time.perf_counter() - self._origin

    def seconds(self, mark: torch.cuda.Event) -> float:
        return float(self._origin_event.elapsed_time(mark)) / 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class Recorder(Protocol):
    """Marks the step and its spans in the trace of a profiler."""

    def begin_step(self) -> None: ...
    def finish_step(self) -> None: ...
    def enter(self, name: str) -> Any: ...
    def leave(self, mark: Any) -> None: ...


class StepTimes(NamedTuple):
    step_time_s: float
    timers_s: dict[str, float]
    """Timer name -> its sum over the step; only timers that ran."""
    operations: list[tuple[str, int, float, float]]
    """(timer name, micro batch, begin, end) in seconds since the start of the step, in the order of their ends."""


class Timers:
    """Stopwatches of one rank: begin_step(), then `with span(...)` around each piece of work, then finish_step()."""

    recorder: ClassVar[Recorder | None] = None
    """Set while a profiler records a step of this process."""

    def __init__(self, device: torch.device) -> None:
        self._clock: Clock = CudaClock(device) if device.type == "cuda" else CpuClock()
        self._spans: list[_Span] = []

    def begin_step(self) -> None:
        """Start the clock of the step, after work that was queued on the device before has finished."""
        self._spans = []
        self._clock.begin()
        if Timers.recorder is not None:
            Timers.recorder.begin_step()

    def span(self, name: str, micro_batch: int = NO_MICRO_BATCH) -> _Span:
        """Time the body of a with statement."""
        return _Span(self._clock, self._spans, name, micro_batch)

    def finish_step(self) -> StepTimes:
        """Stop the clock of the step once the device has finished, and read all marks."""
        step_time_s = self._clock.finish()
        if Timers.recorder is not None:
            Timers.recorder.finish_step()
        seconds = self._clock.seconds
        operations = [
            (span.name, span.micro_batch, round(seconds(span.begin), 6), round(seconds(span.end), 6))
            for span in self._spans
        ]
        timers_s: dict[str, float] = {}
        for span in self._spans:
            timers_s[span.name] = timers_s.get(span.name, 0.0) + seconds(span.end) - seconds(span.begin)
        return StepTimes(step_time_s, timers_s, operations)


class _Span:
    """One timed block. A class, because contextlib takes longer than a short send."""

    __slots__ = ("_clock", "_mark", "_spans", "begin", "end", "micro_batch", "name")

    def __init__(self, clock: Clock, spans: list[_Span], name: str, micro_batch: int) -> None:
        self._clock = clock
        self._spans = spans
        self.name = name
        self.micro_batch = micro_batch

    def __enter__(self) -> None:
        recorder = Timers.recorder
        self._mark = recorder.enter(self.name) if recorder is not None else None
        self.begin = self._clock.mark()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end = self._clock.mark()
        if self._mark is not None and Timers.recorder is not None:
            Timers.recorder.leave(self._mark)
        self._spans.append(self)
