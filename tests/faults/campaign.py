"""A campaign: strike, wait until everything has recovered, and check what the fault has left, many times."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from django.db import DatabaseError, InterfaceError, connection
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from parlab.lab.models import Attempt
from runners.wire.protocol import RunState
from tests.faults.injected import KINDS
from tests.faults.kinds import Fault, Scene, problem_of_cause
from tests.faults.rows import END, RECOVERY_S, Row
from tests.faults.stack import Stack
from tests.faults.workload import RANKS, Key, Workload, Wrong
from tests.patience import PATIENCE_S

MAX_PAUSE_S = 2.0
"""Pause before a fault, and before its repair, so that they meet every phase."""
POLL_S = 0.1
"""Between two looks, which take processor time from what recovers."""
LONG_SHARE = 0.2
"""Share of the moments whose faults may last for up to a minute: they last at the same time."""
MAY_LAST = frozenset({"node", "pause-daemon", "pause-server", "pause-supervisor", "read-only", "web-away"})
LASTS = frozenset({"node"})
"""Kinds that always last longer than a lease."""
AWAY = (DatabaseError, InterfaceError, RedisError, OperationalError)
"""What is raised while the database or Redis is away."""


@dataclass
class Campaign:
    """Faults from a seed."""

    stack: Stack
    workload: Workload
    rng: random.Random
    kinds: tuple[str, ...]
    at_once: int = 1
    """Most faults at one moment."""
    first: int = 1
    """Number of the first fault."""
    keep: Callable[[Row], None] = lambda row: None
    """Called with each fault once it is judged."""
    rows: list[Row] = field(default_factory=list)
    checked: set[Key] = field(default_factory=set)
    is_told_to_stop: bool = False

    def run(self, kills: int) -> None:
        """Inject faults until they are enough, or something has not recovered; what goes wrong is in the rows."""
        self.workload.launch()
        self._settle({}, time.monotonic(), {})
        is_settled = True
        while len(self.rows) < kills and is_settled and not self.is_told_to_stop:
            time.sleep(self.rng.uniform(0, MAX_PAUSE_S))
            count = min(self.rng.randint(1, self.at_once), kills - len(self.rows))
            least, attempts = self.workload.steps(), self.workload.current()
            self.workload.mark_reports()
            began = time.monotonic()
            struck = self._strike(count)
            rows = [
                Row(self.first + len(self.rows) + n, kind, fault.victim, 0.0, None)
                for n, (kind, fault) in enumerate(struck)
            ]
            is_settled = self._judge(rows, [fault for _, fault in struck], least, attempts, began)
            self.rows += rows
            for row in rows:
                self._print(row)
                self.keep(row)
        self._finish()

    def stop(self, *_: object) -> None:
        """Inject no more faults; a signal handler."""
        self.is_told_to_stop = True

    def _strike(self, count: int) -> list[tuple[str, Fault]]:
        """Let some faults happen at once, no two of them on one victim or attempt."""
        brief = [kind for kind in self.kinds if kind not in LASTS]
        is_long = not brief or self.rng.random() < LONG_SHARE
        scene = Scene(self.stack, self.workload, self.rng, is_long=is_long)
        kinds = list(self.kinds if is_long else brief)
        struck: list[tuple[str, Fault]] = []
        while kinds and len(struck) < count:
            # Before others have taken the victims of those that make the moment long.
            lasting = [kind for kind in kinds if kind in MAY_LAST] if is_long and not struck else []
            kind = self.rng.choice(lasting or kinds)
            fault = KINDS[kind](scene)
            if fault is None:
                kinds.remove(kind)  # nothing is left that it could strike
                continue
            scene.ending |= set(fault.ends)
            struck.append((kind, fault))
        return struck

    def _judge(
        self,
        rows: list[Row],
        faults: list[Fault],
        least: dict[Key, int],
        attempts: dict[int, Attempt],
        began: float,
    ) -> bool:
        """Repair, wait until everything has recovered, and check all attempts; return whether it has recovered."""
        ends = {key for fault in faults for key in fault.ends}
        waits: dict[str, float] = {}
        try:
            ended_s = self._repair(faults, ends, began)
            recovered_s = self._settle({key: step for key, step in least.items() if key not in ends}, began, waits)
        except Wrong as error:
            rows[0].wrong.append(str(error))
            rows[0].waits = waits
            return False
        # A victim that comes back late was away until its attempts had ended.
        lasted_s = [ended_s if fault.comes_back_late else fault.hold_s for fault in faults]
        for row, fault, held_s in zip(rows, faults, lasted_s, strict=True):
            row.held_s, row.waits = held_s, waits
            row.recovered_s = max(0.0, recovered_s - max(lasted_s))
            row.ended_s = ended_s if fault.ends else None
            row.wrong += fault.wrong
        for attempt in attempts.values():
            key = attempt.run_id, attempt.number
            pairs = zip(rows, faults, strict=True)
            row, fault_of = next(((row, fault) for row, fault in pairs if key in fault.ends), (rows[0], None))
            row.wrong += self._problems(fault_of, Attempt.objects.select_related("run").get(pk=attempt.pk))
        return True

    def _repair(self, faults: list[Fault], ends: set[Key], began: float) -> float:
        """Repair each fault once it has lasted its time, those that come back late once attempts have ended.

        Faults of one moment last at the same time. Return the seconds until the attempts had ended.
        """
        now = time.monotonic()
        due = [
            (now + self.rng.uniform(0, MAX_PAUSE_S) + fault.hold_s, fault.repair)
            for fault in faults
            if fault.repair is not None and not fault.comes_back_late
        ]
        due.sort(key=lambda pair: pair[0])
        late = [fault.repair for fault in faults if fault.repair is not None and fault.comes_back_late]
        ended_s = None if ends else 0.0
        deadline = now + PATIENCE_S + max((fault.hold_s for fault in faults), default=0.0)
        while due or ended_s is None:
            if due and time.monotonic() >= due[0][0]:
                due.pop(0)[1]()
            elif ended_s is None and not (active := self._active(ends)):
                ended_s = time.monotonic() - began
                for repair in late:
                    repair()
            elif ended_s is None and time.monotonic() > deadline:
                raise Wrong(f"not ended within {PATIENCE_S:.0f} s: {active}")
            else:
                time.sleep(POLL_S)
        return ended_s

    def _active(self, attempts: set[Key]) -> str:
        """Return what is left of attempts that have to end; empty once they have, with no process left."""
        states = self._states(attempts)
        if not all(state is not None and RunState(state).is_final for state in states.values()):
            return f"the states of {states}"
        left = [process.pid for key, process in self.stack.processes() if key in attempts]
        return f"processes {left} of {states}" if left else ""

    def _states(self, attempts: set[Key]) -> dict[Key, str | None]:
        """Return the states of attempts; None while the database is away, as another fault of the moment wants it."""
        try:
            rows = Attempt.objects.values_list("state", flat=True)
            return {key: rows.get(run_id=key[0], number=key[1]) for key in attempts}
        except AWAY:
            connection.close()
            return dict.fromkeys(attempts)

    def _settle(self, least: dict[Key, int], began: float, waits: dict[str, float]) -> float:
        """Wait until all runs make steps; return the seconds since the fault, and in `waits` those of each reason."""
        deadline = time.monotonic() + PATIENCE_S
        since = time.monotonic()
        while reason := self._why_unsettled(least):
            if time.monotonic() > deadline:
                raise Wrong(f"not recovered within {PATIENCE_S:.0f} s: {reason}")
            time.sleep(POLL_S)
            before, since = since, time.monotonic()
            # Steps and processes that are only counted differently are one reason.
            without_counts = re.sub(r"(?<= has )(made )?\d+|\b\d+(?= steps are)", "some", reason)[:200]
            waits[without_counts] = waits.get(without_counts, 0.0) + since - before
        return time.monotonic() - began

    def _why_unsettled(self, least: dict[Key, int]) -> str:
        """Return what is still to happen, and start the next attempt of runs that have ended."""
        try:
            self.workload.relaunch_ended()
            return self.workload.why_unsettled(least)
        except AWAY as error:
            connection.close()
            return f"{type(error).__name__}: {error}"

    def _problems(self, fault: Fault | None, attempt: Attempt) -> list[str]:
        """Return what is wrong with an attempt that was active when a fault came: the one that ends it, if one does."""
        key = attempt.run_id, attempt.number
        expected = fault.ends[key] if fault is not None else RunState.RUNNING
        if attempt.state != expected:
            return [f"{attempt} is {attempt.state}, not {expected.value}: {attempt.reason}"]
        try:
            if fault is None:
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
        row = Row(self.first + len(self.rows), END, "cancel of all runs", 0.0, None)
        began = time.monotonic()
        for step in (self.workload.end_reports, lambda: self._cancel_all(row, began), lambda: self._check_all(row)):
            try:
                step()
            except (Wrong, *AWAY) as error:
                row.wrong.append(f"{type(error).__name__}: {error}")
                connection.close()
        row.recovered_s = time.monotonic() - began
        row.faults = len(self.rows)
        row.printed = sum(tally.printed for tally in self.workload.tallies.values())
        row.stored = sum(tally.stored for tally in self.workload.tallies.values())
        self.rows.append(row)
        self._print(row)
        self.keep(row)

    def _cancel_all(self, row: Row, began: float) -> None:
        attempts = self.workload.current()
        self.workload.cancel_all()
        fault = Fault("", ends={(run, attempt.number): RunState.CANCELLED for run, attempt in attempts.items()})
        row.ended_s = self._repair([], set(fault.ends), began)
        self._wait_until_empty()
        for attempt in attempts.values():
            row.wrong += self._problems(fault, Attempt.objects.select_related("run").get(pk=attempt.pk))

    def _check_all(self, row: Row) -> None:
        for attempt in Attempt.objects.filter(run__experiment=self.workload.experiment).select_related("run"):
            if (attempt.run_id, attempt.number) not in self.checked:
                row.wrong.append(f"{attempt} was never checked: {attempt.state} {attempt.reason}")

    def _wait_until_empty(self) -> None:
        """Wait until all output is shipped and no job is left, also none that is just completing."""
        deadline = time.monotonic() + PATIENCE_S
        while left := self._left():
            if time.monotonic() > deadline:
                raise Wrong(f"not empty within {PATIENCE_S:.0f} s: {left}")
            time.sleep(0.1)

    def _left(self) -> list[str]:
        held = [str(run) for node in self.stack.daemons for run in self.stack.runs(node)]
        try:
            jobs = self.stack.cluster.run("squeue", "--noheader") if self.stack.cluster else ""
        except (AssertionError, subprocess.TimeoutExpired) as error:
            jobs = f"squeue: {error}"
        return held + jobs.splitlines()

    def _print(self, row: Row) -> None:
        ended = f"{row.ended_s:5.1f}" if row.ended_s is not None else "    -"
        text = f"{row.number:4d} {row.kind:<10} {row.victim:<34} ended {ended} s  recovered {row.recovered_s:5.1f} s"
        waits = row.waits.items() if row.recovered_s > RECOVERY_S else ()
        late = [f"\n   {seconds:5.1f} s: {reason}" for reason, seconds in waits]
        sys.stdout.write("\n   WRONG: ".join([text, *row.wrong]) + "".join(late) + "\n")
        sys.stdout.flush()

    def summary(self) -> dict[str, Any]:
        """Return all rows, and the events that were printed, stored, lost and doubled."""
        tallies = self.workload.tallies.values()
        return {
            "faults": sum(row.kind != END for row in self.rows),
            "wrong": sum(bool(row.wrong) for row in self.rows),
            "attempts": len(self.workload.tallies),
            "ranks_per_node": RANKS,
            "events_printed": sum(tally.printed for tally in tallies),
            "events_stored": sum(tally.stored for tally in tallies),
            "rows": [asdict(row) for row in self.rows],
        }
