"""The runs of a daemon on a login node: each attempt is a job of Slurm. Independent of the broker."""

from __future__ import annotations

import logging
import time
from typing import Any

from runners.config import Problem, RunConfig
from runners.node.jobs.keeper import CHECKPOINT_TEXT, JobKeeper, Key
from runners.node.jobs.state import JobDir, JobRecord, JobStateDir
from runners.node.jobs.system import Words
from runners.node.keeper import Command, Limits, Node
from runners.node.rundir import RunDir
from runners.node.slurm import submit
from runners.node.slurm.ahead import Ahead
from runners.node.slurm.cluster import Slurm, SlurmAway, SlurmRefused
from runners.node.slurm.pool import Pool
from runners.node.slurm.queue import End, Job, Partition, ending, waiting_text
from runners.wire.protocol import Cancel, RunState

PARTITIONS_S = 300.0
"""Seconds after which partitions are read again."""
STOP_WITHIN_S = 60.0
"""Time for cancelled jobs to leave the queue; Slurm's KillWait is 30 s."""
SCANCEL_S = 5.0
"""Seconds between two scancel of a job that goes on."""
ENDS_ITSELF_S = 6.0
"""Time for the members of a job to end by themselves after another one has ended, before scancel."""

log = logging.getLogger(__name__)


class SlurmKeeper(JobKeeper):
    """The runs of one state directory, as jobs of Slurm."""

    kind = "slurm"
    system = "Slurm"

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
        super().__init__(state, hardware=hardware, limits=limits, command=command, pace=pool.pace, node=node)
        self._pool = pool
        self._slurm = slurm or Slurm()
        self._partitions: dict[str, Partition] = {}
        self._partitions_at = float("-inf")
        # When a job was last told to end, and when the order was first seen.
        self._cancelled_at: dict[Key, float] = {}
        self._cancel_seen_at: dict[Key, float] = {}
        self._ahead = Ahead(state, self._slurm, pool.partitions)

    def cancel(self, cancel: Cancel) -> None:
        """End an attempt, whether it waits or runs; or the job that waits for an attempt of a chain that has ended."""
        if (cancel.run, cancel.attempt) in self._jobs.ahead():
            self._jobs.job(cancel.run, cancel.attempt).is_not_needed()
        else:
            super().cancel(cancel)
        self._polled_at = float("-inf")

    # --- the queue ---------------------------------------------------------------------------------------------------

    def _look(self, living: list[JobDir]) -> None:
        if time.monotonic() - self._partitions_at > PARTITIONS_S:
            self._read_partitions()
        if living:
            self._look_at_jobs(living)
        self._ahead.watch()

    def _look_at_jobs(self, living: list[JobDir]) -> None:
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

    # --- starting ----------------------------------------------------------------------------------------------------

    def _spawn(self, draft: RunDir, added: dict[str, str]) -> None:
        record = self._jobs.job(draft.run, draft.attempt)
        if record.is_ahead and not self._ahead.leaves_out(record, _excluded(draft)):
            record.write(id=None, is_ahead=False, unused=record.read()["id"])
        if record.is_ahead:  # its job may start at once
            draft.write_launch({**draft.read_launch(), "script": record.script.read_text()})
        elif unused := record.read().get("unused"):
            draft.write_launch({**draft.read_launch(), submit.UNUSED_JOB: unused})
        super()._spawn(draft, added)

    def _problems(self, config: RunConfig) -> list[Problem]:
        return list(submit.problems(config, self._pool.partitions, self._partitions))

    def _send(self, key: Key, runs: list[JobDir], config: RunConfig, record: JobRecord) -> None:
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

    # --- ending ------------------------------------------------------------------------------------------------------

    def _settle_job(self, key: Key, runs: list[JobDir], record: JobRecord, number: int) -> None:
        """Write the final report of each member of an ended job that has none, in Slurm's words."""
        end = self._slurm.end(number, submit.job_name(self._jobs.id, *key))
        if end is not None and end.is_active:
            return
        open_runs = self._unreported(runs)
        now = time.monotonic()
        since = self._ended_at.setdefault(key, now)
        killed = [run for run in open_runs if not run.was_stopped]
        was_on_nodes = end is None or bool(end.nodes)
        if killed and was_on_nodes and now - since < self._pace.settle_s:
            return
        drained = self._drained(end, open_runs)
        # Slurm stops the other members after one was killed. The causes first: the server cancels the rest at once.
        for run in sorted(open_runs, key=lambda run: run.was_stopped):
            if end is None:
                text = f"Slurm does not know job {number} any more, and its supervisor left no report"
                outcome = Words(RunState.LOST, text)
            else:
                outcome = ending(end, str(run.path), has_started=bool(run.started_at()), drained=drained)
            output = f"job.out: {printed}" if (printed := record.output()) else ""
            self._settle_member(run, outcome, is_consequence=run.was_stopped and bool(killed), output=output)

    def _drained(self, end: End | None, runs: list[JobDir]) -> str:
        """Return the nodes of an ended job that are drained, if one of its supervisors has not started."""
        if end is None or not end.nodes or all(run.started_at() for run in runs):
            return ""
        return self._slurm.drained(end.nodes)

    def _forget(self, held: set[Key]) -> None:
        for facts in (self._cancelled_at, self._cancel_seen_at):
            for key in set(facts) - held:
                del facts[key]
        super()._forget(held)


def _excluded(run: RunDir) -> str:
    """Return the nodes that an attempt must not use."""
    return RunConfig.model_validate_json(run.config.read_text()).slurm.exclude or ""


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
