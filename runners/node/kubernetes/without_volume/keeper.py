"""The runs of a controller whose pods have no volume of its: they post to the server, whose answers it reads."""

from __future__ import annotations

import logging
from pathlib import PurePosixPath
from typing import Any

from runners.config import Problem, RunConfig
from runners.node.jobs.keeper import Key
from runners.node.jobs.state import JobDir, JobStateDir
from runners.node.kubernetes import manifests
from runners.node.kubernetes.keeper import KubernetesKeeper
from runners.node.kubernetes.pods import Pod
from runners.node.kubernetes.pool import Pool
from runners.node.kubernetes.rights import WITHOUT_VOLUME
from runners.node.kubernetes.without_volume.exchange import Exchange, ServerAnswers
from runners.node.kubernetes.without_volume.manifests import MEMBER, pod_patch
from runners.node.kubernetes.without_volume.order import FILE
from runners.node.rundir import RunDir
from runners.wire.protocol import Go

log = logging.getLogger(__name__)


class PostingKeeper(KubernetesKeeper):
    """The runs of one state directory, as pods that do not see it."""

    further_rights = (WITHOUT_VOLUME,)

    def __init__(self, state: JobStateDir, *, pool: Pool, answers: ServerAnswers, **settings: Any) -> None:
        super().__init__(state, pool=pool, **settings)
        self.rest_s = pool.rest_s
        self._exchange = Exchange(self._cluster, pool, answers, state.id)

    def go(self, go: Go) -> None:
        """Start the ranks of a prepared attempt: its pods are told with the next look."""
        run = self._jobs.find(go.run, go.attempt, go.node_rank)
        if run.exists and not run.has_go:
            run.write_go(go.model_dump(mode="json"))
            self._serve_soon((go.run, go.attempt))

    def _problems(self, config: RunConfig) -> list[Problem]:
        problem = checkpoint_problem(config)
        return [*super()._problems(config), *([problem] if problem else [])]

    def _spawn(self, draft: RunDir, added: dict[str, str]) -> None:
        JobDir(draft.path).take_over_shipping("its pod")
        super()._spawn(draft, added)

    def _order(self, key: Key, runs: list[JobDir], config: RunConfig) -> manifests.Order:
        order = super()._order(key, runs, config)
        secret = {FILE: self._exchange.order_text(runs)}
        return order._replace(member=MEMBER, secret=secret, patch=pod_patch(order.name))

    def _tell(self, run: JobDir, pod: Pod) -> None:
        self._exchange.tell(run, pod)

    def _forget_pods(self, present: set[str]) -> None:
        super()._forget_pods(present)
        self._exchange.forget(present)

    def _wait_of(self, run: JobDir, pod: Pod) -> str:
        if pod.is_looping:  # what cannot start does not even begin to post
            self._settle_pod(run, pod.name, pod)
            return ""
        return super()._wait_of(run, pod)

    # --- ending ------------------------------------------------------------------------------------------------------

    def _unreported(self, runs: list[JobDir]) -> list[JobDir]:
        """Forget the runs whose final reports the server has; return those without one, here and there."""
        stored = self._exchange.hear(runs)
        for run in stored:
            self._finish(run)
        return super()._unreported([run for run in runs if run not in stored])

    def _finish(self, run: JobDir) -> None:
        log.info("%s: stored by the server", run)
        self._state.finish(run)

    def _settle_pod(self, run: JobDir, name: str, pod: Pod | None, left: str = "") -> None:
        """Settle a member by what its pod has left, unless the server has its report, or may have it."""
        if not self._exchange.is_heard:
            return
        end = self._exchange.end_of(run, pod)
        if end is not None and pod is not None and pod.ended is not None and end.exit_code:
            pod = pod._replace(ended=pod.ended._replace(exit_code=end.exit_code, reason="Error"))
        left = self._exchange.left_text(end)
        if end is None or (end.report is None and not end.is_stored):
            super()._settle_pod(run, name, pod, left)
        elif end.report is None:
            self._finish(run)
        else:
            self._end(run, end.report.state, end.report.reason + left, is_consequence=end.report.is_consequence)


def checkpoint_problem(config: RunConfig) -> Problem | None:
    """Return why an attempt would not see the checkpoints of the one before: they would go with its pod."""
    directory = config.checkpoint.directory
    if not (config.checkpoint.is_on or config.launcher.chain):
        return None
    if directory and (config.kubernetes.patch or _is_claimed(directory, config)):
        return None
    message = (
        f"directory {directory or 'of the pool'} is gone with the pod, because pods of this pool share no volume; use"
        " one that kubernetes.claims mounts"
    )
    return Problem("checkpoint.directory", directory, message)


def _is_claimed(directory: str, config: RunConfig) -> bool:
    return any(PurePosixPath(directory).is_relative_to(place) for place in config.kubernetes.claims.values())
