"""What a controller asks of the cluster, in its own terms: its pods, its events, and the objects of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

from runners.config import RunConfig
from runners.node.jobs.system import SystemRefused
from runners.node.kubernetes import manifests, pods
from runners.node.kubernetes.api import Api, KubernetesRefused, Object
from runners.node.kubernetes.manifests import Order
from runners.node.kubernetes.mirror import Copy, Mirror
from runners.node.kubernetes.pods import Event, Pod

LISTED_S = 5.0
"""Time for the first list."""
_INDEXED_SINCE = (1, 21)
_LIVING = "status.phase!=Succeeded,status.phase!=Failed"
"""Ended pods are not listed, however many there are."""

log = logging.getLogger(__name__)

_Index = tuple[list[Event], dict[str, list[Event]], dict[tuple[int, int], Event]]


class Cluster:
    """The objects of one state directory in one namespace."""

    def __init__(self, api: Api, state_id: str) -> None:
        self._api = api
        self.namespace = api.namespace
        self._selector = f"{pods.CONTROLLER}={state_id}"
        self._prefix = manifests.job_name_prefix(state_id)
        self._pods = Copy(pods.pod_of)
        self._events = Copy(self._own_event)
        self._pods_path, events = api.path("v1", "pods"), api.path("v1", "events")
        query = {"labelSelector": self._selector, "fieldSelector": _LIVING}
        self._mirror = Mirror(api, self._pods_path, query, self._pods.take, self._pods.listed)
        self._event_mirror = Mirror(api, events, {}, self._events.take, self._events.listed)
        self._objects = ""
        self._events_seen = 0
        self._index: tuple[int, _Index] | None = None
        self._seen: dict[str, int] = {}

    def start(self) -> None:
        """Begin to follow pods and events."""
        self._mirror.start()
        self._event_mirror.start()

    def stop(self) -> None:
        """End to follow them."""
        self._mirror.stop()
        self._event_mirror.stop()

    def check(self) -> None:
        """Raise SystemAway or SystemRefused if the copy of the pods is not up to date."""
        self._mirror.check(LISTED_S)

    # --- what there is -----------------------------------------------------------------------------------------------

    def living(self) -> list[Pod]:
        return self._pods.present()

    def past(self) -> dict[str, Pod]:
        """Return those that have ended or are gone, by name, as they were before."""
        return {pod.name: pod for pod in self._pods.past()}

    def pod(self, name: str) -> Pod | None:
        """Ask for one pod, also one that has ended."""
        data = self._api.get(self._api.path("v1", "pods", name))
        return pods.pod_of(data) if data else None

    def pods_of(self, run: int, attempt: int) -> list[Pod]:
        """Ask for the pods of an attempt, also those that have ended."""
        selector = f"{self._selector},{pods.RUN}={run},{pods.ATTEMPT}={attempt}"
        pages = self._api.pages(self._pods_path, labelSelector=selector)
        found = [pods.pod_of(item) for page in pages for item in page.get("items") or ()]
        return [pod for pod in found if pod is not None]

    def ended(self) -> Iterator[Object]:
        """Yield the pods that have ended, as JSON."""
        for phase in pods.ENDED:
            query = {"labelSelector": self._selector, "fieldSelector": f"status.phase={phase}"}
            for page in self._api.pages(self._pods_path, **query):
                yield from page.get("items") or ()

    def events(self) -> list[Event]:
        """Return the events of the objects of this state directory that the server still has, the oldest first."""
        return self._indexed()[0]

    def events_of(self, name: str) -> list[Event]:
        """Return the events of one pod, the oldest first."""
        return self._indexed()[1].get(name, [])

    def last_event_above(self, run: int, attempt: int) -> Event | None:
        """Return the last event of what creates the pods of an attempt: a warning, or one of Kueue."""
        return self._indexed()[2].get((run, attempt))

    def _indexed(self) -> _Index:
        """Return all events, those of each pod, and the last one of what is above the pods of each attempt."""
        version = self._events.version
        if self._index is None or self._index[0] != version:
            events = sorted([*self._events.past(), *self._events.present()], key=lambda event: event.at)
            of_pods: dict[str, list[Event]] = {}
            above: dict[tuple[int, int], Event] = {}
            for event in events:
                if event.kind == "Pod":
                    of_pods.setdefault(event.name, []).append(event)
                elif event.is_warning or event.kind == "Workload":
                    above[self.key_of(event.name)] = event
            self._index = (version, (events, of_pods, above))
        return self._index[1]

    def new_events(self) -> dict[tuple[int, int, int], list[str]]:
        """Return the events since the last call as texts, by run, attempt and node_rank.

        After a start these are all that the server still has.
        """
        version = self._events.version
        if version == self._events_seen:
            return {}
        self._events_seen = version
        events = self.events()
        new = [event for event in events if self._seen.get(event.uid) != event.times]
        self._seen = {event.uid: event.times for event in events}
        ranks = {pod.name: pod.node_rank for pod in [*self.past().values(), *self.living()]}
        texts: dict[tuple[int, int, int], list[str]] = {}
        for event in new:
            place = (*self.key_of(event.name), ranks.get(event.name, self.rank_of(event.name)))
            texts.setdefault(place, []).append(str(event))
        return texts

    def forget(self, held: set[tuple[int, int]]) -> None:
        """Forget what is gone of other attempts than those."""
        self._pods.forget(lambda pod: pod.key in held)
        self._events.forget(lambda event: self.key_of(event.name) in held)

    def rank_of(self, name: str) -> int:
        """Return the node_rank of a plain pod, also of one that has not been seen; 0 for other objects."""
        parts = name.partition(self._prefix)[2].split("-")
        return int(parts[2]) if len(parts) == 3 and parts[2].isdecimal() else 0

    def key_of(self, name: str) -> tuple[int, int]:
        """Return run and attempt of an object of this state directory."""
        # The name of a workload of Kueue begins with the kind of its job.
        run, _, rest = name.partition(self._prefix)[2].partition("-")
        attempt = rest.partition("-")[0]
        return (int(run), int(attempt)) if run.isdecimal() and attempt.isdecimal() else (0, 0)

    def is_closed(self, node: str) -> bool:
        """Return whether a node takes no more pods; False also if the account may not ask."""
        if not node:
            return False
        try:
            data = self._api.get(f"/api/v1/nodes/{node}")
        except KubernetesRefused:
            return False
        return bool(data and data.get("spec", {}).get("unschedulable"))

    def _own_event(self, data: Object) -> Event | None:
        event = pods.event_of(data)
        return event if self._prefix in event.name else None

    # --- what a run becomes ------------------------------------------------------------------------------------------

    def objects(self, wanted: str) -> str:
        """Return what runs become here: jobset, job or pods."""
        if wanted != "auto":
            return wanted
        if not self._objects:
            self._objects = self._best_objects()
            log.info("runs become %s", {"jobset": "JobSets", "job": "Indexed Jobs", "pods": "pods"}[self._objects])
        return self._objects

    def _best_objects(self) -> str:
        if self._api.get(f"/apis/{manifests.JOBSET}"):
            return "jobset"
        version = self._api.get("/version") or {}
        digits = [int("".join(filter(str.isdigit, str(version.get(part, "0")))) or 0) for part in ("major", "minor")]
        return "job" if tuple(digits) >= _INDEXED_SINCE else "pods"

    def create(self, config: RunConfig, order: Order, objects: str) -> Object:
        """Create the objects of a run, or adopt those that are there; return the manifest."""
        made = self._create_job(config, order, objects) if objects != "pods" else self._create_pods(config, order)
        if config.cluster.nodes > 1 and objects != "jobset":  # JobSet makes its own
            self._api.create(self._api.path("v1", "services"), manifests.headless_service(order, made[0]))
        if (group := manifests.pod_group(config, order, made[0])) is not None:
            self._api.create(self._api.path("scheduling.volcano.sh/v1beta1", "podgroups"), group)
        return made[1]

    def _create_pods(self, config: RunConfig, order: Order) -> tuple[Any, Object]:
        wanted = manifests.plain_pods(config, order)
        first = {"apiVersion": "v1", "kind": "Pod", **self._create_or_adopt("v1", "pods", wanted[0], order)}
        self._create_secret(order, first)  # before the others: a pod that does not find it waits half a second
        for pod in wanted[1:]:
            self._create_or_adopt("v1", "pods", pod, order)
        return first, wanted[0]

    def _create_secret(self, order: Order, owner: Object) -> None:
        if order.secret:
            self._api.create(self._api.path("v1", "secrets"), manifests.secret(order, owner))

    def _create_job(self, config: RunConfig, order: Order, objects: str) -> tuple[Any, Object]:
        group, build = _JOBS[objects]
        wanted = build(config, order)
        made = {**wanted, **self._create_or_adopt(group, f"{objects}s", wanted, order)}
        self._create_secret(order, made)
        return made, wanted

    def _create_or_adopt(self, group: str, resource: str, content: Object, order: Order) -> Any:
        made = self._api.create(self._api.path(group, resource), content)
        if made is not None:
            return made
        name = content["metadata"]["name"]
        there = self._api.get(self._api.path(group, resource, name)) or {}
        if (there.get("metadata", {}).get("labels") or {}).get(pods.CONTROLLER) != order.state_id:
            raise SystemRefused(f"{resource} {name} exists already, and is not of this controller; delete it")
        return there

    def job(self, run: int, attempt: int, objects: str) -> Object | None:
        """Ask for the job of an attempt; None if it is gone."""
        found: Object | None = self._api.get(self._job_path(run, attempt, objects))
        return found

    def tell(self, pod: Pod, word: str) -> None:
        """Tell a pod that shares no volume with its controller."""
        self._api.annotate(self._api.path("v1", "pods", pod.name), {pods.WORD: word})

    def delete_job(self, run: int, attempt: int, objects: str) -> None:
        self._api.delete(self._job_path(run, attempt, objects))

    def delete_pod(self, pod: Pod) -> None:
        """Delete a plain pod; of a job all, or it would create the pod again."""
        if pod.owner in _JOBS:
            self.delete_job(pod.run, pod.attempt, pod.owner)
        else:
            self._api.delete(self._api.path("v1", "pods", pod.name), uid=pod.uid)

    def _job_path(self, run: int, attempt: int, objects: str) -> str:
        return self._api.path(_JOBS[objects][0], f"{objects}s", f"{self._prefix}{run}-{attempt}")

    def queue_problem(self, name: str, system: str) -> str:
        """Return why a queue cannot admit a run; empty if it exists, or the account may not ask."""
        row = _QUEUES[system]
        group = self._api.get(f"/apis/{row.group}")
        if group is None:
            return f"the cluster has no {row.title}; leave kubernetes.queue empty, or change kubernetes.queue_system"
        version = group["preferredVersion"]["groupVersion"]
        path = self._api.path(version, row.resource, name)
        try:
            found = self._api.get(path if row.is_namespaced else f"/apis/{version}/{row.resource}/{name}")
        except KubernetesRefused:
            return ""
        where = f"namespace {self.namespace}" if row.is_namespaced else "the cluster"
        return "" if found else f"{where} has no queue {name}; use one that kubectl get {row.resource} lists"


class _QueueSystem(NamedTuple):
    title: str
    group: str
    resource: str
    is_namespaced: bool


_QUEUES = {
    "kueue": _QueueSystem("Kueue", "kueue.x-k8s.io", "localqueues", True),
    "volcano": _QueueSystem("Volcano", "scheduling.volcano.sh", "queues", False),
}
_JOBS = {"job": ("batch/v1", manifests.indexed_job), "jobset": (manifests.JOBSET, manifests.jobset)}
"""What a run becomes -> group, and builder."""
