"""Configured links and their measurements before a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from parlab.findings.contradictions import Contradiction, RunFacts, percent, shown
from parlab.findings.facts import count, number, part

TOLERANCE = 0.10
SLACK_S = 100e-6
"""Time to wake up two processes on a machine that is not idle, and its variation."""


class _Setting(NamedTuple):
    delay_s: float
    bits_per_s: float | None


def links_of_run(run: RunFacts) -> Iterator[Contradiction]:
    """Compare round trips and rates; with packet loss rates are not compared, because TCP slows down."""
    network = part(run.config, "network")
    measured = run.summary.get("links")
    if network.get("apply") != "emulate" or not isinstance(measured, list):
        return
    jitter_s = (number(network.get("jitter_ms")) or 0.0) / 1e3
    for link in measured:
        if not isinstance(link, Mapping):
            continue
        ends = count((link.get("source") or 0) + 1), count((link.get("target") or 0) + 1)
        if ends[0] is None or ends[1] is None:
            continue
        source, target = ends[0] - 1, ends[1] - 1
        there, back = _setting(network, source, target), _setting(network, target, source)
        trip, expected = number(link.get("round_trip_s")), there.delay_s + back.delay_s
        if trip is not None and abs(trip - expected) > TOLERANCE * expected + SLACK_S + 2 * jitter_s:
            yield Contradiction(
                f"The round trip between {source} and {target} took {shown(1e3 * trip)} ms before the run, but the"
                f" configured delays add up to {shown(1e3 * expected)} ms: the machine was too busy, or its own latency"
                " is higher.",
                {"measured_round_trip_ms": 1e3 * trip, "set_round_trip_ms": 1e3 * expected},
            ).at(run=run.number, figure=f"round trip {source} to {target}")
        rate, limit = number(link.get("bits_per_s")), there.bits_per_s
        if rate is not None and limit and not network.get("loss_pct") and abs(rate / limit - 1) > TOLERANCE:
            yield Contradiction(
                f"The link from {source} to {target} carried {shown(rate / 1e9)} Gbit/s before the run,"
                f" {percent(rate / limit)} of the configured {shown(limit / 1e9)} Gbit/s.",
                {"measured_gbit_per_s": rate / 1e9, "set_gbit_per_s": limit / 1e9},
            ).at(run=run.number, figure=f"rate {source} to {target}")


def _setting(network: Mapping[str, Any], source: int, target: int) -> _Setting:
    delay, rate = number(network.get("delay_ms")) or 0.0, number(network.get("bandwidth_gbps"))
    links = network.get("links")
    for link in links if isinstance(links, list) else []:
        if isinstance(link, Mapping) and (link.get("source"), link.get("target")) == (source, target):
            own_delay, own_rate = number(link.get("delay_ms")), number(link.get("bandwidth_gbps"))
            delay, rate = delay if own_delay is None else own_delay, rate if own_rate is None else own_rate
    return _Setting(delay / 1e3, None if rate is None else rate * 1e9)
