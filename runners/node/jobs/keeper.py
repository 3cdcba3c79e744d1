"""The runs of a daemon whose nodes a batch system gives: each attempt is a job. Independent of broker and system."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from runners.config import ConfigError, Problem, RunConfig
from runners.node.jobs.pool import Pace
from runners.node.jobs.state import JobDir, JobRecord, JobStateDir
from runners.node.jobs.system import SystemAway, Words
from runners.node.keeper import Command, Keeper, Limits, Node
from runners.node.rundir import RunDir
from runners.supervisor import spool
from runners.wire.protocol import Go, HeldRun, RunSpec, RunState

EXPLAINED = (RunState.TIME_LIMIT, RunState.PREEMPTED)
"""Ends that the system's word explains: what the job printed adds nothing."""
CHECKPOINT_TEXT = "; its ranks wrote a checkpoint"
SUBMITTED_WITHIN_S = 60.0
"""A job that was being submitted when the daemon was killed is in the queue after this time, or never."""

log = logging.getLogger(__name__)

Key = tuple[int, int]
"""Run and attempt."""


class JobKeeper(Keeper):
    """The runs of one state directory, as jobs."""

    system: str
    """Its name for people."""

    def __init__(
        self,
        state: JobStateDir,
        *,
        hardware: dict[str, Any],
        limits: Limits,
        command: Command,
        pace: Pace,
        node: Node | None = None,
    ) -> None:
        super().__init__(state, hardware=hardware, limits=limits, command=command, node=node)
        self._jobs = state
        self._pace = pace
        self._polled_at = float("-inf")
        self._waiting: dict[Key, str] = {}
        # When the job of an attempt was first seen to have ended.
        self._ended_at: dict[Key, float] = {}
        self._away_since: float | None = None
        self._active_jobs = 0

    def held(self) -> list[HeldRun]:
        """List the attempts that this node holds."""
        return [
            HeldRun(
                run=run.run,
                attempt=run.attempt,
                alive=run.is_alive,
                node_rank=run.node_rank,
                waiting=self._waiting.get((run.run, run.attempt), "")[:500],
            )
            for run in self._jobs.job_dirs()
        ]

    def waits(self) -> Sequence[tuple[Key, str]]:
        """Return why attempts have not started."""
        return sorted(self._waiting.items())

    def go(self, go: Go) -> None:
        """Start the ranks of a prepared attempt, once the address of its node is visible here."""
        run = self._jobs.find(go.run, go.attempt, go.node_rank)
        if run.launch.exists() and run.read_launch().get("is_on_node"):
            super().go(go)  # else the server repeats the order

    def end_strays(self) -> None:
        """Leave all processes alone: those of a job belong to the system."""

    def watch(self) -> None:
        """Submit, cancel and settle once; asks the system every few seconds."""
        if time.monotonic() - self._polled_at < self._pace.poll_s:
            return
        self._polled_at = time.monotonic()
        held = self._jobs.job_dirs()
        living = [run for run in held if run.is_alive]
        self._forget({(run.run, run.attempt) for run in held})
        try:
            self._look(living)
            self._away_since = None
        except SystemAway as error:
            self._wait_for_system(living, str(error))

    # --- what a system does ------------------------------------------------------------------------------------------

    @abstractmethod
    def _look(self, living: list[JobDir]) -> None:
        """Compare the jobs of the system with the attempts that live, and do what is due. Raises SystemAway."""

    @abstractmethod
    def _problems(self, config: RunConfig) -> Sequence[Problem]:
        """Return why the pool cannot take a run."""

    @abstractmethod
    def _send(self, key: Key, runs: list[JobDir], config: RunConfig, record: JobRecord) -> None:
        """Give a job to the system and record it. Raises SystemAway."""

    def _is_submitted(self, key: Key) -> bool:
        """Return whether the system has the job of an attempt."""
        return self._jobs.job(*key).read().get("id") is not None

    # --- starting ----------------------------------------------------------------------------------------------------

    def _refusal(self, config: RunConfig) -> str:
        """Return nothing: links belong to the nodes, and everything else is checked before submission."""
        return ""

    def _end_unstarted(self, draft: RunDir, state: str, reason: str) -> None:
        JobDir(draft.path).end()
        super()._end_unstarted(draft, state, reason)

    def _spawn(self, draft: RunDir, added: dict[str, str]) -> None:
        """Put the directory in place; the watch submits it, because that may take long and orders must not wait."""
        run = self._state.put_in_place(draft)
        self._waiting[run.run, run.attempt] = f"about to be submitted to {self.system}"
        self._polled_at = float("-inf")

    def _submit(self, key: Key, runs: list[JobDir], record: JobRecord) -> None:
        if cancelled := next((run.cancel_reason() for run in runs if run.cancel_reason() is not None), None):
            for run in runs:
                self._end(run, "cancelled", cancelled)
            return
        if self._active_jobs >= self._pace.max_jobs:
            limit = self._pace.max_jobs
            self._waiting[key] = (
                f"{self._active_jobs} jobs of this node are in the queue; its --slots {limit} allow no more"
            )
            return
        spec = RunSpec.model_validate_json(runs[0].spec.read_text())
        if len(runs) < spec.nodes:
            self._await_members(key, runs, spec.nodes)
            return
        if self._is_being_submitted(record, runs):
            return
        config = RunConfig.model_validate(spec.config)
        if problems := list(self._problems(config)):
            self._refuse(runs, str(ConfigError(problems)))
            return
        self._send(key, runs, config, record)

    def _await_members(self, key: Key, runs: list[JobDir], nodes: int) -> None:
        """Wait for the orders of the other nodes of the job, unless one of them cannot start."""
        ended = [run for run in self._jobs.job_dirs() if (run.run, run.attempt) == key and not run.is_alive]
        if ended:
            self._refuse(runs, f"node {ended[0].node_rank} of the job cannot start", is_consequence=True)
        else:
            self._waiting[key] = f"{len(runs)} of {nodes} orders for the job have arrived"

    def _is_being_submitted(self, record: JobRecord, runs: list[JobDir]) -> bool:
        """Return whether a job may exist that the queue does not show yet."""
        since = record.read().get("submitting_at", 0)
        if not since:
            return False
        if any(run.started_at() for run in runs):
            return True  # it shows up, or its supervisor reports the end
        return bool(time.time() - since < SUBMITTED_WITHIN_S)

    def _refuse(self, runs: list[JobDir], reason: str, *, is_consequence: bool = False) -> None:
        for run in runs:
            self._end(run, "failed", reason, is_consequence=is_consequence)

    def _wait_for_system(self, living: list[JobDir], reason: str) -> None:
        """Keep the jobs that exist; runs that are not submitted end after a while, so that nothing waits forever."""
        if self._away_since is None:
            self._away_since = time.monotonic()
            log.error("%s does not answer, trying again: %s", self.system, reason)
        away_s = time.monotonic() - self._away_since
        for run in living:
            key = run.run, run.attempt
            if self._is_submitted(key):
                self._waiting[key] = f"{self.system} does not answer: {reason}"
            elif run.cancel_reason() is not None and not run.started_at():
                self._end(run, "cancelled", run.cancel_reason() or "")
            elif away_s > self._pace.away_grace_s:
                self._end(run, "failed", f"{self.system} did not answer for {away_s:.0f} s: {reason}")
            else:
                self._waiting[key] = f"not submitted yet, because {self.system} does not answer: {reason}"

    # --- ending ------------------------------------------------------------------------------------------------------

    def _unreported(self, runs: list[JobDir]) -> list[JobDir]:
        """Record the ends of those that have their final report; return the others."""
        open_runs = []
        for run in runs:
            if spool.final_report(run.spool) is not None:
                run.end()
            else:
                open_runs.append(run)
        return open_runs

    def _settle_member(self, run: JobDir, outcome: Words, *, is_consequence: bool, output: str = "") -> None:
        """Write the final report of a member that has left none, in the system's words; `output` explains them."""
        reason, state = outcome.text, outcome.state.value
        if run.has_checkpoint:
            reason += CHECKPOINT_TEXT
            state = RunState.CHECKPOINTED.value if outcome.state is RunState.TIME_LIMIT else state
        cancelled = run.cancel_reason()
        # A supervisor that was killed while another node ended may be the cause of that end.
        if cancelled is not None and (run.was_stopped or not run.is_cancel_consequence):
            state, reason = "cancelled", cancelled
        elif outcome.state not in EXPLAINED and output:
            reason += f"; {output}"
        self._end(run, state, reason, is_consequence=is_consequence)

    def _end(self, run: JobDir, state: str, reason: str, *, is_consequence: bool = False) -> None:
        if spool.final_report(run.spool) is None:
            self._append_end(run, state, reason, is_consequence=is_consequence)
        run.end()
        self._waiting.pop((run.run, run.attempt), None)

    def _forget(self, held: set[Key]) -> None:
        for facts in (self._waiting, self._ended_at):
            for key in set(facts) - held:
                del facts[key]
        self._jobs.clear_jobs(held)
