"""What a batch system answers: an end in its words, that it refuses, or nothing."""

from __future__ import annotations

from typing import NamedTuple

from runners.wire.protocol import RunState


class SystemAway(Exception):
    """Raised if the system does not answer; the caller tries again."""


class SystemRefused(Exception):
    """Raised with the system's message if it refuses an order."""


class Words(NamedTuple):
    """How a run ended, and the reason in the system's words."""

    state: RunState
    text: str
