"""What a kubelet does for one pod: volumes, init containers, containers, their states, and its end."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zlib import crc32

from tests.kubernetes.plane.api import STRATEGIC, Api, ApiError, Object
from tests.kubernetes.plane.containers import Container, Mount, clear
from tests.kubernetes.plane.volumes import NotReady, Volumes, mounts_of, variables_of

END = "plane.test/end"
"""Annotation by which a test ends a pod: Evicted, OOMKilled."""
POLL_S = 0.05
RETRY_S = 0.5
BACK_OFF_S = 1.0
"""Pause before a container starts for the third time; real kubelets begin with ten seconds."""
PULL_ERRORS = {
    "missing": "failed to resolve reference: not found",
    "denied": "failed to resolve reference: pull access denied, repository does not exist or may require authorization",
}
"""Part of the name of an image -> why it cannot be pulled."""
EVICTED = "The node was low on resource: memory. "
DEADLINE = "Pod was active on the node longer than the specified deadline"


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Pod:
    """One pod on this node. What has started is in its directory, so that the next kubelet goes on with it."""

    def __init__(self, api: Api, manifest: Object, directory: Path, logs: Path, network: int) -> None:
        self._api, self._manifest, self._directory, self._logs = api, manifest, directory, logs
        meta = manifest["metadata"]
        self.name, self.namespace, self.uid = meta["name"], meta["namespace"], meta["uid"]
        self._spec = manifest["spec"]
        digits = crc32(self.uid.encode())
        # Every pod is on the network of this machine, at an address of its own.
        own = f"127.{network}.{digits >> 8 & 255}.{(digits & 255) % 254 + 1}"
        self.address = manifest.get("status", {}).get("podIP") or own
        self._states: dict[str, Object] = {}
        self._restarts: dict[str, int] = {}
        self._last_ends: dict[str, Object] = {}
        self._grace_s: float | None = None
        self._volumes: Volumes | None = None
        self._annotations = meta.get("annotations")
        self._verdict = ""
        self._is_gone = False
        self._reported: Object = {}
        self._started_at = manifest.get("status", {}).get("startTime") or now()
        self._began = time.time() if "startTime" not in manifest.get("status", {}) else _seconds(self._started_at)

    @property
    def etc(self) -> Path:
        """Folder of the files of /etc that a kubelet writes."""
        return self._directory / "etc"

    @property
    def hostname(self) -> str:
        name: str = self._spec.get("hostname") or self.name
        return name[:63]

    def see(self, manifest: Object) -> None:
        """Take note of a change of the pod."""
        self._manifest, meta = manifest, manifest["metadata"]
        if not self._last_ends:  # a container that was started again has met it
            self._verdict = self._verdict or meta.get("annotations", {}).get(END, "")
        if self._volumes is not None and meta.get("annotations") != self._annotations:
            self._annotations = meta.get("annotations")
            self._volumes.refresh(manifest)
        if meta.get("deletionTimestamp") and self._grace_s is None:
            self._grace_s = float(meta.get("deletionGracePeriodSeconds") or 0)

    def lose(self) -> None:
        """Take note that the pod has been deleted without waiting for its end."""
        self._grace_s, self._is_gone = 0.0, True

    def start(self) -> None:
        """Run the pod in a thread."""
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        """Run the pod to its end, and delete it once that is asked for."""
        self.etc.mkdir(parents=True, exist_ok=True)
        (self.etc / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        (self.etc / "hosts").touch()
        with contextlib.suppress(_Stopped):
            self._live()
        while self._grace_s is None:  # it stays until it is deleted
            time.sleep(POLL_S)
        self._end(self._grace_s)
        self._report(self._final_phase())
        if not self._is_gone:
            self._patiently(lambda: self._api.delete(self._path, self._deletion))
        clear(self._directory)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _live(self) -> None:
        for spec in self._containers:
            self._states[spec["name"]] = _waiting("ContainerCreating")
        self._report("Pending")
        self._volumes = Volumes(self._api, self._manifest, self._directory)
        volumes = self._until_ready(self._volumes.prepare)
        for spec in self._spec.get("initContainers", []):
            if not self._initialize(spec, volumes):
                return
        running = {each["name"]: self._start(each, volumes) for each in self._spec["containers"]}
        self._report("Running")
        while running:
            self._check()
            for name, container in list(running.items()):
                if (code := container.exit_code()) is not None:
                    spec = next(each for each in self._spec["containers"] if each["name"] == name)
                    again = self._ended(spec, container, code)
                    running.pop(name)
                    if again:
                        running[name] = self._start(spec, volumes)
                    self._report("Running" if running else self._final_phase())
            time.sleep(POLL_S)

    def _initialize(self, spec: Object, volumes: dict[str, Any]) -> bool:
        """Run an init container to its end; return whether the pod goes on."""
        while True:
            container = self._start(spec, volumes)
            self._report("Pending")
            while (code := container.exit_code()) is None:
                self._check()
                time.sleep(POLL_S)
            again = self._ended(spec, container, code)
            if code == 0:
                return True
            if not again:
                self._report("Failed")
                return False

    def _start(self, spec: Object, volumes: dict[str, Any]) -> Container:
        """Start a container, or take the one that an earlier kubelet has started."""
        name = spec["name"]
        number = self._restarts.setdefault(name, self._number(name))
        directory = self._directory / f"{name}.{number}"
        container = Container(directory, self._logs / f"{self.namespace}_{self.name}_{name}.{number}.log")
        if not container.has_started:
            self._pull(spec)
            variables = self._until_ready(lambda: variables_of(self._api, self._manifest, spec, self.address))
            variables = self._service_variables() | variables
            user = (spec.get("securityContext") or {}).get("runAsUser")
            user = (self._spec.get("securityContext") or {}).get("runAsUser") if user is None else user
            mounts = [*mounts_of(spec, volumes), *self._message_mount(spec)]
            try:
                container.start(spec, variables, mounts, self.etc, self.hostname, user)
            except ValueError as error:
                self._wait_as(NotReady("CreateContainerError", str(error)))
                raise _Stopped from error
            self.event("Started", f"Started container {name}")
        self._states[name] = {"running": {"startedAt": now()}}
        return container

    def _message_mount(self, spec: Object) -> Iterator[Mount]:
        """Yield the file in which a container may leave why it has ended."""
        if path := spec.get("terminationMessagePath"):
            if path.startswith("/dev/"):
                return  # the default, in a folder that is this machine's own
            file = self._directory / f"{spec['name']}.message"
            file.touch()
            file.chmod(0o666)
            yield Mount(path, file)

    def _message(self, name: str) -> Object:
        with contextlib.suppress(FileNotFoundError):
            if text := (self._directory / f"{name}.message").read_text(errors="replace")[-4096:]:
                return {"message": text}
        return {}

    def _number(self, name: str) -> int:
        """Return the number of the last start of a container, 0 before the first."""
        numbers = [int(path.name.rpartition(".")[2]) for path in self._directory.glob(f"{name}.*") if path.is_dir()]
        return max(numbers, default=0)

    def _service_variables(self) -> dict[str, str]:
        host, _, port = self._api.server.rpartition("/")[2].partition(":")
        return {"HOSTNAME": self.hostname, "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}

    def _pull(self, spec: Object) -> None:
        """Wait for an image that cannot be pulled, until the pod is deleted."""
        image = spec["image"]
        why = next((why for part, why in PULL_ERRORS.items() if part in image), "")
        if not why:
            return
        full = f'Failed to pull image "{image}": rpc error: code = NotFound desc = {why}'
        self.event("Failed", full, is_warning=True)
        self._states[spec["name"]] = _waiting("ErrImagePull", f"rpc error: code = NotFound desc = {why}")
        self._report("Pending")
        self._pause(BACK_OFF_S)
        back_off = f'Back-off pulling image "{image}"'
        self.event("BackOff", back_off, is_warning=True)
        self._states[spec["name"]] = _waiting("ImagePullBackOff", back_off)
        self._report("Pending")
        while True:
            self._pause(1.0)

    def _ended(self, spec: Object, container: Container, code: int) -> bool:
        """Take note of the end of a container; return whether it starts again, after a pause."""
        name = spec["name"]
        reason = "Completed" if code == 0 else "OOMKilled" if self._verdict == "OOMKilled" else "Error"
        began = self._states[name].get("running", {}).get("startedAt")
        ended = {"exitCode": code, "reason": reason, "startedAt": began, "finishedAt": now(), **self._message(name)}
        self._states[name] = {"terminated": ended}
        policy = self._spec.get("restartPolicy", "Always")
        is_init = spec in self._spec.get("initContainers", [])
        again = policy != "Never" and (code != 0 or (policy == "Always" and not is_init))
        if not again or self._grace_s is not None:
            return False
        self._last_ends[name], self._verdict = self._states[name], ""
        if self._restarts[name]:  # at once for the first time
            self._states[name] = _waiting("CrashLoopBackOff", f"back-off restarting failed container {name}")
            self._report("Running")
            self._pause(BACK_OFF_S)
        self._restarts[name] += 1
        return True

    def _check(self) -> None:
        """End the pod early: it is deleted, evicted, out of memory, or beyond its deadline."""
        if self._grace_s is not None:
            raise _Stopped
        limit_s = self._spec.get("activeDeadlineSeconds")
        if limit_s is not None and time.time() > self._began + limit_s:
            self._fail("DeadlineExceeded", DEADLINE)
        if self._verdict == "Evicted":
            self.event("Evicted", EVICTED, is_warning=True)
            self._fail("Evicted", EVICTED)
        if self._verdict == "OOMKilled":
            for container in self._started_containers():
                container.send(signal.SIGKILL)
            while any(container.exit_code() is None for container in self._started_containers()):
                time.sleep(POLL_S)

    def _fail(self, reason: str, message: str) -> None:
        """End all containers as a kubelet that decides it by itself, and keep the pod."""
        self._end(float(self._spec.get("terminationGracePeriodSeconds", 30)))
        self._report("Failed", reason=reason, message=message)
        raise _Stopped

    def _end(self, grace_s: float) -> None:
        """Ask the containers to end; kill those that run after the time of grace."""
        running = [container for container in self._started_containers() if container.exit_code() is None]
        if running:
            self.event("Killing", "Stopping container " + ", ".join(each["name"] for each in self._containers))
        deadline = time.monotonic() + grace_s
        for container in running if grace_s else ():
            container.send(signal.SIGTERM)
        while any(each.exit_code() is None for each in running) and time.monotonic() < deadline:
            if self._is_gone:
                break
            time.sleep(POLL_S)
        for container in running:
            container.send(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while any(each.exit_code() is None for each in running) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        clear(self._directory)
        for spec in self._containers:
            state = self._states.get(spec["name"], {})
            if "running" in state:
                number = self._restarts[spec["name"]]
                container = Container(self._directory / f"{spec['name']}.{number}", self._logs)
                code = container.exit_code()
                began = state["running"]["startedAt"]
                reason = "Completed" if code == 0 else "Error"
                self._states[spec["name"]] = {
                    "terminated": {"exitCode": code, "reason": reason, "startedAt": began, "finishedAt": now()}
                    | self._message(spec["name"])
                }

    def _started_containers(self) -> list[Container]:
        found = []
        for name, number in self._restarts.items():
            container = Container(self._directory / f"{name}.{number}", self._logs)
            if container.has_started:
                found.append(container)
        return found

    def _final_phase(self) -> str:
        codes = [self._states.get(each["name"], {}).get("terminated", {}) for each in self._spec["containers"]]
        return "Succeeded" if all(each.get("exitCode") == 0 for each in codes) else "Failed"

    @property
    def _containers(self) -> list[Object]:
        return [*self._spec.get("initContainers", []), *self._spec["containers"]]

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    @property
    def _deletion(self) -> Object:
        return {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}

    def _until_ready(self, prepare: Any) -> Any:
        """Prepare something, again and again as long as it is not there."""
        last = ""
        while True:
            try:
                return prepare()
            except NotReady as error:
                if error.message != last:
                    last = error.message
                    self._wait_as(error)
                    self._report("Pending")
            except (OSError, ApiError, http.client.HTTPException):
                pass
            self._pause(RETRY_S)

    def _wait_as(self, error: NotReady) -> None:
        is_mount = error.reason == "FailedMount"
        self.event(error.reason if is_mount else "Failed", error.message, is_warning=True)
        if not is_mount:
            for spec in self._spec["containers"]:
                self._states[spec["name"]] = _waiting(error.reason, error.message)
        self._report("Pending")

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._check()
            time.sleep(POLL_S)

    def _report(self, phase: str, **more: str) -> None:
        """Write the state of the pod, if it has changed."""
        inits = {each["name"] for each in self._spec.get("initContainers", [])}
        is_ready = phase == "Running" and all(
            "running" in self._states[each["name"]] for each in self._spec["containers"]
        )
        conditions = {"Initialized": phase != "Pending", "Ready": is_ready, "ContainersReady": is_ready}
        status = {
            "phase": phase,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "hostIP": "127.0.0.1",
            "startTime": self._started_at,
            "conditions": [{"type": kind, "status": str(value)} for kind, value in conditions.items()],
            "initContainerStatuses": [self._container(each) for each in self._containers if each["name"] in inits],
            "containerStatuses": [self._container(each) for each in self._containers if each["name"] not in inits],
            **more,
        }
        if status != self._reported and not self._is_gone:
            self._reported = status
            body = {"metadata": {"uid": self.uid}, "status": status}
            self._patiently(lambda: self._api.patch(f"{self._path}/status", body, STRATEGIC))

    def _container(self, spec: Object) -> Object:
        state = self._states.get(spec["name"], _waiting("PodInitializing"))
        return {
            "name": spec["name"],
            "image": spec["image"],
            "imageID": "",
            "ready": "running" in state,
            "restartCount": self._restarts.get(spec["name"], 0),
            "state": state,
            "lastState": self._last_ends.get(spec["name"], {}),
        }

    def _patiently(self, call: Any) -> None:
        """Repeat a call as long as the API server is away; an answer is one, whatever it is."""
        while True:
            try:
                call()
            except ApiError as error:
                if error.status >= 500 or error.status == 429:
                    time.sleep(RETRY_S)
                    continue
                if error.status not in (404, 409):
                    print(self.name, error, flush=True)  # in the log of the kubelet
            except (OSError, http.client.HTTPException):
                time.sleep(RETRY_S)
                continue
            return

    def event(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Write an event of this pod; one that cannot be written is lost, as in real clusters."""
        who = {"kind": "Pod", "apiVersion": "v1", "name": self.name, "namespace": self.namespace, "uid": self.uid}
        body = {
            "metadata": {"generateName": f"{self.name[:50]}.", "namespace": self.namespace},
            "involvedObject": who,
            "reason": reason,
            "message": message,
            "type": "Warning" if is_warning else "Normal",
            "source": {"component": "kubelet"},
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
        }
        with contextlib.suppress(ApiError, OSError, http.client.HTTPException):
            self._api.create(f"/api/v1/namespaces/{self.namespace}/events", body)


class _Stopped(Exception):
    """The containers of a pod end."""


def _waiting(reason: str, message: str = "") -> Object:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def _seconds(stamp: str) -> float:
    return datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()


def addresses(api: Api, namespace: str) -> Iterator[str]:
    """Yield the lines of /etc/hosts that a cluster's name server would answer: services and the pods behind them.

    The server's own endpoints accept no addresses of loopback.
    """
    pods = [pod for pod in api.items(f"/api/v1/namespaces/{namespace}/pods") if pod["status"].get("podIP")]
    for service in api.items(f"/api/v1/namespaces/{namespace}/services"):
        chosen = (service["spec"].get("selector") or {}).items()
        name = service["metadata"]["name"]
        for pod in pods:
            if chosen and chosen <= (pod["metadata"].get("labels") or {}).items() and _is_public(service, pod):
                own = pod["spec"].get("hostname") if pod["spec"].get("subdomain") == name else None
                names = [name, *([f"{own}.{name}"] if own else [])]
                ends = ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")
                yield " ".join([pod["status"]["podIP"], *(f"{each}{end}" for each in names for end in ends)])


def _is_public(service: Object, pod: Object) -> bool:
    """Return whether the name server answers with a pod: it is ready, or the service does not ask for that."""
    if pod["status"]["phase"] in ("Succeeded", "Failed"):
        return False
    conditions = pod["status"].get("conditions", [])
    is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return is_ready or bool(service["spec"].get("publishNotReadyAddresses"))
