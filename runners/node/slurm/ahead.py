"""The next job of a chain, queued while its current one still runs.

It waits for the end of the current job (Slurm's dependency `afterany`), so that two attempts never run at once. When
the server sends the next attempt, the daemon finds this job by its name, as it finds any job after a restart. The job
is cancelled if the chain ends instead. If it has got a node that has become a bad one, another job takes its place.
"""

from __future__ import annotations

import logging
import time

from runners.config import RunConfig
from runners.node.jobs.state import JobDir, JobRecord, JobStateDir
from runners.node.slurm import submit
from runners.node.slurm.cluster import Slurm, SlurmAway, SlurmRefused
from runners.node.slurm.queue import Job, Partition
from runners.supervisor import spool
from runners.wire.protocol import RunSpec

KEPT_S = 60.0
"""Time for the next attempt to arrive after the end of the current one."""

log = logging.getLogger(__name__)

Key = tuple[int, int]


class Ahead:
    """The jobs that wait for attempts that the server has not sent yet."""

    def __init__(self, state: JobStateDir, slurm: Slurm, partitions: tuple[str, ...]) -> None:
        self._state = state
        self._slurm = slurm
        self._allowed = partitions
        self._ended_at: dict[Key, float] = {}

    def names(self) -> set[str]:
        """Return the names of the jobs; they take no slot of the node."""
        return {submit.job_name(self._state.id, *key) for key in self._state.ahead()}

    def queue(self, run: JobDir, job: Job, partitions: dict[str, Partition]) -> None:
        """Queue the job of the next attempt behind a running one, unless there is one, or the run is no chain."""
        key = run.run, run.attempt + 1
        record = self._state.job(*key)
        if job.is_pending or record.read() or run.cancel_reason() is not None:
            return
        config = RunConfig.model_validate(RunSpec.model_validate_json(run.spec.read_text()).config)
        if not config.launcher.chain:
            return
        name = submit.job_name(self._state.id, *key)
        partition = partitions[submit.partition_of(config, self._allowed)]
        order = submit.Order(name, record.path, self._state.find(*key).path, partition, after=job.id)
        record.write_script(submit.script(config, order))
        record.write(name=name, is_ahead=True, exclude=config.slurm.exclude or "", submitting_at=time.time())
        try:
            number = self._slurm.submit(record.script)
        except SlurmRefused as error:
            log.warning("%s: the job of its next attempt cannot be queued ahead: %s", run, error)
            record.write(is_ahead=False, submitting_at=0)
            return
        record.write(id=number, submitting_at=0)
        log.info("%s: its next attempt is queued as job %d", run, number)

    def leaves_out(self, record: JobRecord, exclude: str) -> bool:
        """Return whether a job uses none of the nodes that its attempt must not use: more of them may be bad by now."""
        facts = record.read()
        number, known = facts.get("id"), set(facts.get("exclude", "").split(","))
        if number is None or known.issuperset(exclude.split(",")):
            return True
        try:
            return self._slurm.leave_out(number, exclude)
        except (SlurmAway, SlurmRefused) as error:
            log.warning("job %d may use a node that is left out: %s", number, error)
            return True

    def watch(self) -> None:
        """Cancel the jobs of chains that have ended."""
        waiting = self._state.ahead()
        self._ended_at = {key: at for key, at in self._ended_at.items() if key in waiting}
        for key, record in waiting.items():
            if self._is_over(key, record):
                self.drop(key)

    def drop(self, key: Key) -> bool:
        """Cancel the job that waits for an attempt; return whether there was one."""
        record = self._state.ahead().get(key)
        if record is None:
            return False
        number = record.read().get("id")
        if number is not None:
            self._slurm.cancel(number)
            log.info("job %d is cancelled: the chain of run %d has ended", number, key[0])
        self._state.clear_job(record.path)
        return True

    def _is_over(self, key: Key, record: JobRecord) -> bool:
        if record.needs_no_job:
            return True
        before = self._state.find(key[0], key[1] - 1)
        if before.exists and before.is_alive:
            return False
        report = spool.final_report(before.spool) if before.exists else None
        if report is not None and report.state in ("finished", "cancelled"):
            return True
        return time.monotonic() - self._ended_at.setdefault(key, time.monotonic()) > KEPT_S
