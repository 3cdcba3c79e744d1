"""The runs of a daemon on a login node: each attempt is a job of Slurm. Independent of the broker."""

from __future__ import annotations

import logging
import time
from typing import Any

from runners.config import ConfigError, RunConfig
from runners.node.keeper import Command, Keeper, Limits, Node
from runners.node.rundir import RunDir
from runners.node.slurm import submit
from runners.node.slurm.ahead import Ahead
from runners.node.slurm.cluster import Slurm, SlurmAway, SlurmRefused
from runners.node.slurm.pool import Pool
from runners.node.slurm.queue import End, Job, Partition, Words, ending, waiting_text
from runners.node.slurm.state import JobDir, JobRecord, JobStateDir
from runners.supervisor import spool
from runners.wire.protocol import Cancel, Go, HeldRun, RunSpec, RunState

PARTITIONS_S = 300.0
"""Seconds after which partitions are read again."""
STOP_WITHIN_S = 60.0
"""Time for cancelled jobs to leave the queue; Slurm's KillWait is 30 s."""
SCANCEL_S = 5.0
"""Seconds between two scancel of a job that goes on."""
ENDS_ITSELF_S = 6.0
"""Time for the members of a job to end by themselves after another one has ended, before scancel."""
SUBMITTED_WITHIN_S = 60.0
"""A job that was being submitted when the daemon was killed is in the queue after this time, or never."""

_EXPLAINED = (RunState.TIME_LIMIT, RunState.PREEMPTED)
"""Ends that Slurm's word explains: what the job printed adds nothing."""
CHECKPOINT_TEXT = "; its ranks wrote a checkpoint"

log = logging.getLogger(__name__)

Key = tuple[int, int]


class JobKeeper(Keeper):
    """The runs of one state directory, as jobs."""

    kind = "slurm"

    def __init__(
        self,
        state: JobStateDir,
        *,
        hardware: dict[str, Any],
        limits: Limits,
        command: Command,
        pool: Pool,
        node: Node | None = None,
        slurm: Slurm | None = None,
    ) -> None:
        super().__init__(state, hardware=hardware, limits=limits, command=command, node=node)
        self._jobs = state
        self._pool = pool
        self._slurm = slurm or Slurm()
        self._partitions: dict[str, Partition] = {}
        self._partitions_at = self._polled_at = float("-inf")
        self._waiting: dict[Key, str] = {}
        # When the job of an attempt was first seen to have ended, and when it was last told to end.
        self._ended_at: dict[Key, float] = {}
        self._cancelled_at: dict[Key, float] = {}
        self._cancel_seen_at: dict[Key, float] = {}
        self._away_since: float | None = None
        self._active_jobs = 0
        self._ahead = Ahead(state, self._slurm, pool.partitions)

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

    def cancel(self, cancel: Cancel) -> None:
        """End an attempt, whether it waits or runs; or the job that waits for an attempt of a chain that has ended."""
        if (cancel.run, cancel.attempt) in self._jobs.ahead():
            self._jobs.job(cancel.run, cancel.attempt).is_not_needed()
        else:
            super().cancel(cancel)
        self._polled_at = float("-inf")

    def go(self, go: Go) -> None:
        """Start the ranks of a prepared attempt, once the address of its node is visible here."""
        run = self._jobs.find(go.run, go.attempt, go.node_rank)
        if run.launch.exists() and run.read_launch().get("is_on_node"):
            super().go(go)  # else the server repeats the order

    def end_strays(self) -> None:
        """Leave all processes alone: those of a job belong to Slurm."""

    def watch(self) -> None:
        """Submit, cancel and settle once; asks Slurm every few seconds."""
        living = [run for run in self._jobs.job_dirs() if run.is_alive]
        self._forget({(run.run, run.attempt) for run in self._jobs.job_dirs()})
        if time.monotonic() - self._polled_at < self._pool.poll_s:
            return
        self._polled_at = time.monotonic()
        try:
            self._look(living)
            self._ahead.watch()
            self._away_since = None
        except SlurmAway as error:
            self._wait_for_slurm(living, str(error))

    # --- the queue ---------------------------------------------------------------------------------------------------

    def _look(self, living: list[JobDir]) -> None:
        if time.monotonic() - self._partitions_at > PARTITIONS_S:
            self._read_partitions()
        if not living:
            return
        # Before the queue is read: a job that had started before and is pending now was requeued.
        started = {(run.run, run.attempt) for run in living if run.started_at()}
        shown = self._slurm.shown()
        # Of two jobs with one name, one has ended before it was needed.
        by_name = {job.name: job for job in sorted(shown.jobs, key=lambda job: (job.is_active, job.id))}
        prefix, ahead = submit.job_name_prefix(self._jobs.id), self._ahead.names()
        own = [job for job in shown.jobs if job.is_active and job.name.startswith(prefix)]
        self._active_jobs = sum(job.name not in ahead for job in own)
        for key in sorted({(run.run, run.attempt) for run in living}):
            runs = [run for run in living if (run.run, run.attempt) == key]
            job = by_name.get(submit.job_name(self._jobs.id, *key))
            try:
                if job is not None and job.state == "PENDING" and key in started:
                    self._end_requeued(runs, job)
                else:
                    self._serve(key, runs, job, shown.places.get(job.id) if job else None)
            except OSError:
                log.exception("%s: its job cannot be served; retrying", runs[0])

    def _serve(self, key: Key, runs: list[JobDir], job: Job | None, place: tuple[int, int] | None) -> None:
        """Do for one attempt what the state of its job asks for."""
        record = self._jobs.job(*key)
        number = record.read().get("id")
        has_started = any(run.started_at() for run in runs)
        if record.is_ahead and has_started:
            record.write(is_ahead=False)
        elif record.is_ahead and (job is None or not job.is_active):
            record.write(id=None, is_ahead=False, unused=number)  # it gave up before the attempt came
            number = None
        if job is not None and job.id == record.read().get("unused"):
            job = None
        if job is not None and number != job.id:
            record.write(id=job.id)  # submitted by a daemon that was killed before it could record this
            number = job.id
        if number is None:
            self._submit(key, runs, record)
        elif job is None or not job.is_active:
            self._settle_job(key, runs, record, number)
        else:
            self._ended_at.pop(key, None)
            if job.is_pending:
                self._waiting[key] = waiting_text(job, place)
            else:
                self._waiting.pop(key, None)
                self._ahead.queue(runs[0], job, self._partitions)
            self._pass_on_cancel(key, runs, job.id)

    def _end_requeued(self, runs: list[JobDir], job: Job) -> None:
        """Cancel a job that waits to start again: the next attempt is a job of its own, with output of its own."""
        self._slurm.cancel(job.id)
        why = job.reason or "no reason given"
        reason = f"Slurm job {job.id} was requeued ({why}) and then cancelled; an attempt never starts twice"
        for run in runs:
            cancelled = run.cancel_reason()
            if cancelled is None:
                self._end(run, "preempted", reason + CHECKPOINT_TEXT * run.has_checkpoint)
            else:
                self._end(run, "cancelled", cancelled)

    def _pass_on_cancel(self, key: Key, runs: list[JobDir], job: int) -> None:
        cancelled = [run for run in runs if run.cancel_reason() is not None]
        if not cancelled:
            return
        now = time.monotonic()
        since = self._cancel_seen_at.setdefault(key, now)
        if all(run.is_cancel_consequence for run in cancelled) and now - since < ENDS_ITSELF_S:
            return  # the supervisors end their ranks, and one of them may be about to report the first cause
        if now - self._cancelled_at.get(key, float("-inf")) > SCANCEL_S:
            self._cancelled_at[key] = now
            log.info("%s: scancel %d", runs[0], job)
            self._slurm.cancel(job)

    def _read_partitions(self) -> None:
        self._partitions = self._slurm.partitions()
        existing = [name for name in self._pool.partitions if name in self._partitions]
        for name in sorted(set(self._pool.partitions) - set(existing)):
            partitions = ", ".join(sorted(self._partitions)) or "none"
            log.error("--partition %s: Slurm has no such partition; use one of %s", name, partitions)
        count = self._slurm.gpus(existing) if existing else 0
        gpu = {"name": "GPU", "memory_bytes": None, "uuid": ""}
        # The server places runs by the GPUs of a node.
        self._hardware["gpus"] = [{"index": index, **gpu} for index in range(count)]
        self._hardware["slurm"] = {
            "partitions": [
                {"name": name, "nodes": self._partitions[name].nodes, "max_time_s": self._partitions[name].max_time_s}
                for name in existing
            ]
        }
        self._partitions_at = time.monotonic()

    def _wait_for_slurm(self, living: list[JobDir], reason: str) -> None:
        """Keep the jobs that exist; runs that are not submitted end after a while, so that nothing waits forever."""
        if self._away_since is None:
            self._away_since = time.monotonic()
            log.error("Slurm does not answer, trying again: %s", reason)
        away_s = time.monotonic() - self._away_since
        for run in living:
            key = run.run, run.attempt
            if self._jobs.job(*key).read().get("id") is not None:
                self._waiting[key] = f"Slurm does not answer: {reason}"
            elif run.cancel_reason() is not None:
                self._end(run, "cancelled", run.cancel_reason() or "")
            elif away_s > self._pool.away_grace_s:
                self._end(run, "failed", f"Slurm did not answer for {away_s:.0f} s: {reason}")
            else:
                self._waiting[key] = f"not submitted yet, because Slurm does not answer: {reason}"

    # --- starting ----------------------------------------------------------------------------------------------------

    def _refusal(self, config: RunConfig) -> str:
        """Return nothing: links belong to the nodes, and everything else is checked before submission."""
        return ""

    def _end_unstarted(self, draft: RunDir, state: str, reason: str) -> None:
        JobDir(draft.path).end()
        super()._end_unstarted(draft, state, reason)

    def _spawn(self, draft: RunDir, added: dict[str, str]) -> None:
        """Put the directory in place; the watch submits it, because sbatch may take long and orders must not wait."""
        record = self._jobs.job(draft.run, draft.attempt)
        if record.is_ahead:  # its job may start at once
            draft.write_launch({**draft.read_launch(), "script": record.script.read_text()})
        run = self._state.put_in_place(draft)
        self._waiting[run.run, run.attempt] = "about to be submitted to Slurm"
        self._polled_at = float("-inf")

    def _submit(self, key: Key, runs: list[JobDir], record: JobRecord) -> None:
        if cancelled := next((run.cancel_reason() for run in runs if run.cancel_reason() is not None), None):
            for run in runs:
                self._end(run, "cancelled", cancelled)
            return
        if self._active_jobs >= self._pool.max_jobs:
            limit = self._pool.max_jobs
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
        problems = list(submit.problems(config, self._pool.partitions, self._partitions))
        if problems:
            self._refuse(runs, str(ConfigError(problems)))
            return
        name = submit.job_name(self._jobs.id, *key)
        partition = self._partitions[submit.partition_of(config, self._pool.partitions)]
        text = submit.script(config, submit.Order(name, record.path, runs[0].path, partition))
        record.write_script(text)
        for run in runs:
            run.write_launch({**run.read_launch(), "script": text})
        # Before sbatch: a daemon that is killed meanwhile looks for the job by its name instead of submitting again.
        record.write(name=name, submitting_at=time.time())
        try:
            number = self._slurm.submit(record.script)
        except SlurmRefused as error:
            record.write(submitting_at=0)
            self._refuse(runs, f"{_submit_field(str(error))}: Slurm refused the job: {error}")
            return
        record.write(id=number)
        self._active_jobs += 1
        self._waiting[key] = f"Slurm job {number} is submitted"
        self._polled_at = float("-inf")
        log.info("%s: submitted as job %d", runs[0], number)

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

    # --- ending ------------------------------------------------------------------------------------------------------

    def _settle_job(self, key: Key, runs: list[JobDir], record: JobRecord, number: int) -> None:
        """Write the final report of each member of an ended job that has none, in Slurm's words."""
        end = self._slurm.end(number, submit.job_name(self._jobs.id, *key))
        if end is not None and end.is_active:
            return
        open_runs = []
        for run in runs:
            if spool.final_report(run.spool) is not None:
                run.end()
            else:
                open_runs.append(run)
        now = time.monotonic()
        since = self._ended_at.setdefault(key, now)
        killed = [run for run in open_runs if not run.was_stopped]
        was_on_nodes = end is None or bool(end.nodes)
        if killed and was_on_nodes and now - since < self._pool.settle_s:
            return
        # Slurm stops the other members after one was killed. The causes first: the server cancels the rest at once.
        for run in sorted(open_runs, key=lambda run: run.was_stopped):
            self._settle_member(run, end, record, number, is_consequence=run.was_stopped and bool(killed))

    def _settle_member(
        self, run: JobDir, end: End | None, record: JobRecord, number: int, *, is_consequence: bool
    ) -> None:
        if end is None:
            outcome = Words.lost(f"Slurm does not know job {number} any more, and its supervisor left no report")
        else:
            outcome = ending(end, str(run.path), has_started=bool(run.started_at()))
        reason, state = outcome.text, outcome.state.value
        if run.has_checkpoint:
            reason += CHECKPOINT_TEXT
            state = RunState.CHECKPOINTED.value if outcome.state is RunState.TIME_LIMIT else state
        cancelled = run.cancel_reason()
        # A supervisor that was killed while another node ended may be the cause of that end.
        if cancelled is not None and (run.was_stopped or not run.is_cancel_consequence):
            state, reason = "cancelled", cancelled
        elif outcome.state not in _EXPLAINED and (output := record.output()):
            reason += f"; job.out: {output}"
        self._end(run, state, reason, is_consequence=is_consequence)

    def _end(self, run: JobDir, state: str, reason: str, *, is_consequence: bool = False) -> None:
        if spool.final_report(run.spool) is None:
            self._append_end(run, state, reason, is_consequence=is_consequence)
        run.end()
        self._waiting.pop((run.run, run.attempt), None)

    def _forget(self, held: set[Key]) -> None:
        for facts in (self._waiting, self._ended_at, self._cancelled_at, self._cancel_seen_at):
            for key in set(facts) - held:
                del facts[key]
        self._jobs.clear_jobs(held)


def _submit_field(message: str) -> str:
    """Return the field that Slurm's refusal is about."""
    text = message.lower()
    fields = {
        "account": "slurm.account",
        "qos": "slurm.qos",
        "time limit": "slurm.time_limit_s",
        "feature": "slurm.constraint",
        "gres": "slurm.gres",
        "generic resource": "slurm.gres",
        "memory": "slurm.memory_mib",
        "node count": "cluster.nodes",
        "partition": "slurm.partition",
    }
    return next((field for word, field in fields.items() if word in text), "slurm")


def stop_all(state: JobStateDir, slurm: Slurm, within_s: float = STOP_WITHIN_S) -> int:
    """Cancel all jobs of a state directory and wait for them; return the number of those that are still queued."""
    deadline = time.monotonic() + within_s
    for run in state.job_dirs():
        run.cancel("the node's daemon was stopped")
    prefix = submit.job_name_prefix(state.id)
    cancelled: set[int] = set()
    while True:
        try:
            # By name: a daemon may have been killed before it could record the job's id.
            jobs = [job for job in slurm.shown().jobs if job.is_active and job.name.startswith(prefix)]
            for job in jobs:
                if job.id not in cancelled:
                    slurm.cancel(job.id)
                    cancelled.add(job.id)
        except (SlurmAway, SlurmRefused) as error:
            log.error("jobs cannot be cancelled: %s", error)
            return len(state.job_dirs())
        if not jobs:
            log.info("cancelled %d jobs; the next daemon reports their ends", len(cancelled))
            return 0
        if time.monotonic() > deadline:
            log.error("jobs %s are still in the queue after %.0f s", ", ".join(str(job.id) for job in jobs), within_s)
            return len(jobs)
        time.sleep(0.2)
