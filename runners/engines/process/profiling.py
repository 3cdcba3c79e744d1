"""Record steps with torch.profiler and write the trace where the supervisor ships it from; see docs/use/time.md."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from runners.config import RunConfig
from runners.engines.process.timers import Timers
from runners.supervisor.files import DIRECTORY, trace_name

FIRST_RANKS = 8
"""Ranks that record if the configuration names none."""
STEP = "ProfilerStep#"
"""Name of a step in a trace, as torch.profiler's own schedule writes it."""


class StepRecorder:
    """Records the steps of `profile.steps`; on other steps and ranks it costs one comparison."""

    def __init__(self, config: RunConfig, rank: int, device: torch.device) -> None:
        chosen = config.profile.ranks or range(FIRST_RANKS)
        self._steps = list(config.profile.steps) if rank in chosen else []
        self._rank = rank
        self._activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self._has_memory = config.profile.memory
        self._profile: profile | None = None
        self._step = 0
        self._mark: Any = None

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Record the body if it is one of the chosen steps; its clock starts and stops inside."""
        self.begin(number)
        yield
        self.end(number)

    def begin(self, number: int) -> None:
        """Start the profiler before the first chosen step."""
        if number not in self._steps:
            return
        if self._profile is None:
            self._profile = profile(activities=self._activities, profile_memory=self._has_memory, acc_events=True)
            self._profile.start()
        self._step = number
        Timers.recorder = self

    def end(self, number: int) -> None:
        """Write the trace after the last chosen step."""
        if self._profile is None or number not in self._steps:
            return
        Timers.recorder = None
        if number == self._steps[-1]:
            recorded, self._profile, self._steps = self._profile, None, []
            recorded.stop()
            self._write(recorded)

    def begin_step(self) -> None:
        """Mark the beginning of the timed part of a step."""
        self._mark = self.enter(f"{STEP}{self._step}")

    def finish_step(self) -> None:
        """Mark its end."""
        if self._mark is not None:
            self.leave(self._mark)
            self._mark = None

    def enter(self, name: str) -> Any:
        """Begin a span in the trace."""
        mark: Any = record_function(name)
        mark.__enter__()
        return mark

    def leave(self, mark: Any) -> None:
        """End a span."""
        mark.__exit__(None, None, None)

    def _write(self, recorded: profile) -> None:
        """Write the file under another name first: the supervisor ships what has its final name."""
        directory = Path(DIRECTORY) if Path(DIRECTORY).is_dir() else Path()
        draft = directory / f".{trace_name(self._rank)}"  # the profiler packs a file whose name ends in .gz
        recorded.export_chrome_trace(str(draft))
        os.replace(draft, directory / trace_name(self._rank))
