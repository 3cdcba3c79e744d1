"""Kubernetes' words for why pods wait and how they ended, as texts and states of a run. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from runners.node.jobs.system import Words
from runners.node.kubernetes.pods import Event, Pod, latest
from runners.wire.protocol import RunState

NO_STATE_DIRECTORY = 90
"""Exit code of a pod that does not see the directory of the run."""
STARTED_BEFORE = 91
"""Exit code of a pod whose run has had a supervisor already."""

_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_CREATE_REASONS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_HOPELESS = ("InvalidImageName", "ErrImageNeverPull")
"""What does not get better by waiting."""
_MEMORY = "raise kubernetes.memory_mib, or use a smaller batch"


class Wait(NamedTuple):
    """Why a pod has not started."""

    text: str
    is_stuck: bool = False
    """Whether it goes on only if somebody corrects something."""
    is_hopeless: bool = False
    """Whether not even that helps this pod."""


_ABSENT = re.compile(r'\b(persistentvolumeclaim|secret|serviceaccount|configmap) "([^"]+)"', re.IGNORECASE)
_FIELDS = {
    "persistentvolumeclaim": "kubernetes.claims",
    "secret": "kubernetes.secrets",
    "serviceaccount": "kubernetes.service_account",
    "configmap": "kubernetes.patch",
}
"""Kind of an object that a pod needs -> field that names it."""


def waiting(pod: Pod, events: Sequence[Event] = ()) -> Wait | None:
    """Return why a pod waits; None if its container runs. `events` are its own."""
    if pod.is_running:
        return None
    if not pod.node:
        text = _unscheduled(pod)
        return Wait(f"{_absent(text)}Kubernetes: pod {pod.name} is Pending: {text}", is_stuck=bool(_absent(text)))
    reason, message = pod.waiting
    if reason in ("ContainerCreating", "") and (event := latest(events, "FailedMount", "FailedAttachVolume")):
        text = f"{event.reason}: {_line(event.message)}"
        return Wait(f"{_absent(text)}pod {pod.name} waits on node {pod.node}: {text}", is_stuck=True)
    text = f"{reason}: {_line(message)}" if message else reason
    if reason in _IMAGE_REASONS:
        remedy = "correct the name, or name a secret in kubernetes.image_pull_secret"
        shown = f"kubernetes.image {pod.image} cannot be pulled on node {pod.node}: {text}; {remedy}"
        return Wait(shown, is_stuck=True, is_hopeless=reason in _HOPELESS)
    if reason in _CREATE_REASONS:
        remedy = "check kubernetes.secrets, kubernetes.claims and kubernetes.patch"
        shown = f"{_absent(text)}node {pod.node} cannot create the container of pod {pod.name}: {text}; {remedy}"
        return Wait(shown, is_stuck=True)
    return Wait(f"Kubernetes: pod {pod.name} starts on node {pod.node}: {text or 'the kubelet has not answered yet'}")


def _absent(text: str) -> str:
    """Return the field that names what a message misses, with its value and the remedy; empty if it misses nothing."""
    match = _ABSENT.search(text)
    if match is None:
        return ""
    kind, name = match[1].lower(), match[2]
    return f"{_FIELDS[kind]} {name}: create it, or name an existing one: "


def _unscheduled(pod: Pod) -> str:
    scheduled = pod.conditions.get("PodScheduled")
    if scheduled is None or scheduled.status == "True":
        return "the scheduler has not looked at it yet"
    return _line(scheduled.message or scheduled.reason or "no reason given")


_DISRUPTIONS: Mapping[str, Words] = {
    "PreemptionByScheduler": Words(RunState.PREEMPTED, "a pod of higher priority took its place"),
    "PreemptionByKubeScheduler": Words(RunState.PREEMPTED, "a pod of higher priority took its place"),
    "EvictionByEvictionAPI": Words(RunState.PREEMPTED, "it was evicted, for example because its node is drained"),
    "DeletionByTaintManager": Words(RunState.PREEMPTED, "its node got a taint that it does not tolerate"),
    "TerminationByKubelet": Words(RunState.PREEMPTED, "its node ended it"),
    "DeletionByPodGC": Words(RunState.LOST, "its node is gone"),
}
"""Reason of the condition DisruptionTarget, of servers since 1.26."""
_REASONS: Mapping[str, Words] = {
    "Evicted": Words(RunState.PREEMPTED, "its node evicted it"),
    "Preempting": Words(RunState.PREEMPTED, "a pod of higher priority took its place"),
    "Preempted": Words(RunState.PREEMPTED, "a pod of higher priority took its place"),
    "NodeShutdown": Words(RunState.PREEMPTED, "its node was shut down"),
    "Shutdown": Words(RunState.PREEMPTED, "its node was shut down"),
    "Terminated": Words(RunState.PREEMPTED, "its node was shut down"),
    "NodeLost": Words(RunState.LOST, "its node does not answer"),
    "NodeAffinity": Words(RunState.LOST, "its node refused it"),
    "UnexpectedAdmissionError": Words(RunState.LOST, "its node refused it"),
    "OutOfcpu": Words(RunState.LOST, "its node refused it"),
    "OutOfmemory": Words(RunState.LOST, "its node refused it"),
    "DeadlineExceeded": Words(RunState.TIME_LIMIT, "its activeDeadlineSeconds are over; change kubernetes.patch"),
}
"""Reason in the status of the pod."""
_EVENTS: Mapping[str, Words] = {
    "Preempted": Words(RunState.PREEMPTED, "a pod of higher priority took its place"),
    "TaintManagerEviction": Words(RunState.PREEMPTED, "its node got a taint that it does not tolerate"),
    "Evicted": Words(RunState.PREEMPTED, "its node evicted it"),
    "EvictedByVPA": Words(RunState.PREEMPTED, "it was evicted"),
    "NodeNotReady": Words(RunState.LOST, "its node does not answer"),
}
"""Reason of an event of a pod that is gone; older servers tell no more."""


def lost_with_node(pod: Pod, silent_s: float) -> Words:
    """Return how a run ended whose node is not ready, and from which nothing has come for a while."""
    what = "does not confirm the end of the pod" if pod.is_deleted and not pod.is_running else "is not ready"
    text = f"pod {pod.name} on {pod.node}: the node {what}, and nothing came from it for {silent_s:.0f} s"
    return Words(RunState.LOST, f"{text}; see kubectl describe node {pod.node}")


class Past(NamedTuple):
    """What is known of a pod that has ended or is gone."""

    name: str
    last: Pod | None
    """As it was last seen."""
    events: Sequence[Event] = ()
    is_node_closed: bool = False
    """Whether its node takes no more pods, as when it is drained."""


def ending(past: Past, directory: str, *, has_started: bool, was_stopped: bool) -> Words:
    """Return how a run ended that has left no final report, from how its pod ended.

    `directory` is that of the run; `has_started` is whether its supervisor has started there, and `was_stopped` whether
    that was told to stop.
    """
    pod = past.last
    where = f" on {pod.node}" if pod and pod.node else ""
    prefix = f"pod {past.name}{where}"
    has_ended = pod is not None and bool(pod.is_over or pod.ended_before)
    if pod is not None and has_ended and not (was_stopped and _is_only_deleted(pod)):
        return _of_container(pod, prefix, directory, has_started=has_started)
    return _of_deletion(past, prefix, was_stopped=was_stopped)


def ended_with_job(name: str) -> Words:
    """Return how a member ended whose pod a job has deleted because another one of it has failed."""
    return Words(RunState.CANCELLED, f"pod {name} was deleted by its job, because another pod of it has failed")


def _is_only_deleted(pod: Pod) -> bool:
    """Return whether a pod ended because it was deleted: its kubelet may report the end before the pod is gone."""
    has_reason = bool(_disruption(pod)) or pod.reason in _REASONS or _ran_out_of_memory(pod)
    return pod.is_deleted and not has_reason


def _ran_out_of_memory(pod: Pod) -> bool:
    return any(ended is not None and ended.reason == "OOMKilled" for ended in (pod.ended_before, pod.ended))


def _of_container(pod: Pod, prefix: str, directory: str, *, has_started: bool) -> Words:
    if disruption := _disruption(pod):
        return _said(prefix, disruption, pod.message)
    if words := _REASONS.get(pod.reason):
        return _said(f"{prefix} ended as {pod.reason}", words, pod.message)
    ended = pod.ended_before or pod.ended  # a second start only tells what the first one has left
    code = ended.exit_code if ended else -1
    reason = ended.reason if ended else pod.reason
    prefix = f"{prefix} ended as {reason or pod.phase}"
    if reason == "OOMKilled":
        return Words(RunState.OOM, f"{prefix}: it ran out of the memory of its pod; {_MEMORY}")
    if code == NO_STATE_DIRECTORY:
        text = f"{prefix}: it does not see {directory}; check --volume of the controller"
        return Words(RunState.FAILED, f"{text}, which must be the volume of its --state-dir")
    if code == STARTED_BEFORE:
        text = "it was started a second time, which would double its output"
        return Words(RunState.LOST, f"{prefix}: {text}")
    message = f": {_line(ended.message or pod.message)}" if ended and (ended.message or pod.message) else ""
    if has_started:
        return Words(RunState.LOST, f"{prefix} with exit code {code}{message}: its supervisor was killed")
    remedy = "kubectl logs has its output; has kubernetes.image parlab and its Python?"
    return Words(RunState.FAILED, f"{prefix} with exit code {code}{message} before its supervisor started; {remedy}")


def _of_deletion(past: Past, prefix: str, *, was_stopped: bool) -> Words:
    pod = past.last
    if pod is not None and (disruption := _disruption(pod)):
        return _said(prefix, disruption, pod.conditions["DisruptionTarget"].message)
    # A node that did not answer for a while has left this event with pods that went on.
    is_past = pod is not None and not pod.is_node_away
    causes = [reason for reason in _EVENTS if not (is_past and reason == "NodeNotReady")]
    if (event := latest(past.events, *causes)) is not None:
        return _said(f"{prefix}: {event.reason}", _EVENTS[event.reason], event.message)
    if past.is_node_closed:
        return Words(RunState.PREEMPTED, f"{prefix} was evicted: its node takes no more pods, as when it is drained")
    if pod is not None and pod.is_node_away:
        return Words(RunState.LOST, f"{prefix} was removed: its node does not answer")
    if pod is None and not was_stopped:
        return Words(RunState.LOST, f"Kubernetes does not know {prefix} any more, and its supervisor left no report")
    return Words(RunState.CANCELLED, f"{prefix} was deleted in Kubernetes, outside of parlab")


def _disruption(pod: Pod) -> Words | None:
    condition = pod.conditions.get("DisruptionTarget")
    return _DISRUPTIONS.get(condition.reason) if condition and condition.status == "True" else None


def _said(prefix: str, words: Words, message: str) -> Words:
    return Words(words.state, f"{prefix}: {words.text}" + (f": {_line(message)}" if message else ""))


def _line(message: str) -> str:
    return " ".join(message.split())[:300]
