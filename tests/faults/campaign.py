"""A campaign: strike, wait until everything has recovered, and check what the fault has left, many times."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

from parlab.lab.models import Attempt
from runners.protocol import RunState
from tests.faults.kinds import KINDS, Fault, problem_of_cause
from tests.faults.stack import Stack
from tests.faults.workload import RANKS, Key, Workload, Wrong
from tests.patience import PATIENCE_S

END_WITHIN_S = 15.0
"""Promised: an attempt ends on all nodes within this time."""
MAX_PAUSE_S = 2.0
"""Pause before a fault, and before its repair, so that they meet every phase."""


@dataclass
class Row:
    """One fault and its outcome."""

    number: int
    kind: str
    victim: str
    recovered_s: float
    """Until all runs made steps again, with nothing else alive."""
    ended_s: float | None
    """Until the attempts that it ended had ended, with no process left; None if it ended none."""
    wrong: list[str] = field(default_factory=list)


@dataclass
class Campaign:
    """Faults from a seed."""

    stack: Stack
    workload: Workload
    rng: random.Random
    kinds: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)
    checked: set[Key] = field(default_factory=set)

    def run(self, kills: int) -> None:
        """Inject faults; what goes wrong is in the rows."""
        self.workload.launch()
        self._settle({}, time.monotonic())
        while len(self.rows) < kills:
            time.sleep(self.rng.uniform(0, MAX_PAUSE_S))
            kind = self.rng.choice(self.kinds)
            least, attempts = self.workload.steps(), self.workload.current()
            began = time.monotonic()
            fault = KINDS[kind](self.stack, self.workload, self.rng)
            if fault is not None:
                self.rows.append(self._judge(kind, fault, least, attempts, began))
                self._print(self.rows[-1])
        self._finish()

    def _judge(self, kind: str, fault: Fault, least: dict[Key, int], attempts: dict[int, Attempt], began: float) -> Row:
        row = Row(len(self.rows) + 1, kind, fault.victim, 0.0, None)
        repair_at = began + self.rng.uniform(0, MAX_PAUSE_S)
        try:
            if kind == "node":
                row.ended_s = self._wait_for_ends(fault, began)
                repair_at = 0.0
            if fault.repair is not None:
                time.sleep(max(0.0, repair_at - time.monotonic()))
                fault.repair()
            if fault.ends and kind != "node":
                row.ended_s = self._wait_for_ends(fault, began)
            going_on = {key: step for key, step in least.items() if key not in fault.ends}
            row.recovered_s = self._settle(going_on, began)
        except Wrong as error:
            row.wrong.append(str(error))
            return row
        for attempt in attempts.values():
            row.wrong += self._problems(fault, Attempt.objects.select_related("run").get(pk=attempt.pk))
        return row

    def _wait_for_ends(self, fault: Fault, began: float) -> float:
        """Wait until the attempts that a fault ends have ended, with no process left; return the seconds."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            alive = [key for key, _ in self.stack.processes() if key in fault.ends]
            states = {
                key: Attempt.objects.values_list("state", flat=True).get(run_id=key[0], number=key[1])
                for key in fault.ends
            }
            if not alive and all(RunState(state).is_final for state in states.values()):
                return time.monotonic() - began
            if time.monotonic() > deadline:
                raise Wrong(f"not ended within {PATIENCE_S:.0f} s: {states}, {len(alive)} processes")
            time.sleep(0.05)

    def _settle(self, least: dict[Key, int], began: float) -> float:
        """Wait until all runs make steps; return the seconds since the fault."""
        deadline = time.monotonic() + PATIENCE_S
        while reason := self.workload.why_unsettled(least):
            if time.monotonic() > deadline:
                raise Wrong(f"not recovered within {PATIENCE_S:.0f} s: {reason}")
            self.workload.relaunch_ended()
            time.sleep(0.1)
        return time.monotonic() - began

    def _problems(self, fault: Fault, attempt: Attempt) -> list[str]:
        """Return what is wrong with an attempt that was active when the fault came."""
        key = attempt.run_id, attempt.number
        expected = fault.ends.get(key, RunState.RUNNING)
        if attempt.state != expected:
            return [f"{attempt} is {attempt.state}, not {expected.value}: {attempt.reason}"]
        try:
            if expected == RunState.RUNNING:
                self.workload.check_series(attempt)
                return []
            self._check_ended(attempt, {rank: step for (each, rank), step in fault.spooled.items() if each == key})
        except Wrong as error:
            return [str(error)]
        problem = problem_of_cause(fault, attempt)
        return [f"{attempt}: {problem}"] if problem else []

    def _check_ended(self, attempt: Attempt, spooled: dict[int, int]) -> None:
        self.checked.add((attempt.run_id, attempt.number))
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.workload.check_ended(attempt, spooled=spooled)
                return
            except Wrong:
                # A node that comes back still ships what its supervisor had written before it was killed.
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def _finish(self) -> None:
        """Cancel all runs; nothing may be left anywhere."""
        row = Row(len(self.rows) + 1, "end", "cancel of all runs", 0.0, None)
        began = time.monotonic()
        attempts = self.workload.current()
        self.workload.cancel_all()
        fault = Fault("", ends={(run, attempt.number): RunState.CANCELLED for run, attempt in attempts.items()})
        try:
            row.ended_s = self._wait_for_ends(fault, began)
            self._wait_until_empty()
        except Wrong as error:
            row.wrong.append(str(error))
        for attempt in attempts.values():
            row.wrong += self._problems(fault, Attempt.objects.select_related("run").get(pk=attempt.pk))
        for attempt in Attempt.objects.select_related("run"):
            if (attempt.run_id, attempt.number) not in self.checked:
                row.wrong.append(f"{attempt} was never checked: {attempt.state} {attempt.reason}")
        row.recovered_s = time.monotonic() - began
        self.rows.append(row)
        self._print(row)

    def _wait_until_empty(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while held := [str(run) for node in self.stack.daemons for run in self.stack.runs(node)]:
            if time.monotonic() > deadline:
                raise Wrong(f"not shipped within {PATIENCE_S:.0f} s: {held}")
            time.sleep(0.1)
        jobs = self.stack.cluster.run("squeue", "--noheader") if self.stack.cluster else ""
        if jobs:
            raise Wrong(f"jobs are left: {jobs}")

    def _print(self, row: Row) -> None:
        ended = f"{row.ended_s:5.1f}" if row.ended_s is not None else "    -"
        text = f"{row.number:4d} {row.kind:<10} {row.victim:<34} ended {ended} s  recovered {row.recovered_s:5.1f} s"
        sys.stdout.write("\n   WRONG: ".join([text, *row.wrong]) + "\n")
        sys.stdout.flush()

    def summary(self) -> dict[str, Any]:
        """Return all rows, and the events that were printed, stored, lost and doubled."""
        tallies = self.workload.tallies.values()
        return {
            "faults": sum(row.kind != "end" for row in self.rows),
            "wrong": sum(bool(row.wrong) for row in self.rows),
            "attempts": len(self.workload.tallies),
            "ranks_per_node": RANKS,
            "events_printed": sum(tally.printed for tally in tallies),
            "events_stored": sum(tally.stored for tally in tallies),
            "rows": [asdict(row) for row in self.rows],
        }

    def table(self) -> str:
        """Return the outcome by kind as a Markdown table."""
        by_kind: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            by_kind[row.kind].append(row)
        lines = [
            "| fault | count | wrong | recovery median / worst (s) | ended everywhere median / worst (s) |",
            "|---|---|---|---|---|",
        ]
        for kind, rows in sorted(by_kind.items()):
            wrong = sum(bool(row.wrong) for row in rows)
            ends = [row.ended_s for row in rows if row.ended_s is not None]
            recovered = _spread([row.recovered_s for row in rows])
            lines.append(f"| {kind} | {len(rows)} | {wrong} | {recovered} | {_spread(ends)} |")
        return "\n".join(lines)


def _spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} / {max(seconds):.1f}" if seconds else "-"
