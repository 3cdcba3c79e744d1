"""Differences between the nodes of a run that make it fail or its times wrong."""

from collections.abc import Iterable

from parlab.lab.models import Node

CLOCK_TOLERANCE_S = 1.0
"""Offsets are measured and taken out; one this large means that the clock is not synchronised."""
_COMPARED = ("python", "torch", "deepspeed", "nccl")
"""Software whose versions must be equal on all nodes of a run."""
_NAMES_SHOWN = 3


def node_differences(nodes: Iterable[Node]) -> list[str]:
    """Return what differs between nodes, with the names of the nodes and the remedy."""
    nodes = list(nodes)
    reasons = [reason for software in _COMPARED if (reason := _version_difference(software, nodes))]
    for node in nodes:
        if abs(node.clock_offset_s) > CLOCK_TOLERANCE_S:
            direction = "ahead of" if node.clock_offset_s > 0 else "behind"
            reasons.append(
                f"the clock of node {node.name} is {abs(node.clock_offset_s):.1f} s {direction} the server's;"
                " run a time service such as chrony on the node"
            )
    return reasons


def _version_difference(software: str, nodes: list[Node]) -> str:
    by_version: dict[str, list[str]] = {}
    for node in nodes:
        version = (node.abilities.get("software") or {}).get(software)
        if version:
            by_version.setdefault(str(version), []).append(node.name)
    if len(by_version) < 2:
        return ""
    parts = [f"{version} on {_name_list(names)}" for version, names in sorted(by_version.items())]
    return f"versions of {software} differ: {', '.join(parts)}; install the same version on all nodes"


def _name_list(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
