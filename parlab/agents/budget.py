"""What an agent may start: a number of runs and of GPU hours, which the person sets who starts `parlab mcp`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from parlab.client.server.experiments import FINAL
from parlab.client.settings import home

ReadRun = Callable[[str, int], Mapping[str, Any]]


class Refusal(ValueError):
    """The budget does not allow it."""


class Started(NamedTuple):
    """A run that the agent has started, with the GPUs and hours that were set aside for it."""

    experiment: str
    number: int
    gpus: int
    hours: float


class Budget:
    """Counts what an agent has started in a file of the client's directory, so that a restart forgets nothing."""

    def __init__(self, agent: str, *, runs: int, gpu_hours: float) -> None:
        self.runs, self.gpu_hours = runs, gpu_hours
        self._path = home() / "agents" / f"{re.sub(r'[^A-Za-z0-9_-]', '-', agent)[:60]}.json"

    def started(self) -> list[Started]:
        """Return what the agent has started."""
        try:
            return [Started(*row) for row in json.loads(self._path.read_text(encoding="utf-8"))]
        except FileNotFoundError:
            return []

    def spent(self, read: ReadRun) -> float:
        """Return the GPU hours of the runs: of those that have ended what they took, else what was set aside."""
        return sum(_gpu_hours(each, read(each.experiment, each.number)) for each in self.started())

    def check(self, count: int, gpus: int, hours: float, read: ReadRun) -> None:
        """Raise Refusal where so many more runs are beyond the budget."""
        held = self.started()
        if len(held) + count > self.runs:
            raise Refusal(
                f"{count} runs are beyond the budget: {len(held)} of {self.runs} runs are used; ask the person who"
                " started `parlab mcp` for a larger --runs"
            )
        spent, asked = self.spent(read), count * gpus * hours
        if spent + asked > self.gpu_hours:
            raise Refusal(
                f"{asked:g} GPU hours are beyond the budget: {spent:.3g} of {self.gpu_hours:g} are used; ask the person"
                " who started `parlab mcp` for more --gpu-hours"
            )

    def add(self, runs: list[Started]) -> None:
        """Count runs as started."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps([*self.started(), *runs]), encoding="utf-8")
        draft.replace(self._path)


def _gpu_hours(started: Started, run: Mapping[str, Any]) -> float:
    if run.get("state") not in FINAL:
        return started.gpus * started.hours
    if not run.get("started_at"):
        return 0.0
    ended = datetime.fromisoformat(str(run["ended_at"])) if run.get("ended_at") else datetime.now(UTC)
    seconds = (ended - datetime.fromisoformat(str(run["started_at"]))).total_seconds()
    return started.gpus * max(seconds, 0.0) / 3600
