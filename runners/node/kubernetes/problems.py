"""Why a controller cannot take a run, and what an answer of the API server means: field, value and remedy. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from runners.config import Problem, RunConfig
from runners.node.kubernetes.pool import Pool
from runners.node.kubernetes.rights import REMEDY

_FIELDS = {
    "imagepullsecret": "kubernetes.image_pull_secret",
    "nodeselector": "kubernetes.node_selector",
    "toleration": "kubernetes.tolerations",
    "affinity": "kubernetes.exclude",
    "topologykey": "kubernetes.topology",
    "priorityclass": "kubernetes.priority_class",
    "serviceaccount": "kubernetes.service_account",
    "service account": "kubernetes.service_account",
    "persistentvolumeclaim": "kubernetes.claims",
    "secret": "kubernetes.secrets",
    "requests": "kubernetes.resources",
    "limits": "kubernetes.resources",
    "image": "kubernetes.image",
    "memory": "kubernetes.memory_mib",
    "cpu": "kubernetes.cpu",
    "queue": "kubernetes.queue",
}
"""Words of a refusal -> the field that it is about."""
_QUOTA = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.+), used: (?P<used>.+), limited: (?P<most>.+)"
)
_UNITS = {"": 1, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}


def problems(config: RunConfig, pool: Pool, missing: Sequence[str], images: tuple[str, ...] = ()) -> Iterator[Problem]:
    """Yield why the pool cannot take a run. `images` are the beginnings of those that runs may name; empty: all."""
    if missing:
        message = f"the account of the controller may not {', '.join(missing)} in namespace {pool.namespace}; {REMEDY}"
        yield Problem("cluster.pool", config.cluster.pool, message)
    if not (config.kubernetes.image or pool.image):
        message = "pods of this pool have no image; set kubernetes.image, or start the controller with --image"
        yield Problem("kubernetes.image", None, message)
    if images and config.kubernetes.image and not config.kubernetes.image.startswith(images):
        message = f"the owner of this pool allows images that begin with {', '.join(images)}; use one of them"
        yield Problem("kubernetes.image", config.kubernetes.image, message)
    if config.launcher.container is not None:
        message = "a pod is a container already; leave launcher.container empty, and set kubernetes.image"
        yield Problem("launcher.container", config.launcher.container.runtime, message)
    if config.network.apply != "none":
        message = "links between pods cannot be shaped or emulated; use network.apply none"
        yield Problem("network.apply", config.network.apply, message)
    places = [*config.kubernetes.claims.values(), *config.kubernetes.secrets.values()]
    for place in sorted({place for place in places if places.count(place) > 1}):
        message = f"{place} is named twice in kubernetes.claims and kubernetes.secrets; use a directory for each"
        yield Problem("kubernetes.claims", place, message)


def refusal(message: str, status: int, config: RunConfig) -> str:
    """Return the text of a run that the API server has refused."""
    text = message.lower()
    field = next((field for word, field in _FIELDS.items() if word in text), "kubernetes")
    value = _value(config, field)
    shown = f" {value}" if value else ""
    return f"{field}{shown}: Kubernetes refused the run ({status}): {message}; correct {field}"


def _value(config: RunConfig, field: str) -> str:
    name = field.partition(".")[2]
    value = getattr(config.kubernetes, name) if name else None
    return str(value)[:100] if value not in (None, {}, []) else ""


def quota_text(message: str, namespace: str) -> tuple[str, bool]:
    """Return why a run waits for a quota, and whether it asks for more than the quota ever gives."""
    match = _QUOTA.search(message)
    if match is None:
        return f"namespace {namespace}: {message}", False
    name, requested, used, limited = match.groups()
    asked, most = _amounts(requested), _amounts(limited)
    above = [each for each in asked if each in most and asked[each][1] > most[each][1]]
    shown = ", ".join(f"{each} {asked[each][0]} of at most {most[each][0]}" for each in above or asked if each in most)
    if above:
        remedy = "ask for less, or let the administrator of the cluster raise the quota"
        return f"a pod asks for more than quota {name} of namespace {namespace} gives: {shown}; {remedy}", True
    return f"quota {name} of namespace {namespace} is used up: a pod needs {shown}, used: {used}", False


def _amounts(text: str) -> dict[str, tuple[str, float]]:
    """Read pods=3,requests.cpu=2."""
    pairs = (part.partition("=") for part in text.split(","))
    return {name.strip(): (value.strip(), _quantity(value.strip())) for name, _, value in pairs}


def _quantity(text: str) -> float:
    match = re.fullmatch(r"([0-9.]+(?:[eE][0-9]+)?)([A-Za-z]*)", text)
    return float(match[1]) * _UNITS.get(match[2], 1) if match else 0.0
