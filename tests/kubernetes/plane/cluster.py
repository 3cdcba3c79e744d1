"""`python -m tests.kubernetes.plane.cluster`: a real control plane on this machine, with three nodes.

It has its own ports and directories, and ends with the process that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from parlab.embedded import free_port
from runners.supervisor.processes import die_with
from tests.kubernetes.plane.api import Api, ApiError, Object
from tests.kubernetes.plane.build import program
from tests.kubernetes.plane.containers import ROOT, clear
from tests.kubernetes.plane.pods import END
from tests.patience import wait_for

NODES = ("n1", "n2", "n3")
SERVICES = ("etcd", "apiserver", "controllers", "scheduler")
TOKEN = "token-of-the-administrator"
CONTROLLERS = (
    *("job", "cronjob", "deployment", "replicaset", "statefulset", "disruption", "resourcequota"),
    *("garbagecollector", "namespace", "podgc", "nodelifecycle", "serviceaccount", "serviceaccount-token"),
    *("ttl-after-finished", "persistentvolume-binder", "pvc-protection", "pv-protection"),
)
AWAY_S = 10
"""A node that has not reported for so long is not ready; its pods are evicted after as long again."""


class Plane:
    """etcd, an API server, controllers, a scheduler and a kubelet per node; all of them end with `close`."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="parlab-kubernetes-", dir="/var/tmp"))
        self.root.chmod(0o755)
        self.home = self.root / "shared"
        """Directory that all nodes see: for volumes."""
        self.kubeconfig = self.root / "kubeconfig"
        """Configuration of the administrator."""
        self._etcd, self._port = free_port(), free_port()
        authority = str(self.root / "certificates" / "apiserver.crt")
        self.api = Api(f"https://127.0.0.1:{self._port}", TOKEN, "")
        self._authority = authority
        self._commands: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._numbers = itertools.count(1)

    def start(self) -> None:
        """Start everything and wait until all nodes are ready."""
        self.home.mkdir()
        self._write_keys()
        self._start_keeper()
        self._commands = self._commands_of_the_plane()
        self.start_service("etcd")
        self.start_service("apiserver")
        self.wait_until_served()
        self.start_service("controllers")
        self.start_service("scheduler")
        for node in NODES:
            self.start_node(node)
        for node in NODES:
            self.wait_for_node(node, is_ready=True)

    def wait_until_served(self) -> None:
        """Wait until the API server answers."""
        wait_for(lambda: Path(self._authority).exists(), "the API server has a certificate")
        self.api = Api(self.api.server, TOKEN, self._authority)
        self.kubeconfig.write_text(json.dumps(self.api.kubeconfig()))
        wait_for(lambda: self.api.text("/readyz") == "ok", "the API server is ready")

    def start_service(self, name: str) -> None:
        """Start etcd, apiserver, controllers or scheduler, unless it runs."""
        if not self.is_running(name):
            self._spawn(name, self._commands[name])

    def mend(self) -> None:
        """Start the services that do not run: controllers and scheduler may end by themselves when etcd was away."""
        for name in SERVICES:
            self.start_service(name)
        self.wait_until_served()

    def kill(self, name: str) -> None:
        """Kill a service or a kubelet with signal 9; pods go on."""
        self._stop(name, signal.SIGKILL)

    def start_node(self, node: str, *, is_hollow: bool = False) -> None:
        """Start the kubelet of a node."""
        module = [sys.executable, "-m", "tests.kubernetes.plane.kubelet"]
        number = next(self._numbers)
        directory = self._node(node)
        directory.mkdir(parents=True, exist_ok=True)
        arguments = [str(self.kubeconfig), node, str(directory), str(number % 60), *(["hollow"] if is_hollow else [])]
        self._commands[node] = [*module, *arguments]
        self._spawn(node, self._commands[node])

    def kill_node(self, node: str, *, with_pods: bool = True) -> None:
        """Lose a node: its kubelet ends without a word, and its pods too unless only the kubelet is lost."""
        self.kill(node)
        if with_pods:
            clear(self._node(node))

    def wait_for_node(self, node: str, *, is_ready: bool) -> None:
        """Wait until the cluster has noticed that a node is there, or away."""
        wait_for(lambda: self._is_ready(node) == is_ready, f"node {node} is {'ready' if is_ready else 'not ready'}")

    def namespace(self, name: str) -> str:
        """Create a namespace and wait until pods can be created in it."""
        with contextlib.suppress(ApiError):
            self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_for(lambda: (self.api.find(account) or {}).get("secrets"), f"namespace {name} has an account")
        return name

    def config_of(self, namespace: str, account: str) -> Path:
        """Write the configuration of a service account; return its path."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
        token = self.api.create(path, body)["status"]["token"]
        config = self.root / f"{namespace}-{account}.kubeconfig"
        config.write_text(json.dumps(Api(self.api.server, token, self._authority).kubeconfig(namespace)))
        return config

    def pods(self, namespace: str, labels: str = "") -> list[Object]:
        """Return the pods of a namespace, those with the given labels."""
        return self.api.items(f"/api/v1/namespaces/{namespace}/pods", **({"labelSelector": labels} if labels else {}))

    def clear(self, namespace: str) -> None:
        """Delete all pods of a namespace at once, without waiting for their kubelets, and what would create them."""
        with contextlib.suppress(ApiError):  # where JobSets are served
            self.api.call("DELETE", f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets")
        path = f"/api/v1/namespaces/{namespace}/pods"
        self.api.call("DELETE", path, {"gracePeriodSeconds": 0})
        wait_for(lambda: not self.pods(namespace), f"namespace {namespace} is empty")

    def end_pod(self, namespace: str, name: str, reason: str) -> None:
        """Let the kubelet of a pod end it: Evicted or OOMKilled."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        self.api.patch(path, {"metadata": {"annotations": {END: reason}}})

    def claim(self, namespace: str, name: str) -> Path:
        """Create a claim with its volume, a directory that all nodes see; return the directory."""
        directory = self.home / f"{namespace}-{name}"
        directory.mkdir(exist_ok=True)
        size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
        spec = {"capacity": size, "accessModes": modes, "storageClassName": "", "hostPath": {"path": str(directory)}}
        spec["claimRef"] = {"namespace": namespace, "name": name}
        volume = {"metadata": {"name": f"{namespace}-{name}"}, "spec": spec}
        self.api.create("/api/v1/persistentvolumes", volume)
        wanted = {"accessModes": modes, "storageClassName": "", "resources": {"requests": size}}
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        self.api.create(path, {"metadata": {"name": name}, "spec": wanted})
        # The scheduler may let a pod wait for a minute that names a claim too early.
        wait_for(lambda: self.api.get(f"{path}/{name}")["status"]["phase"] == "Bound", f"claim {name} is bound")
        return directory

    def output(self, namespace: str, pod: str) -> str:
        """Return what the containers of a pod have printed."""
        paths = sorted(self.root.glob(f"nodes/*/logs/{namespace}_{pod}_*.log"))
        return "".join(path.read_text(errors="replace") for path in paths)

    def is_running(self, name: str) -> bool:
        """Return whether a service or a kubelet runs."""
        return name in self._processes and self._processes[name].poll() is None

    def log(self) -> str:
        """Return the end of the logs, for a failed test."""
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in sorted(self.root.glob("*.out")))

    def close(self) -> None:
        """End all processes, pods included, and delete the directories."""
        for name in [*self._processes]:
            if name != "keeper":
                self._stop(name, signal.SIGKILL)
        keeper = self._processes.pop("keeper", None)
        if keeper is not None and keeper.stdin is not None:
            keeper.stdin.close()
            keeper.wait(timeout=60)
        shutil.rmtree(self.root, ignore_errors=True)

    def _is_ready(self, node: str) -> bool:
        found = self.api.find(f"/api/v1/nodes/{node}") or {"status": {}}
        conditions = found["status"].get("conditions", [])
        is_tainted = any(
            taint["key"].startswith("node.kubernetes.io/") for taint in found.get("spec", {}).get("taints", [])
        )
        return not is_tainted and any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _node(self, node: str) -> Path:
        return self.root / "nodes" / node

    def _write_keys(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        plain = serialization.NoEncryption()
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
        (self.root / "accounts.key").write_bytes(private)
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (self.root / "accounts.pub").write_bytes(public)
        (self.root / "tokens.csv").write_text(f'{TOKEN},admin,1,"system:masters"\n')

    def _commands_of_the_plane(self) -> dict[str, list[str]]:
        root, etcd, peer = self.root, f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{free_port()}"
        client = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--port=0", "--bind-address=127.0.0.1"]
        return {
            "etcd": [
                *(str(program("etcd")), f"--data-dir={root}/etcd", f"--initial-cluster=default={peer}"),
                *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"),
                *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            ],
            "apiserver": [
                *(str(program("kube-apiserver")), f"--etcd-servers={etcd}", f"--secure-port={self._port}"),
                *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--cert-dir={root}/certificates"),
                *(f"--token-auth-file={root}/tokens.csv", "--authorization-mode=RBAC"),
                *("--service-account-issuer=https://kubernetes.default.svc", "--endpoint-reconciler-type=none"),
                *(f"--service-account-key-file={root}/accounts.pub", "--service-cluster-ip-range=10.0.0.0/16"),
                f"--service-account-signing-key-file={root}/accounts.key",
                *(f"--default-{kind}-toleration-seconds={AWAY_S}" for kind in ("not-ready", "unreachable")),
            ],
            "controllers": [
                *(str(program("kube-controller-manager")), *client, f"--secure-port={free_port()}"),
                *(f"--cert-dir={root}/controllers", f"--service-account-private-key-file={root}/accounts.key"),
                *(f"--root-ca-file={self._authority}", f"--controllers={','.join(CONTROLLERS)}"),
                *(f"--node-monitor-grace-period={AWAY_S}s", "--node-monitor-period=1s"),
                *("--pvclaimbinder-sync-period=2s", "--use-service-account-credentials=false"),
            ],
            "scheduler": [
                *(str(program("kube-scheduler")), *client, f"--secure-port={free_port()}"),
                f"--cert-dir={root}/scheduler",
            ],
        }

    def _start_keeper(self) -> None:
        """Start the process that ends all pods when this one is gone."""
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.kubernetes.plane.keeper", str(self.root)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._processes["keeper"] = keeper

    def _spawn(self, name: str, argv: list[str]) -> None:
        with (self.root / f"{name}.out").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                argv,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),  # noqa: PLW1509  # also if the tests are killed
            )

    def _stop(self, name: str, number: signal.Signals) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.send_signal(number)
            process.wait(timeout=30)


@contextlib.contextmanager
def running() -> Iterator[Plane]:
    """Start a plane; it ends with the block."""
    plane = Plane()
    try:
        plane.start()
        yield plane
    finally:
        plane.close()


def main() -> None:
    """Start a plane to try something out, until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt), running() as plane:
        print(f"KUBECONFIG={plane.kubeconfig}\nvolumes: {plane.home}\nlogs: {plane.root}/nodes/*/logs", flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
