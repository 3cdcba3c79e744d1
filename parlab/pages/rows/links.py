"""Links of a run: as configured, and as measured before its ranks started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from parlab.charts.format import DASH, quantity
from parlab.lab.models import Run
from runners.config import NetworkSection


class LinkRow(NamedTuple):
    """One measured link as text."""

    ends: str
    set_to: str
    round_trip: str
    rate: str


def link_rows(run: Run) -> list[LinkRow]:
    """Return the links of a run as measured before its ranks started."""
    measured = run.summary.get("links") or []
    fields = {name: value for name, value in run.resolved.get("network", {}).items() if value is not None}
    try:
        network = NetworkSection.model_validate(fields)
    except ValueError:  # stored by another version of parlab
        network = NetworkSection()
    return [_link_row(link, network) for link in measured]


def _link_row(link: Mapping[str, float], network: NetworkSection) -> LinkRow:
    source, target = int(link["source"]), int(link["target"])
    delay, rate = network.delay_ms, network.bandwidth_gbps
    for special in network.links:
        if (special.source, special.target) == (source, target):
            delay = delay if special.delay_ms is None else special.delay_ms
            rate = rate if special.bandwidth_gbps is None else special.bandwidth_gbps
    set_to = f"{quantity(delay / 1e3, 's') if delay else 'no delay'}, "
    set_to += "unlimited rate" if rate is None else quantity(1e9 * rate, "bit/s")
    trip, bits = link.get("round_trip_s"), link.get("bits_per_s")
    return LinkRow(
        f"{source} to {target}",
        set_to,
        DASH if trip is None else quantity(trip, "s"),
        DASH if bits is None else quantity(bits, "bit/s"),
    )
