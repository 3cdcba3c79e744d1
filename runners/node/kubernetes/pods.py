"""From the JSON of a pod and of its events to plain facts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

CONTROLLER = "parlab/controller"
RUN = "parlab/run"
ATTEMPT = "parlab/attempt"
NODE_RANK = "parlab/node-rank"
POOL = "parlab/pool"
"""Labels of the objects of a run; a controller finds its own by that of its state directory."""
WORD = "parlab/word"
"""Annotation: what its controller tells a pod that shares no volume with it."""
TTL = "parlab/ttl-s"
"""Annotation: time that an ended pod stays."""
INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation, and label of newer servers, of the pods of an Indexed Job."""

JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"

COMMANDS_FILE = "allowed-commands.json"
"""In the state directory: what ALLOWED_COMMANDS names in pods."""
ENDED = ("Succeeded", "Failed")
TOLD = '{"parlab_pod"'
"""Beginning of a termination message of ours."""


class Condition(NamedTuple):
    status: str
    reason: str
    message: str


class Ended(NamedTuple):
    exit_code: int
    reason: str
    message: str
    told: str = ""
    """The termination message, if it is ours."""


class Pod(NamedTuple):
    name: str
    uid: str
    run: int
    attempt: int
    node_rank: int
    phase: str
    node: str
    """Empty before it is scheduled."""
    is_deleted: bool
    """Whether it is told to end."""
    conditions: Mapping[str, Condition]
    reason: str
    """Why the kubelet or a controller ended it, in one word like Evicted."""
    message: str
    waiting: tuple[str, str]
    """Reason and message of the first container that waits."""
    is_running: bool
    """Whether its container runs; one that prepares for it does not count."""
    ended: Ended | None
    ended_before: Ended | None
    """How its container ended before it was started again."""
    ttl_s: float
    """Time that it stays after its end."""
    image: str
    owner: str
    """What its attempt became: job or jobset; empty for a plain pod."""
    word: str
    """What its controller has told it."""

    @property
    def key(self) -> tuple[int, int]:
        return self.run, self.attempt

    @property
    def is_over(self) -> bool:
        return self.phase in ENDED

    @property
    def is_looping(self) -> bool:
        """Whether its container ends whenever it is started."""
        return self.waiting[0] == "CrashLoopBackOff"

    @property
    def is_gated(self) -> bool:
        """Whether a queue has not admitted it to the scheduler yet."""
        scheduled = self.conditions.get("PodScheduled")
        return scheduled is not None and scheduled.reason == "SchedulingGated"

    @property
    def is_node_away(self) -> bool:
        """Whether its node is not ready: nothing else makes a pod without probes so while its container runs."""
        ready = self.conditions.get("Ready")
        return self.phase == "Unknown" or (self.is_running and ready is not None and ready.status != "True")


def pod_of(data: Mapping[str, Any]) -> Pod | None:
    """Read a pod; None if it belongs to no run."""
    metadata, status = data.get("metadata", {}), data.get("status", {})
    place = _place(metadata)
    if place is None:
        return None
    own = _states(status, "containerStatuses")
    states = [*_states(status, "initContainerStatuses"), *own]
    before = [_states(status, name, "lastState") for name in ("initContainerStatuses", "containerStatuses")]
    return Pod(
        metadata["name"],
        metadata["uid"],
        *place,
        phase=status.get("phase", "Pending"),
        node=data.get("spec", {}).get("nodeName") or "",
        is_deleted="deletionTimestamp" in metadata,
        conditions={each["type"]: _condition(each) for each in status.get("conditions") or ()},
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        waiting=_waiting(states),
        is_running=any("running" in state for state in own),
        ended=_last_end(states),
        ended_before=_last_end([*before[0], *before[1]]),
        ttl_s=float((metadata.get("annotations") or {}).get(TTL, 0)),
        image=next((each.get("image", "") for each in data.get("spec", {}).get("containers") or ()), ""),
        owner=_owner(metadata),
        word=(metadata.get("annotations") or {}).get(WORD, ""),
    )


def _place(metadata: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Return run, attempt and node_rank."""
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    rank = labels.get(NODE_RANK) or labels.get(INDEX) or annotations.get(INDEX)
    numbers = [str(number) for number in (labels.get(RUN), labels.get(ATTEMPT), rank)]
    return (int(numbers[0]), int(numbers[1]), int(numbers[2])) if all(map(str.isdecimal, numbers)) else None


def _states(status: Mapping[str, Any], name: str, which: str = "state") -> list[Mapping[str, Any]]:
    return [container.get(which) or {} for container in status.get(name) or ()]


def _last_end(states: Sequence[Mapping[str, Any]]) -> Ended | None:
    return next((_ended(state["terminated"]) for state in reversed(states) if "terminated" in state), None)


def _waiting(states: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    waiting = next((state["waiting"] for state in states if "waiting" in state), None) or {}
    return waiting.get("reason") or "", waiting.get("message") or ""


def _owner(metadata: Mapping[str, Any]) -> str:
    if JOBSET_NAME in (metadata.get("labels") or {}):
        return "jobset"  # a Job of it stands between
    return next((reference["kind"].lower() for reference in metadata.get("ownerReferences") or ()), "")


def _condition(data: Mapping[str, Any]) -> Condition:
    return Condition(data.get("status", ""), data.get("reason") or "", data.get("message") or "")


def _ended(data: Mapping[str, Any]) -> Ended:
    message = data.get("message") or ""
    own = message.startswith(TOLD)
    return Ended(
        int(data.get("exitCode", -1)), data.get("reason") or "", "" if own else message, message if own else ""
    )


class Event(NamedTuple):
    """What somebody did to an object, or could not do."""

    uid: str
    """Uid of the event; one event counts up, and gets new versions."""
    at: str
    kind: str
    """Kind of its object, like Pod."""
    name: str
    """Name of its object."""
    reason: str
    message: str
    source: str
    is_warning: bool
    times: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.reason}: {' '.join(self.message.split())[:500]}"


def event_of(data: Mapping[str, Any]) -> Event:
    metadata, about = data.get("metadata", {}), data.get("involvedObject", {})
    at = data.get("lastTimestamp") or data.get("eventTime") or metadata.get("creationTimestamp") or ""
    return Event(
        uid=metadata.get("uid", ""),
        at=at,
        kind=about.get("kind", ""),
        name=about.get("name", ""),
        reason=data.get("reason") or "",
        message=data.get("message") or "",
        source=(data.get("source") or {}).get("component") or data.get("reportingComponent") or "",
        is_warning=data.get("type") == "Warning",
        times=int(data.get("count") or 1),
    )


def latest(events: Iterable[Event], *reasons: str) -> Event | None:
    """Return the last event with one of the reasons."""
    return max((event for event in events if event.reason in reasons), key=lambda event: event.at, default=None)
