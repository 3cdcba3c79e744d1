"""Which pods nobody needs any more: their run has ended, or its output is stored and their time is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from runners.node.jobs.state import JobStateDir
from runners.node.kubernetes.api import KubernetesRefused
from runners.node.kubernetes.cluster import Cluster
from runners.node.kubernetes.pods import Pod, pod_of

AFTER_END_S = 10.0
"""Time for a pod to end after the last word of its run."""
SWEEP_S = 600.0
"""Seconds between two lists of all ended pods: those that another controller has left."""
SWEPT_AT_ONCE = 200
"""Of them, with each look at the pods."""

log = logging.getLogger(__name__)

Key = tuple[int, int]


class Cleaner:
    """Deletes the pods of one state directory, however their runs have ended."""

    def __init__(self, cluster: Cluster, state: JobStateDir) -> None:
        self._cluster, self._state = cluster, state
        self._over_since: dict[str, float] = {}
        self._leaving: dict[str, tuple[Pod, float]] = {}
        """Ended pods by uid, and when their time is over."""
        self._swept_at = float("-inf")
        self._ended: Iterator[Any] = iter(())
        """Ended pods that the server still lists, in pages."""

    def clean(self, living: list[Pod]) -> None:
        """Delete living pods whose run has ended, and ended ones whose time is over. Raises SystemAway."""
        self._end_orphans(living)
        now = time.time()
        for uid, (pod, due_at) in [*self._leaving.items()]:
            if now >= due_at:
                self._cluster.delete_pod(pod)
                self._leaving.pop(uid, None)
        if time.monotonic() - self._swept_at > SWEEP_S:
            self._swept_at = time.monotonic()
            self._ended = self._cluster.ended()
        self._sweep()

    def leave(self, held: set[Key]) -> None:
        """Note the pods that have ended, and whose attempts the server has stored."""
        for pod in self._cluster.past().values():
            if pod.key not in held:
                self._leaving.setdefault(pod.uid, (pod, time.time() + pod.ttl_s))

    def _end_orphans(self, living: list[Pod]) -> None:
        now, over = time.monotonic(), {}
        for pod in living:
            run = self._state.find(pod.run, pod.attempt, pod.node_rank)
            if pod.is_deleted or (run.exists and run.is_alive):
                continue
            over[pod.uid] = since = self._over_since.get(pod.uid, now)
            if not pod.is_running or now - since > AFTER_END_S:
                log.info("deleting pod %s: its run has ended", pod.name)
                self._cluster.delete_pod(pod)
        self._over_since = over

    def _sweep(self) -> None:
        """Take the next ended pods of a list: thousands at once would keep the living ones waiting."""
        try:
            some = list(islice(self._ended, SWEPT_AT_ONCE))
        except KubernetesRefused as error:
            log.warning("the list of ended pods is read again later: %s", error)
            return
        held = {(run.run, run.attempt) for run in self._state.job_dirs()} if some else set()
        for data in some:
            pod = pod_of(data)
            if pod is not None and pod.key not in held:
                self._leaving.setdefault(pod.uid, (pod, _ended_at(data) + pod.ttl_s))


def _ended_at(data: Any) -> float:
    texts = [
        (container.get("state") or {}).get("terminated", {}).get("finishedAt")
        for container in data.get("status", {}).get("containerStatuses") or ()
    ]
    text = max(filter(None, texts), default=None) or data["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
