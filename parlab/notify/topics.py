"""What a person can subscribe to, and the events that belong to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from parlab.lab.models import Event

Kind = Event.Kind


class Topic(NamedTuple):
    """A group of events that is subscribed to as a whole."""

    title: str
    kinds: frozenset[str]


RUN_ENDS = frozenset({Kind.RUN_FINISHED, Kind.RUN_FAILED, Kind.RUN_OOM, Kind.RUN_LOST, Kind.RUN_CANCELLED})
TOPICS = {
    "ended": Topic("Run ended", RUN_ENDS),
    "failed": Topic("Run failed or lost", frozenset({Kind.RUN_FAILED, Kind.RUN_LOST})),
    "oom": Topic("Run out of memory", frozenset({Kind.RUN_OOM})),
    "loss": Topic("Loss NaN, diverging or spiking", frozenset({Kind.RUN_NAN, Kind.RUN_DIVERGED, Kind.RUN_SPIKE})),
    "alert": Topic("Alert of a script", frozenset({Kind.RUN_ALERT})),
    "finding": Topic("New finding", frozenset({Kind.FINDING_NEW})),
    "node": Topic("Node lost or excluded", frozenset({Kind.NODE_LOST, Kind.NODE_EXCLUDED})),
    "study": Topic("Study done", frozenset({Kind.STUDY_DONE})),
    "watch": Topic("Change in a watch", frozenset({Kind.WATCH_ALERT})),
}
"""Topics by key; a kind may belong to several, and a subscription gets each event once."""


def kinds_of(topics: Iterable[str]) -> frozenset[str]:
    """Return the kinds of events of topics; unknown topics have none."""
    return frozenset(kind for topic in topics if topic in TOPICS for kind in TOPICS[topic].kinds)
