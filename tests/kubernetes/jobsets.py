"""`python -m tests.kubernetes.jobsets CONFIG`: a small controller of JobSets, for an API server without Indexed Jobs.

Pods, names, labels, variables, the headless service, restarts, suspension and status are those of JobSet's controller
(v1alpha2); the Jobs between a JobSet and its pods are left out, and the policies are those without rules.
"""

from __future__ import annotations

import contextlib
import http.client
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tests.kubernetes.plane.api import Api, ApiError, Object

GROUP = "jobset.x-k8s.io"
LABEL = "jobset.sigs.k8s.io"
INDEX = "batch.kubernetes.io/job-completion-index"
POLL_S = 0.2
BACKOFF_LIMIT = 6
"""Failed pods of a job before it fails, where its specification states no number."""

_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_SPEC = {"type": "object", "required": ["replicatedJobs"], "x-kubernetes-preserve-unknown-fields": True}
_VERSION = {
    "name": "v1alpha2",
    "served": True,
    "storage": True,
    "subresources": {"status": {}},
    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _SPEC, "status": _ANY}}},
}
DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"jobsets.{GROUP}",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/jobset"},
    },
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": "jobsets", "singular": "jobset", "kind": "JobSet", "listKind": "JobSetList"},
        "versions": [_VERSION],
    },
}


class Job(NamedTuple):
    """One job of a JobSet: a number of pods that all have to succeed."""

    group: str
    number: int
    replicas: int
    spec: Object

    def pods(self, pods: list[Object]) -> list[Object]:
        """Return those pods that belong to this job."""
        key = self.group, str(self.number)
        return [pod for pod in pods if (_label(pod, "replicatedjob-name"), _label(pod, "job-index")) == key]


def _label(pod: Object, name: str) -> str:
    value: str = pod["metadata"]["labels"].get(f"{LABEL}/{name}", "")
    return value


def jobs_of(jobset: Object) -> Iterator[Job]:
    """Yield the jobs of a JobSet."""
    for group in jobset["spec"]["replicatedJobs"]:
        replicas = group.get("replicas", 1)
        for index in range(replicas):
            yield Job(group["name"], index, replicas, group["template"]["spec"])


def pod_of(jobset: Object, job: Job, index: int, restart: int, failures: int) -> Object:
    """Return the pod of one completion index."""
    meta, name = jobset["metadata"], jobset["metadata"]["name"]
    template = job.spec["template"]
    job_name = f"{name}-{job.group}-{job.number}"
    marks = {
        f"{LABEL}/jobset-name": name,
        f"{LABEL}/jobset-uid": meta["uid"],
        f"{LABEL}/replicatedjob-name": job.group,
        f"{LABEL}/replicatedjob-replicas": str(job.replicas),
        f"{LABEL}/job-index": str(job.number),
        f"{LABEL}/restart-attempt": str(restart),
        "batch.kubernetes.io/job-name": job_name,
        "job-name": job_name,
        INDEX: str(index),
    }
    given = template.get("metadata", {})
    spec = {**template["spec"], "hostname": f"{job_name}-{index}", "subdomain": _network(jobset)["subdomain"]}
    field = {
        "name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}},
    }
    for kind in ("containers", "initContainers"):
        spec[kind] = [{**each, "env": [*each.get("env", []), field]} for each in spec.get(kind, [])]
    return {
        "metadata": {
            "name": f"{job_name}-{index}-{meta['uid'][:3]}{restart}{failures}",
            "labels": {**given.get("labels", {}), **marks},
            "annotations": {**given.get("annotations", {}), **marks},
            "ownerReferences": [_owner(jobset)],
        },
        "spec": spec,
    }


def _owner(jobset: Object) -> Object:
    meta = jobset["metadata"]
    kind = {"apiVersion": jobset["apiVersion"], "kind": "JobSet", "name": meta["name"], "uid": meta["uid"]}
    return {**kind, "controller": True, "blockOwnerDeletion": True}


def _network(jobset: Object) -> Object:
    defaults = {"subdomain": jobset["metadata"]["name"], "publishNotReadyAddresses": True}
    network: Object = defaults | jobset["spec"].get("network", {})
    return network


class Controller:
    """Makes pods of JobSets."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def run(self) -> None:
        """Serve all JobSets until the process ends."""
        while True:
            with contextlib.suppress(ApiError, OSError, http.client.HTTPException):
                for jobset in self._api.items(f"/apis/{GROUP}/v1alpha2/jobsets"):
                    self.reconcile({"apiVersion": f"{GROUP}/v1alpha2", **jobset})
            time.sleep(POLL_S)

    def reconcile(self, jobset: Object) -> None:
        """Make one step towards what a JobSet states."""
        if jobset["metadata"].get("deletionTimestamp"):
            return
        space = f"/api/v1/namespaces/{jobset['metadata']['namespace']}"
        chosen = f"{LABEL}/jobset-uid={jobset['metadata']['uid']}"
        pods = self._api.items(f"{space}/pods", labelSelector=chosen)
        if jobset.get("status", {}).get("terminalState"):
            self._end_active(space, pods)
            self._expire(jobset)
            return
        restart = jobset.get("status", {}).get("restarts", 0)
        for pod in pods:
            is_old = _label(pod, "restart-attempt") != str(restart) or jobset["spec"].get("suspend")
            if is_old and not pod["metadata"].get("deletionTimestamp"):
                self._api.delete(f"{space}/pods/{pod['metadata']['name']}")
        current = [pod for pod in pods if _label(pod, "restart-attempt") == str(restart)]
        if not jobset["spec"].get("suspend") and len(current) == len(pods):
            self._create_missing(jobset, space, current, restart)
        self._report(jobset, current, restart)

    def _end_active(self, space: str, pods: list[Object]) -> None:
        """Delete the pods that go on although the JobSet has ended."""
        for pod in pods:
            if pod["status"]["phase"] in ("Pending", "Running") and not pod["metadata"].get("deletionTimestamp"):
                self._api.delete(f"{space}/pods/{pod['metadata']['name']}")

    def _create_missing(self, jobset: Object, space: str, pods: list[Object], restart: int) -> None:
        network = _network(jobset)
        labels = {f"{LABEL}/jobset-name": jobset["metadata"]["name"]}
        public = network["publishNotReadyAddresses"]
        spec = {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": public}
        owned = {"name": network["subdomain"], "ownerReferences": [_owner(jobset)]}
        self._ensure(f"{space}/services", {"metadata": owned, "spec": spec})
        for job in jobs_of(jobset):
            own = job.pods(pods)
            if _has_failed(job, own):
                continue
            for index in range(_size(job)):
                tries = [pod for pod in own if pod["metadata"]["annotations"][INDEX] == str(index)]
                if all(pod["status"]["phase"] == "Failed" for pod in tries):
                    self._ensure(f"{space}/pods", pod_of(jobset, job, index, restart, len(tries)))

    def _ensure(self, path: str, body: Object) -> None:
        try:
            self._api.create(path, body)
        except ApiError as error:
            if error.status != 409:
                raise

    def _report(self, jobset: Object, pods: list[Object], restart: int) -> None:
        """Write the status, and with it the next restart or the end."""
        before = jobset.get("status", {})
        status: Object = {"restarts": restart, "replicatedJobsStatus": _counts(jobset, pods), "conditions": []}
        failed = [job for job in jobs_of(jobset) if _has_failed(job, job.pods(pods))]
        limit = jobset["spec"].get("failurePolicy", {}).get("maxRestarts", 0)
        if failed and restart < limit:
            status["restarts"] = restart + 1
        elif failed:
            _end(status, "Failed", "FailedJobs", "jobset failed due to one or more job failures")
        elif all(_has_succeeded(job, job.pods(pods)) for job in jobs_of(jobset)):
            _end(status, "Completed", "AllJobsCompleted", "jobset completed successfully")
        elif jobset["spec"].get("suspend"):
            status["conditions"] = [_condition("Suspended", "SuspendedJobs", "jobset is suspended")]
        if {**before, "conditions": _types(before)} != {**status, "conditions": _types(status)}:
            meta = jobset["metadata"]
            path = f"/apis/{GROUP}/v1alpha2/namespaces/{meta['namespace']}/jobsets/{meta['name']}/status"
            self._api.patch(path, {"status": status})

    def _expire(self, jobset: Object) -> None:
        """Delete a JobSet some time after its end, if it says so."""
        seconds = jobset["spec"].get("ttlSecondsAfterFinished")
        ended = datetime.fromisoformat(jobset["status"]["conditions"][-1]["lastTransitionTime"].replace("Z", "+00:00"))
        if seconds is not None and (datetime.now(UTC) - ended).total_seconds() >= seconds:
            meta = jobset["metadata"]
            path = f"/apis/{GROUP}/v1alpha2/namespaces/{meta['namespace']}/jobsets/{meta['name']}"
            self._api.delete(path, {"propagationPolicy": "Background"})


def _size(job: Job) -> int:
    """Return how many pods of a job have to succeed."""
    return int(job.spec.get("completions") or job.spec.get("parallelism") or 1)


def _has_failed(job: Job, pods: list[Object]) -> bool:
    """Return whether pods have failed, or containers have started again, more often than allowed."""
    limit = int(job.spec.get("backoffLimit", BACKOFF_LIMIT))
    failures = [pod for pod in pods if pod["status"]["phase"] == "Failed"]
    starts = [each.get("restartCount", 0) for pod in pods for each in pod["status"].get("containerStatuses", [])]
    return len(failures) > limit or (sum(starts) >= limit if limit else sum(starts) > 0)


def _has_succeeded(job: Job, pods: list[Object]) -> bool:
    done = {pod["metadata"]["annotations"][INDEX] for pod in pods if pod["status"]["phase"] == "Succeeded"}
    return len(done) == _size(job)


def _counts(jobset: Object, pods: list[Object]) -> list[Object]:
    """Return how many jobs of each kind are ready, active, and have ended."""
    rows = []
    for group in jobset["spec"]["replicatedJobs"]:
        jobs = [job for job in jobs_of(jobset) if job.group == group["name"]]
        failed = sum(_has_failed(job, job.pods(pods)) for job in jobs)
        succeeded = sum(_has_succeeded(job, job.pods(pods)) for job in jobs)
        suspended = len(jobs) if jobset["spec"].get("suspend") else 0
        active = 0 if suspended else len(jobs) - failed - succeeded
        ready = sum(bool(own) and all(map(_is_ready, own)) for job in jobs if (own := job.pods(pods)))
        row = {"name": group["name"], "ready": ready, "active": active, "suspended": suspended}
        rows.append({**row, "failed": failed, "succeeded": succeeded})
    return rows


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", [])
    is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return is_ready or pod["status"]["phase"] == "Succeeded"


def _end(status: Object, kind: str, reason: str, message: str) -> None:
    status["terminalState"] = kind
    status["conditions"] = [_condition(kind, reason, message)]


def _condition(kind: str, reason: str, message: str) -> Object:
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": at}


def _types(status: Object) -> list[str]:
    return [each["type"] for each in status.get("conditions", [])]


def main(config: str) -> None:
    """Serve until the process ends."""
    Controller(Api.of(Path(config))).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
