"""What the controller of a namespace may use of the cluster: its settings."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from runners.node.jobs.pool import Pace, read_pace, read_seconds

POLL_S = 0.5
"""Seconds between two looks at the copy of the objects, which a watch keeps up to date."""
IMAGE_S = 300.0
"""Time in which an image must be pulled and a container be created; what does not exist may be about to come."""
NODE_LOST_S = 40.0
"""Time for which a node is not ready and nothing new comes from a run there, after which the run is lost."""
REST_S = 300.0
"""Time for which a pod without a shared volume waits for the server to take what is left, when its run has ended."""
OBJECTS = ("auto", "jobset", "job", "pods")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class Volume(NamedTuple):
    """The volume that controller and pods share, mounted in the pods where the controller has its state directory."""

    claim: str = ""
    sub_path: str = ""
    host_path: str = ""
    """Directory that all nodes have, like one of a parallel file system."""

    @property
    def is_shared(self) -> bool:
        """Whether there is one; else pods have their spools for themselves, and post them to the server."""
        return bool(self.claim or self.host_path)

    @property
    def source(self) -> dict[str, Any]:
        if self.claim:
            return {"persistentVolumeClaim": {"claimName": self.claim}}
        if self.host_path:
            return {"hostPath": {"path": self.host_path, "type": "Directory"}}
        return {"emptyDir": {}}


class Pool(NamedTuple):
    """Settings of a controller."""

    namespace: str
    volume: Volume
    image: str = ""
    """Image of pods that name none; it has parlab where the controller has it."""
    context: str | None = None
    """Context of the kubeconfig; None: the current one, or the service account of the pod."""
    objects: str = "auto"
    """What a run becomes: auto, jobset, job or pods."""
    pace: Pace = Pace(poll_s=POLL_S)
    image_s: float = IMAGE_S
    node_lost_s: float = NODE_LOST_S
    server: str = ""
    """Address of the server for pods, where there is no shared volume."""
    rest_s: float = REST_S


def add_options(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """Add the options of a controller to the command line of a daemon."""
    parser.add_argument("--kubernetes", action="store_true", help="run as pods of Kubernetes; --slots limits the runs")
    parser.add_argument("--namespace", default="", help="with --kubernetes: namespace of the pods")
    parser.add_argument("--context", default="", help="with --kubernetes: context of the kubeconfig")
    image = environment.get("PARLAB_KUBERNETES_IMAGE", "")
    parser.add_argument("--image", default=image, help="with --kubernetes: image of pods whose run names none")
    volume = environment.get("PARLAB_KUBERNETES_VOLUME", "")
    parser.add_argument(
        "--volume", default=volume, help="with --kubernetes: where pods see --state-dir: claim:NAME[/SUB], host or none"
    )
    server = environment.get("PARLAB_KUBERNETES_SERVER", "")
    parser.add_argument("--server", default=server, help="with --volume none: address of the server for pods")


def read_pool(options: argparse.Namespace, environment: Mapping[str, str], state_dir: Path) -> Pool | None:
    """Read the settings; None without --kubernetes. Raises ValueError with the setting, its value and the remedy."""
    if not options.kubernetes:
        if options.namespace:
            raise ValueError(f"--namespace {options.namespace} has no effect without --kubernetes; add --kubernetes")
        return None
    if options.slurm:
        raise ValueError("--kubernetes cannot be used with --slurm; start one daemon for each pool")
    if not _NAME.fullmatch(options.namespace):
        raise ValueError(f"--kubernetes needs --namespace, not {options.namespace!r}; name an existing one, like runs")
    objects = environment.get("PARLAB_KUBERNETES_OBJECTS") or "auto"
    if objects not in OBJECTS:
        raise ValueError(f"invalid PARLAB_KUBERNETES_OBJECTS {objects!r}; use {', '.join(OBJECTS)}")
    volume = _read_volume(options.volume, state_dir)
    pace = read_pace(environment, "PARLAB_KUBERNETES", slots=options.slots, poll_s=POLL_S)
    return Pool(
        options.namespace,
        volume,
        image=options.image,
        context=options.context or None,
        objects=objects,
        pace=pace,
        image_s=read_seconds(environment, "PARLAB_KUBERNETES_IMAGE_S", IMAGE_S),
        node_lost_s=read_seconds(environment, "PARLAB_KUBERNETES_NODE_S", NODE_LOST_S),
        server=_read_server(options.server, volume),
        rest_s=read_seconds(environment, "PARLAB_KUBERNETES_REST_S", REST_S),
    )


def _read_volume(text: str, state_dir: Path) -> Volume:
    kind, _, rest = text.partition(":")
    claim, _, sub_path = rest.partition("/")
    if kind == "claim" and _NAME.fullmatch(claim):
        return Volume(claim=claim, sub_path=sub_path)
    if text == "host":
        return Volume(host_path=str(state_dir.resolve()))
    if text == "none":
        return Volume()
    raise ValueError(
        f"invalid --volume {text!r}; use claim:NAME of a PersistentVolumeClaim (ReadWriteMany) that is mounted at"
        " --state-dir here, host if all nodes have the directory, like one of a parallel file system, or none with"
        " --server if pods reach the server over HTTP"
    )


def _read_server(text: str, volume: Volume) -> str:
    parts = urlsplit(text)
    is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    if volume.is_shared and text:
        raise ValueError(f"--server {text} has no effect with a shared volume; leave it out, or use --volume none")
    if not volume.is_shared and not is_address:
        raise ValueError(
            f"--volume none needs --server, not {text!r}; use the address of the server for pods, like"
            " http://parlab.parlab.svc"
        )
    return text.rstrip("/")
