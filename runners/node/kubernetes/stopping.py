"""`stop-all --kubernetes`: end all runs of a state directory, beside its controller."""

from __future__ import annotations

import logging
import time

from runners.node.jobs.state import JobStateDir
from runners.node.jobs.system import SystemAway, SystemRefused
from runners.node.kubernetes import pods
from runners.node.kubernetes.api import Api

STOP_WITHIN_S = 90.0
"""Time for pods to end, beside the grace of their runs."""

log = logging.getLogger(__name__)


def stop_all(state: JobStateDir, namespace: str, context: str | None, within_s: float = STOP_WITHIN_S) -> int:
    """Delete all pods of a state directory and wait for them; return the number of those that are still there."""
    try:
        return _stop(state, Api.connect(namespace, context), within_s)
    except (SystemAway, SystemRefused, ValueError) as error:
        log.error("pods cannot be deleted: %s", error)
        return max(1, len(state.job_dirs()))


def _stop(state: JobStateDir, api: Api, within_s: float) -> int:
    runs = state.job_dirs()
    for run in runs:
        run.cancel("the node's daemon was stopped")
    deadline = (
        time.monotonic()
        + within_s
        + max((_grace_s(run.read_launch()) for run in runs if run.launch.exists()), default=0.0)
    )
    path = api.path("v1", "pods")
    deleted: set[str] = set()
    while True:
        query = {
            "labelSelector": f"{pods.CONTROLLER}={state.id}",
            "fieldSelector": "status.phase!=Succeeded,status.phase!=Failed",
        }
        living = [item["metadata"] for page in api.pages(path, **query) for item in page.get("items") or ()]
        for metadata in living:
            if metadata["uid"] not in deleted:
                api.delete(api.path("v1", "pods", metadata["name"]), uid=metadata["uid"])
                deleted.add(metadata["uid"])
        if not living:
            log.info("deleted %d pods; the next daemon reports their ends", len(deleted))
            return 0
        if time.monotonic() > deadline:
            log.error("pods %s are still there", ", ".join(metadata["name"] for metadata in living))
            return len(living)
        time.sleep(0.3)


def _grace_s(launch: dict[str, object]) -> float:
    value = launch.get("grace_s", 0)
    return float(value) if isinstance(value, int | float) else 0.0
