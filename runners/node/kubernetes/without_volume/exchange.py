"""Pods that share no volume with their controller: what they get, are told, and tell by way of the server."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from runners.node.abilities import allowed_commands
from runners.node.jobs.state import JobDir
from runners.node.kubernetes.cluster import Cluster
from runners.node.kubernetes.event_log import EventLog
from runners.node.kubernetes.pods import Pod
from runners.node.kubernetes.pool import Pool
from runners.node.kubernetes.without_volume.end import PodEnd, read_end
from runners.node.kubernetes.without_volume.order import PodOrder, order_text
from runners.node.kubernetes.without_volume.word import word_of
from runners.supervisor.shipping import BrokerAway
from runners.wire.protocol import Acknowledge, PodNote
from runners.wire.trust import Key, attempt_key


class ServerAnswers(NamedTuple):
    """What a controller has of what its pods and the server exchange."""

    node: str
    key: Callable[[], Key]
    """The current key of the controller, from which those of attempts are derived."""
    posted: Callable[[Sequence[tuple[int, int, int]]], Sequence[Acknowledge]]
    """Returns the last answers to pods (run, attempt, node_rank); may raise BrokerAway."""


class Exchange:
    """Between one controller and its pods."""

    def __init__(self, cluster: Cluster, pool: Pool, answers: ServerAnswers, state_id: str) -> None:
        self._cluster, self._pool, self._answers, self._state_id = cluster, pool, answers, state_id
        self._told: dict[str, str] = {}
        self.is_heard = True
        """Whether the answers could be read: an end that the server has stored must not be taken for a loss."""

    def order_text(self, runs: Sequence[JobDir]) -> str:
        """Return the order of an attempt for its Secret."""
        key = attempt_key(self._answers.key(), runs[0].run, runs[0].attempt)
        order = PodOrder(
            state_id=self._state_id,
            spec={},
            config={},
            launches=(),
            url=self._pool.server,
            node=self._answers.node,
            key_id=key.id,
            secret=key.secret.hex(),
            rest_s=self._pool.rest_s,
            commands=allowed_commands(os.environ),
        )
        return order_text(runs, order)

    def hear(self, runs: Sequence[JobDir]) -> list[JobDir]:
        """Write down what the pods of these runs have told; return those whose end the server has stored."""
        by_member = {(run.run, run.attempt, run.node_rank): run for run in runs}
        try:
            answers = self._answers.posted(list(by_member))
        except BrokerAway:
            self.is_heard = False
            return []
        self.is_heard = True
        stored = []
        for answer in answers:
            run = by_member[answer.run, answer.attempt, answer.node_rank]
            if answer.position < 0:
                run.reject()
                continue
            note = answer.note or PodNote()
            write_note(run, answer.position, note)
            if note.is_over(answer.position):
                stored.append(run)
        return stored

    def tell(self, run: JobDir, pod: Pod) -> None:
        word = word_of(run)
        if word and word not in (pod.word, self._told.get(pod.uid)):
            self._cluster.tell(pod, word)
            self._told[pod.uid] = word
            EventLog(run).pass_on()

    def forget(self, present: set[str]) -> None:
        """Forget what pods were told that are gone."""
        self._told = {uid: word for uid, word in self._told.items() if uid in present}

    def end_of(self, run: JobDir, pod: Pod | None) -> PodEnd | None:
        """Return how a pod says that it has ended, and write down what it says of its run."""
        end = read_end(pod.ended.told) if pod and pod.ended else None
        if end is not None:
            write_note(run, end.position, end.note)
        return end

    def left_text(self, end: PodEnd | None) -> str:
        """Return the words for output that is gone; empty if there is none."""
        if end is None or not end.left:
            return ""
        waited = f"within {self._pool.rest_s:g} s after its end (PARLAB_KUBERNETES_REST_S)"
        return f"; the server did not take the last {end.left} bytes of its spool {waited}: they are gone with the pod"


def write_note(run: JobDir, position: int, note: PodNote) -> None:
    """Write down what a pod has told, where one with a shared volume would have done it."""
    if position > run.acknowledged():
        run.acknowledge(position)
    if note.started_at and not run.started_at():
        run.note_start(note.started_at)
    if note.was_stopped and not run.was_stopped:
        run.stop()
    if note.has_checkpoint and not run.has_checkpoint:
        run.note_checkpoint()
