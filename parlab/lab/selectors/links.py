"""Nodes that can emulate links."""

from __future__ import annotations

from collections.abc import Iterable

from parlab.lab.models import Node
from runners.config import Point


def why_no_links(points: Iterable[Point]) -> str:
    """Explain why no online node can emulate the links of points; empty if one can, or if no point needs it."""
    pools = {point.config.cluster.pool for point in points if point.config and point.config.network.apply == "emulate"}
    if not pools:
        return ""
    nodes = Node.objects.online().filter(pool__in=pools, is_enabled=True).only("name", "hardware")
    reasons = {node.name: (node.hardware.get("links") or {}).get("why_not", "") for node in nodes}
    if not reasons or not all(reasons.values()):
        return ""
    name, reason = next(iter(reasons.items()))
    return f"Node {name} cannot emulate links: {reason}."
