"""The pod of Kubernetes that this process runs in, from variables and files of the downward API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LABELS = "/etc/podinfo/labels"
"""Where Kubernetes' own documentation mounts the labels of a pod; PARLAB_POD_LABELS names another file."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
MAX_LABELS = 100


def is_pod(environ: Mapping[str, str]) -> bool:
    """Return whether this process is in a pod: Kubernetes sets the variable in each one."""
    return "KUBERNETES_SERVICE_HOST" in environ


def namespace(environ: Mapping[str, str]) -> str:
    """Return the namespace of the pod; empty outside of pods, and where nothing states it."""
    if not is_pod(environ):
        return ""
    return environ.get("POD_NAMESPACE") or _text(ACCOUNT).strip()


def pod(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return namespace, name, node and labels of the pod, those that are stated; empty outside of pods."""
    if not is_pod(environ):
        return {}
    facts = {
        "namespace": namespace(environ),
        "pod": environ.get("POD_NAME") or environ.get("HOSTNAME", ""),
        "node": environ.get("NODE_NAME", ""),
        "labels": labels(_text(Path(environ.get("PARLAB_POD_LABELS", LABELS)))),
    }
    return {name: value for name, value in facts.items() if value}


def labels(text: str) -> dict[str, str]:
    """Read the lines `key="value"` of a volume of the downward API."""
    pairs = {}
    for line in text.splitlines()[:MAX_LABELS]:
        name, _, value = line.partition("=")
        try:
            pairs[name] = str(json.loads(value))
        except ValueError:
            continue
    return pairs


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
