"""Files of a daemon that runs its work as jobs: those of runners.node.rundir, and a directory for each job.

STATE/jobs/RUN-ATTEMPT/job.sbatch  the batch script of Slurm
STATE/jobs/RUN-ATTEMPT/job.json    id and name of the job
STATE/jobs/RUN-ATTEMPT/job.out     what the batch script and srun print
STATE/jobs/RUN-ATTEMPT/broken      a supervisor of the job has failed or was killed: the others stop
STATE/jobs/RUN-ATTEMPT/warned      Slurm has sent its signal ahead of the time limit
STATE/jobs/RUN-ATTEMPT/not-needed  the chain has ended before this attempt
STATE/broker.json          URL of Redis and name of the node, for compute nodes that ship by themselves
STATE/runs/RUN-ATTEMPT/shipper  the compute node that ships the output, as long as it does
STATE/runs/RUN-ATTEMPT/ended       the supervisor has written its final report
STATE/runs/RUN-ATTEMPT/checkpointed  the ranks have written a checkpoint after the system told them to stop
STATE/runs/RUN-ATTEMPT/stopped     the system told the supervisor to stop, which leaves the final report to the daemon
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from runners.node.rundir import RunDir, StateDir, directory_name, write_atomically
from runners.wire.trust import Key, Untrusted

BROKEN = "broken"
"""File in the directory of a job: one of its supervisors has failed or was killed, and the others stop."""
NOT_NEEDED = "not-needed"
"""The same of a job that waits for a next attempt: the chain has ended before it."""
WARNED = "warned"
"""The same: Slurm has sent its signal ahead of the time limit."""
MAX_OUTPUT_CHARS = 300
_JOB = re.compile(r"(\d+)-(\d+)")


class JobDir(RunDir):
    """The files of one attempt on a node that a batch system gives.

    Its processes are on other machines, where a lock is not always seen: it is alive until its end is recorded.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._ended, self._stopped, self._shipper = path / "ended", path / "stopped", path / "shipper"
        self._checkpointed = path / "checkpointed"

    @property
    def is_alive(self) -> bool:
        return not os.path.exists(self._ended)

    @property
    def was_stopped(self) -> bool:
        """Whether the system has told the supervisor to stop, which then writes no final report."""
        return self._stopped.exists()

    @property
    def has_checkpoint(self) -> bool:
        """Whether its ranks have written a checkpoint after the system told them to stop."""
        return self._checkpointed.exists()

    def note_start(self, at: float) -> None:
        """Record when the supervisor has started, on a machine whose processes are not seen here."""
        write_atomically(self._supervisor, json.dumps({"pid": 0, "create_time": at}))

    def note_checkpoint(self) -> None:
        """Record that the ranks have written a checkpoint after the system told them to stop."""
        self._checkpointed.touch()

    @property
    def is_shipped_elsewhere(self) -> bool:
        return os.path.exists(self._shipper) and self.is_alive

    def take_over_shipping(self, host: str) -> None:
        """Record that a compute node ships the output."""
        write_atomically(self._shipper, host)

    def give_back_shipping(self) -> None:
        """Record that the login node ships the output."""
        self._shipper.unlink(missing_ok=True)

    def end(self) -> None:
        """Record that the final report is written."""
        self._ended.touch()

    def stop(self) -> None:
        """Record that the system has told the supervisor to stop."""
        self._stopped.touch()


class JobRecord:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.script = path / "job.sbatch"
        self._facts = path / "job.json"
        self._output = path / "job.out"
        self.broken = path / BROKEN
        self._warned, self._not_needed = path / WARNED, path / NOT_NEEDED

    @property
    def was_warned(self) -> bool:
        """Whether Slurm has sent its signal ahead of the time limit."""
        return self._warned.exists()

    @property
    def is_ahead(self) -> bool:
        """Whether it waits for an attempt that the server has not sent yet."""
        return bool(self.read().get("is_ahead"))

    @property
    def needs_no_job(self) -> bool:
        """Whether the chain has ended before this attempt."""
        return self._not_needed.exists()

    def is_not_needed(self) -> None:
        """Record that the chain has ended before this attempt, if a job waits for it."""
        with contextlib.suppress(FileNotFoundError):
            self._not_needed.touch()

    def write_script(self, text: str) -> None:
        """Store the batch script."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.script, text, sync=True)

    def write(self, **facts: Any) -> None:
        """Store facts about the job, in addition to those already there."""
        write_atomically(self._facts, json.dumps({**self.read(), **facts}), sync=True)

    def read(self) -> dict[str, Any]:
        """Return the stored facts; none if there is no job."""
        try:
            facts: dict[str, Any] = json.loads(self._facts.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return facts

    def output(self) -> str:
        """Return the end of what the batch script and srun printed, on one line."""
        try:
            text = " ".join(self._output.read_text(errors="replace").split())
        except FileNotFoundError:
            return ""
        return text[-MAX_OUTPUT_CHARS:]


class JobStateDir(StateDir):
    """The state directory of a daemon that submits jobs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.jobs_path = root / "jobs"
        self.jobs_path.mkdir(exist_ok=True, mode=0o700)
        self._dirs: dict[str, JobDir] = {}

    def write_broker(self, url: str, node: str, key: Key) -> None:
        """Let compute nodes ship by themselves, with the key of the node."""
        content = {"url": url, "node": node, "key": key.id, "secret": key.secret.hex()}
        write_atomically(self.root / "broker.json", json.dumps(content))

    def forget_broker(self) -> None:
        """Let the login node ship the output of all runs."""
        (self.root / "broker.json").unlink(missing_ok=True)

    def read_broker(self) -> dict[str, str] | None:
        """Return URL of Redis, name and key of the node, or None if compute nodes must not ship."""
        try:
            broker: dict[str, str] = json.loads((self.root / "broker.json").read_text())
        except (OSError, ValueError):
            return None
        return broker

    def find(self, run: int, attempt: int, node_rank: int = 0) -> JobDir:
        """Return the directory of an attempt, whether it exists or not."""
        return self._dir(directory_name(run, attempt, node_rank))

    def job_dirs(self) -> list[JobDir]:
        """List the attempts that this node holds."""
        self._dirs = {name: self._dir(name) for name in self.names()}
        return list(self._dirs.values())

    def _dir(self, name: str) -> JobDir:
        """Return a directory; those of a thousand attempts are asked for many times a second."""
        return self._dirs.get(name) or JobDir(self.runs_path / name)

    def runs(self) -> list[RunDir]:
        """List the attempts that this node holds."""
        return list(self.job_dirs())

    def job(self, run: int, attempt: int) -> JobRecord:
        """Return the directory of the job of an attempt, whether it exists or not."""
        return JobRecord(self.jobs_path / f"{run}-{attempt}")

    def ahead(self) -> dict[tuple[int, int], JobRecord]:
        """Return the jobs that wait for attempts that the server has not sent yet."""
        matches = (_JOB.fullmatch(path.name) for path in self.jobs_path.iterdir())
        keys = [(int(match[1]), int(match[2])) for match in matches if match]
        records = {key: self.job(*key) for key in keys if not self.find(*key).exists}
        return {key: record for key, record in records.items() if record.is_ahead}

    def clear_jobs(self, attempts: set[tuple[int, int]]) -> None:
        """Delete the directories of jobs whose attempts are not among those, and that do not wait for one."""
        names = {f"{run}-{attempt}" for run, attempt in attempts}
        for path in self.jobs_path.iterdir():
            if path.name not in names and not JobRecord(path).is_ahead:
                self.clear_job(path)

    def clear_job(self, path: Path) -> None:
        """Delete the directory of a job."""
        shutil.rmtree(path, ignore_errors=True)


class BrokerKeys:
    """The key of the login node on a compute node; the daemon replaces it when it has changed."""

    def __init__(self, state: JobStateDir) -> None:
        self._state = state

    def current(self) -> Key:
        settings = self._state.read_broker()
        if settings is None:
            raise Untrusted("the login node ships by itself from now on")
        return Key(settings["key"], bytes.fromhex(settings["secret"]))

    def find(self, node: str, key_id: str) -> bytes:
        """Return the secret of the key; raises Untrusted."""
        key = self.current()
        if key.id != key_id:
            raise Untrusted(f"signed for node {node} with the key {key_id or 'that is shared'}, which is not current")
        return key.secret
