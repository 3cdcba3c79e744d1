"""The runs of a campaign: kept active, started again after each fault, and judged by what they left."""

from __future__ import annotations

import contextlib
import subprocess
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import psutil
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User

from parlab.fleet import services
from parlab.fleet.services import waiting_reason
from parlab.lab.models import Attempt, Config, Experiment, Member, Run
from parlab.lab.services.access.tokens import token_create
from parlab.series import log, store
from runners.config import digest
from runners.wire.protocol import RunState
from tests.faults.reporter import EXPERIMENT
from tests.faults.stack import LOGIN, Stack
from tests.faults.ticker import loss_of

RANKS = 2
"""Ranks on each node."""
NODES_PER_RUN = 3

Key = tuple[int, int]


class Wrong(Exception):
    """Raised with what contradicts the promise: nothing lost, nothing doubled, no orphan, every state true."""


class Tally(NamedTuple):
    """Events of one attempt."""

    printed: int
    stored: int


def _nodes(attempt: Attempt) -> int:
    return int(attempt.run.resolved["cluster"]["nodes"])


class Workload:
    """One run over three nodes per pool."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.user: User = get_user_model().objects.create_superuser("faults")
        self.experiment = Experiment.objects.create(name="faults", slug="faults", owner=self.user)
        self.tallies: dict[Key, Tally] = {}
        self._least_reported = 1

    def launch(self) -> None:
        """Launch all runs, and the script that reports over HTTP."""
        self.stack.start_reporter(token_create(user=self.user, name="faults", by=self.user)[1])
        pools = ["default", *(["hpc"] if LOGIN in self.stack.daemons else [])]
        for pool in pools:
            services.launch(config=self._config(pool, NODES_PER_RUN), user=self.user)

    def _config(self, pool: str, nodes: int) -> Config:
        data: dict[str, Any] = {
            "parallel": {"engine": "command", "data_parallel_size": nodes * RANKS},
            "train": {"global_batch_size": nodes * RANKS, "micro_batch_size": 1},
            "command": {"argv": self.stack.command},
            "launcher": {"kind": "plain", "max_attempts": 20, "timeout_s": 3000},
            "cluster": {"nodes": nodes, "gpus_per_node": RANKS, "device": "cpu", "pool": pool},
        }
        version = self.experiment.configs.count() + 1
        return Config.objects.create(
            experiment=self.experiment, version=version, data=data, digest=digest(data), created_by=self.user
        )

    def relaunch_ended(self) -> None:
        """Start the next attempt of each run that has ended for good."""
        for run in Run.objects.filter(experiment=self.experiment).final():
            with contextlib.suppress(ValueError):  # the server has just done so itself
                services.relaunch(run=run, user=self.user)

    def current(self) -> dict[int, Attempt]:
        """Return the current attempt of each run."""
        return {run.pk: run.current_attempt() for run in self.experiment.runs.order_by("pk")}

    def why_unsettled(self, least: dict[Key, int]) -> str:
        """Return what is still to happen; empty once every rank makes steps and nothing else of a run is alive.

        `least` are the steps that the ranks of an attempt must have passed; of other attempts, a few.
        """
        attempts = self.current()
        for run, attempt in attempts.items():
            key = run, attempt.number
            if attempt.state != RunState.RUNNING:
                reason = attempt.reason or waiting_reason(attempt.run)
                return f"run {run} attempt {attempt.number} is {attempt.state}: {reason}"
            states = list(Member.objects.filter(attempt=attempt).values_list("state", flat=True))
            if states != ["running"] * _nodes(attempt):
                return f"the members of run {run} are {states}"
            before = least.get(key, 1)
            later = store.read_ranks(attempt.pk, "loss", first_step=before + 1)
            if missing := set(range(_nodes(attempt) * RANKS)) - set(later):
                return f"run {run} attempt {attempt.number} rank {min(missing)} has made {before} steps"
        return self._why_reports_unsettled() or self._why_processes_unsettled(attempts)

    def _why_processes_unsettled(self, attempts: dict[int, Attempt]) -> str:
        """Return which processes of the current attempts are missing, and which of others are left."""
        training, strays = Counter[Key](), list[str]()
        active = {(run, attempt.number): _nodes(attempt) * (RANKS + 1) for run, attempt in attempts.items()}
        for key, process in self.stack.processes():
            with contextlib.suppress(psutil.Error):
                if key not in active:
                    strays.append(f"{process.pid} of {key}")
                elif "ticker.py" in " ".join(process.cmdline()):
                    training[key] += 1
        for key, expected in active.items():
            if training[key] != expected:
                return f"run {key[0]} attempt {key[1]} has {training[key]} processes of training"
        return f"processes are left: {strays}" if strays else ""

    def steps(self) -> dict[Key, int]:
        """Return the last step of each current attempt that its slowest rank has printed."""
        return {
            (run, attempt.number): min(
                (self.witnessed((run, attempt.number), rank) for rank in range(_nodes(attempt) * RANKS)),
                default=0,
            )
            for run, attempt in self.current().items()
        }

    def witnessed(self, key: Key, rank: int) -> int:
        """Return the last step that a rank has printed, as it noted itself."""
        try:
            return int((self.stack.witness / f"{key[0]}-{key[1]}-{rank}").read_text() or 0)
        except FileNotFoundError:
            return 0

    def check_series(self, attempt: Attempt) -> None:
        """Check that the points of each rank are 1, 2, 3, ... with the values that belong to them."""
        for rank in range(_nodes(attempt) * RANKS):
            columns = store.read(attempt.pk, "loss", rank=rank)
            expected = np.arange(1, len(columns.steps) + 1)
            if not np.array_equal(columns.steps, expected):
                raise Wrong(f"{attempt} rank {rank}: steps {columns.steps.tolist()} are not 1, 2, 3, ...")
            if not np.array_equal(columns.values, [loss_of(rank, int(step)) for step in expected]):
                raise Wrong(f"{attempt} rank {rank}: values do not belong to the steps")

    def check_ended(self, attempt: Attempt, *, spooled: dict[int, int]) -> None:
        """Check an attempt that has ended: every event once, in series and log, and nothing after its end.

        `spooled` are the steps of ranks whose supervisor was killed that were in the spool before: what such a
        supervisor had not read from the pipe is gone with it.
        """
        self.check_series(attempt)
        key = attempt.run_id, attempt.number
        printed = stored = 0
        text = b"".join(log.read_log(attempt.pk))
        for rank in range(_nodes(attempt) * RANKS):
            in_series = len(store.read(attempt.pk, "loss", rank=rank).steps)
            in_log = text.count(b'"rank":%d,"event":"step"' % rank)
            witnessed = self.witnessed(key, rank)
            least = spooled.get(rank, witnessed)
            # The last line may be printed and not noted.
            if in_series != in_log or not least <= in_series <= witnessed + 1:
                raise Wrong(
                    f"{attempt} rank {rank}: printed {witnessed}, had to be stored {least}, in the log {in_log},"
                    f" in the series {in_series}"
                )
            printed += max(least, in_series)
            stored += in_series
        self.tallies[key] = Tally(printed, stored)

    def cancel_all(self) -> None:
        """Cancel all runs."""
        for run in Run.objects.filter(experiment=self.experiment).active():
            with contextlib.suppress(ValueError):  # it has just ended
                services.cancel(run=run)

    def mark_reports(self) -> None:
        """Let everything that was reported over HTTP until now, and a later step, be waited for."""
        self._least_reported = self.stack.reported()

    def _why_reports_unsettled(self) -> str:
        steps = self._reported_steps()
        if not steps or steps[-1] <= self._least_reported:
            return (
                f"{len(steps)} steps are stored of the {self._least_reported} that were reported over HTTP, none after"
            )
        return ""

    def _reported_steps(self) -> list[int]:
        run = Run.objects.filter(experiment__name=EXPERIMENT).first()
        if run is None:
            return []
        columns = store.read(run.current_attempt().pk, "loss", rank=0)
        steps = [int(step) for step in columns.steps]
        if steps != list(range(1, len(steps) + 1)) or columns.values.tolist() != [float(step) for step in steps]:
            raise Wrong(f"steps reported over HTTP are not 1, 2, 3, ...: {steps}")
        return steps

    def end_reports(self) -> None:
        """End the script that reports over HTTP: each of its steps is stored once, and its run has ended."""
        try:
            code = self.stack.end_reporter()
        except subprocess.TimeoutExpired as error:
            raise Wrong(f"the script has not sent what was left: {error}") from error
        stored, printed = len(self._reported_steps()), self.stack.reported()
        states = list(Run.objects.filter(experiment__name=EXPERIMENT).values_list("state", flat=True))
        if code or states != ["finished"] or not printed <= stored <= printed + 1:
            raise Wrong(f"the script ended with {code}, its runs are {states}, {stored} of {printed} steps are stored")
        self.tallies[0, 0] = Tally(max(stored, printed), stored)
