"""`python -m tests.kubernetes.plane.kubelet CONFIG NODE ROOT NUMBER [hollow]`: a kubelet for tests.

It runs the pods that are bound to its node as processes of this machine (`containers`). It is killed like any process;
its pods go on and the next one finds them. A hollow node states that its pods run and starts nothing.
"""

from __future__ import annotations

import contextlib
import http.client
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.kubernetes.plane.api import STRATEGIC, Api, ApiError, Object
from tests.kubernetes.plane.pods import END, Pod, addresses, now

BEAT_S = 2.0
NAMES_S = 0.25
CAPACITY = {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "8", "ephemeral-storage": "100Gi"}
AWAY = (OSError, ApiError, http.client.HTTPException)


class Kubelet:
    """One node."""

    def __init__(self, api: Api, node: str, root: Path, number: int, *, is_hollow: bool = False) -> None:
        self._api, self._node, self._root, self._is_hollow = api, node, root, is_hollow
        self._network = 64 + number
        self._pods: dict[str, Pod] = {}
        self._seen: set[str] = set()

    def run(self) -> None:
        """Serve the node until the process ends."""
        self._register()
        threading.Thread(target=self._beat, daemon=True).start()
        threading.Thread(target=self._name, daemon=True).start()
        take = self._pretend if self._is_hollow else self._take
        while True:
            try:
                for kind, pod in self._changes():
                    take(kind, pod)
            except AWAY:
                time.sleep(0.3)

    def _changes(self) -> Iterator[tuple[str, Object]]:
        """Yield the pods of this node, then their changes."""
        chosen = f"spec.nodeName={self._node}"
        listed = self._api.get("/api/v1/pods", fieldSelector=chosen)
        present = {pod["metadata"]["uid"] for pod in listed["items"]}
        for uid in set(self._pods) - present:
            self._pods.pop(uid).lose()
        for pod in listed["items"]:
            yield "ADDED", pod
        version = listed["metadata"]["resourceVersion"]
        yield from self._api.watch("/api/v1/pods", version=version, fieldSelector=chosen)

    def _take(self, kind: str, manifest: Object) -> None:
        uid = manifest["metadata"]["uid"]
        pod = self._pods.get(uid)
        if kind == "DELETED":
            if pod is not None:
                self._pods.pop(uid).lose()
            return
        if pod is None:
            directory = self._root / "pods" / uid
            if manifest["status"].get("phase") in ("Succeeded", "Failed"):
                if manifest["metadata"].get("deletionTimestamp"):
                    self._forget(manifest)
                return
            pod = self._pods[uid] = Pod(self._api, manifest, directory, self._root / "logs", self._network)
            pod.see(manifest)
            pod.start()
        pod.see(manifest)

    def _pretend(self, kind: str, manifest: Object) -> None:
        """State what the processes of a pod would do."""
        meta = manifest["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if kind == "DELETED":
            self._seen.discard(meta["uid"])
        elif meta.get("deletionTimestamp"):
            self._forget(manifest)
        elif verdict := meta.get("annotations", {}).get(END):
            if manifest["status"].get("phase") == "Running":
                self._api.patch(f"{path}/status", _pretended(manifest, verdict), STRATEGIC)
        elif meta["uid"] not in self._seen and manifest["status"].get("phase") == "Pending":
            self._seen.add(meta["uid"])
            self._api.patch(f"{path}/status", _pretended(manifest, ""), STRATEGIC)

    def _forget(self, manifest: Object) -> None:
        meta = manifest["metadata"]
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        self._api.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", body)

    def _register(self) -> None:
        labels = {"kubernetes.io/hostname": self._node, "kubernetes.io/os": "linux"}
        labels |= {"hollow": "true"} if self._is_hollow else {}
        taints = [{"key": "hollow", "value": "true", "effect": "NoSchedule"}] if self._is_hollow else []
        body = {"metadata": {"name": self._node, "labels": labels}, "spec": {"taints": taints}}
        while True:
            try:
                self._api.create("/api/v1/nodes", body)
            except ApiError as error:
                if error.status == 409:
                    return
            except (OSError, http.client.HTTPException):
                time.sleep(0.2)
            else:
                return

    def _beat(self) -> None:
        """State again and again that the node is ready."""
        resources = CAPACITY | (
            {"pods": "2000", "cpu": "8000", "memory": "16Ti"} if self._is_hollow else {"pods": "110"}
        )
        while True:
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now()}
            status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
            status |= {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
            with contextlib.suppress(*AWAY):
                self._api.patch(f"/api/v1/nodes/{self._node}/status", {"status": status}, STRATEGIC)
            time.sleep(BEAT_S)

    def _name(self) -> None:
        """Keep /etc/hosts of all pods, in place of a name server."""
        while True:
            time.sleep(NAMES_S)
            for namespace in {pod.namespace for pod in [*self._pods.values()]}:
                with contextlib.suppress(*AWAY):
                    lines = list(addresses(self._api, namespace))
                    for pod in [*self._pods.values()]:
                        if pod.namespace == namespace:
                            _write_hosts(pod, lines)


def _write_hosts(pod: Pod, lines: list[str]) -> None:
    path = pod.etc / "hosts"
    text = "\n".join(["127.0.0.1 localhost", f"{pod.address} {pod.hostname}", *lines]) + "\n"
    with contextlib.suppress(FileNotFoundError):
        if path.read_text() != text:
            path.write_text(text)  # in place, as the file is mounted in the containers


def _pretended(manifest: Object, verdict: str) -> Object:
    """Return the state of a pod of a hollow node: it runs, or has ended as a test asks for."""
    phase = "Running" if not verdict else "Succeeded" if verdict == "Completed" else "Failed"
    code = 0 if verdict == "Completed" else 137
    state = {"terminated": {"exitCode": code, "reason": verdict}} if verdict else {"running": {"startedAt": now()}}
    containers = [
        {
            "name": each["name"],
            "image": each["image"],
            "imageID": "",
            "restartCount": 0,
            "ready": not verdict,
            "state": state,
        }
        for each in manifest["spec"]["containers"]
    ]
    more = {"reason": verdict} if verdict == "Evicted" else {}
    ready = [{"type": "Ready", "status": str(not verdict)}]
    return {
        "status": {"phase": phase, "startTime": now(), "conditions": ready, "containerStatuses": containers, **more}
    }


def main(config: str, node: str, root: str, number: str, *kind: str) -> None:
    """Serve one node."""
    Kubelet(Api.of(Path(config)), node, Path(root), int(number), is_hollow=bool(kind)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
