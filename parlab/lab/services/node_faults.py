"""Which ends of attempts are the fault of a node: it vanished, or its hardware failed. Pure."""

from __future__ import annotations

import re

from runners.wire.protocol import RunState

_NOT_OF_NODE = re.compile(
    r"ended as (?:PREEMPTED|REVOKED|CANCELLED|TIMEOUT|DEADLINE)|was requeued|second time \(requeue\)"
    r"|Kubernetes does not know pod|was started a second time"
    r"|not told to start within|the server (?:does not know|no longer has|has given up)|daemon was stopped"
)
"""Losses that others have caused: policies of Slurm and Kubernetes, the server, the other nodes, a person."""
_HARDWARE = re.compile(
    r"uncorrectable (?:NVLink|ECC) error|ECC error|fallen off the bus|GPU is lost|NVRM: Xid|\bXid \d|XID \d+:"
    r"|failed its health check|NVLink error|hardware error|transport retry counter exceeded|local QP operation error",
    re.IGNORECASE,
)
"""What CUDA, NCCL, the kernel and parlab's own check print when hardware fails."""


def is_node_fault(state: str, reason: str, traceback: str, *, is_consequence: bool) -> bool:
    """Return whether the end of a member counts against its node."""
    if is_consequence:
        return False
    if state == RunState.LOST:
        return not _NOT_OF_NODE.search(reason)
    return state == RunState.FAILED and bool(_HARDWARE.search(reason) or _HARDWARE.search(traceback))
