"""The rights that a controller needs in its namespace; deploy/kubernetes/pool-rbac.yaml grants them."""

from __future__ import annotations

import time
from collections.abc import Container, Hashable
from typing import NamedTuple

from runners.node.kubernetes.api import Api

WITHOUT_VOLUME = "no volume"
AGAIN_S = 60.0
"""Seconds between two looks at rights that are missing."""
FORBIDDEN_S = 6.0
"""Time after which a refusal for want of a right counts; a server that has just started refuses everybody."""
REMEDY = "kubectl apply -f deploy/kubernetes/pool-rbac.yaml grants what is needed"


class Right(NamedTuple):
    """Verbs on a resource."""

    group: str
    """Empty: the core group."""
    resource: str
    verbs: tuple[str, ...]
    only_with: str = ""
    """What alone needs it: the kind of object that a run becomes, a queue, or pods without a volume; empty: all."""


RIGHTS = (
    Right("", "pods", ("create", "get", "list", "watch", "delete")),
    Right("", "events", ("list", "watch")),
    Right("", "services", ("create",)),
    Right("coordination.k8s.io", "leases", ("create", "get", "update")),
    Right("", "pods", ("patch",), WITHOUT_VOLUME),
    Right("", "secrets", ("create",), WITHOUT_VOLUME),
    Right("batch", "jobs", ("create", "get", "delete"), "job"),
    Right("kueue.x-k8s.io", "localqueues", ("get",), "queue"),
    Right("scheduling.volcano.sh", "podgroups", ("create",), "volcano"),
    Right("jobset.x-k8s.io", "jobsets", ("create", "get", "delete"), "jobset"),
)


def missing(api: Api, *used: str) -> list[str]:
    """Return the rights that the account lacks, like `delete pods`, of those that what is used needs.

    Raises KubernetesAway.
    """
    return [
        f"{verb} {right.resource}"
        for right in RIGHTS
        if right.only_with in ("", *used)
        for verb in right.verbs
        if not _has(api, verb, right)
    ]


class OwnRights:
    """What the account of a controller may not do."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.missing: list[str] = []
        self._suspected: list[str] = []
        self._due = float("-inf")
        self._refused_since: dict[Hashable, float] = {}

    def look(self, *used: str) -> bool:
        """Ask the server if that is due; return whether it was. Raises KubernetesAway."""
        now = time.monotonic()
        if now < self._due:
            return False
        found = missing(self._api, *used)
        # A server that has just started grants nothing: what is missing is missing the second time.
        is_again = bool(found) and found == self._suspected
        self.missing, self._suspected = found if is_again else [], found
        self._due = now + (AGAIN_S if is_again else FORBIDDEN_S) if found else float("inf")
        return True

    def is_refused_for_good(self, what: Hashable) -> bool:
        """Return whether the server refuses something for longer than while it starts."""
        now = time.monotonic()
        self._due = min(self._due, now + FORBIDDEN_S)
        return now - self._refused_since.setdefault(what, now) > FORBIDDEN_S

    def forget(self, held: Container[Hashable]) -> None:
        """Forget the refusals of all but those."""
        self._refused_since = {what: since for what, since in self._refused_since.items() if what in held}


def _has(api: Api, verb: str, right: Right) -> bool:
    attributes = {"namespace": api.namespace, "verb": verb, "group": right.group, "resource": right.resource}
    content = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", content)
    return bool(answer and answer.get("status", {}).get("allowed"))
