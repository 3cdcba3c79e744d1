"""The rights that a controller needs in its namespace; deploy/kubernetes/pool-rbac.yaml grants them."""

from __future__ import annotations

from typing import NamedTuple

from runners.node.kubernetes.api import Api

APART = "no volume"
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
    Right("", "pods", ("patch",), APART),
    Right("", "secrets", ("create",), APART),
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


def _has(api: Api, verb: str, right: Right) -> bool:
    attributes = {"namespace": api.namespace, "verb": verb, "group": right.group, "resource": right.resource}
    content = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", content)
    return bool(answer and answer.get("status", {}).get("allowed"))
