"""Links of a run: as they were set, and as they were measured before it; and whether any node can make them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from parlab.charts.format import DASH, quantity
from parlab.lab.models import Node, Run
from runners.config import NetworkSection, Point


class LinkRow(NamedTuple):
    """One measured link, in words."""

    ends: str
    set_to: str
    round_trip: str
    rate: str


def link_rows(run: Run) -> list[LinkRow]:
    """List the links of a run that were measured before its ranks were started."""
    measured = run.summary.get("links") or []
    given = {name: value for name, value in run.resolved.get("network", {}).items() if value is not None}
    try:
        network = NetworkSection.model_validate(given)
    except ValueError:  # stored by another version of parlab
        network = NetworkSection()
    return [_row(link, network) for link in measured]


def _row(link: Mapping[str, float], network: NetworkSection) -> LinkRow:
    source, target = int(link["source"]), int(link["target"])
    delay, rate = network.delay_ms, network.bandwidth_gbps
    for special in network.links:
        if (special.source, special.target) == (source, target):
            delay = delay if special.delay_ms is None else special.delay_ms
            rate = rate if special.bandwidth_gbps is None else special.bandwidth_gbps
    set_to = f"{quantity(delay / 1e3, 's') if delay else 'no delay'}, "
    set_to += "as fast as it goes" if rate is None else quantity(1e9 * rate, "bit/s")
    trip, bits = link.get("round_trip_s"), link.get("bits_per_s")
    return LinkRow(
        f"{source} to {target}",
        set_to,
        DASH if trip is None else quantity(trip, "s"),
        DASH if bits is None else quantity(bits, "bit/s"),
    )


def why_no_links(points: Iterable[Point]) -> str:
    """Say why no node that is there can make the links that points ask for; empty where one can, or none asks."""
    pools = {point.config.cluster.pool for point in points if point.config and point.config.network.apply == "emulate"}
    if not pools:
        return ""
    nodes = Node.objects.online().filter(pool__in=pools, is_enabled=True).only("name", "hardware")
    reasons = {node.name: (node.hardware.get("links") or {}).get("why_not", "") for node in nodes}
    if not reasons or not all(reasons.values()):
        return ""
    name, reason = next(iter(reasons.items()))
    return f"Node {name} cannot emulate links: {reason}."
