"""Start ranks in separate network namespaces, connect these by emulated links, measure the links, and wait.

This process and its children hold all namespaces and devices; when they end for any reason, the kernel removes them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from runners.config import RunConfig
from runners.engines.process.events import Printer
from runners.links import netem
from runners.links.ability import REMEDY, try_here
from runners.links.forwarder import Link
from runners.links.measure import Measurement, round_trips, some_links, throughput
from runners.links.namespaces import inside, new_namespace, open_tun, set_sysctl
from runners.links.ranks import NODE, nursery, run_ranks, start_python
from runners.supervisor.processes import die_with

SURELY_CARRIED = 2e9
"""Rate in bits/s up to which the machine's own throughput is not checked first."""
TRANSFERS = 3
"""Maximum number of short transfers per rate measurement."""
RATE_TOLERANCE = 0.05
"""Relative error up to which a measured rate is accepted without another measurement."""
LONGEST_MEASURED_S = 0.25
"""Round trip above which the rate is not measured, because TCP would take too long to reach it."""
MAX_RATE_RATIO = 2.0
"""A rate above this multiple of the machine's throughput is refused; below it, a finding reports the deviation."""
LONGEST_PACKET_S = 1e-3
"""Upper limit of a packet's transmission time, so that small messages do not wait behind large packets."""
LARGEST_MTU, SMALLEST_MTU = 65_000, 1_500


class Refused(Exception):
    """This machine cannot provide the configured links; the message contains field, reason and remedy."""


class Host(NamedTuple):
    """A host on emulated links: file descriptors of its network namespace and of its device."""

    namespace: int
    device: int


def links_of(config: RunConfig) -> list[list[Link]]:
    """Return the links of a configuration as a matrix, by source and target host."""
    network, hosts = config.network, range(config.num_hosts)
    rate = None if network.bandwidth_gbps is None else network.bandwidth_gbps * 1e9
    default = Link(network.delay_ms / 1e3, rate, network.jitter_ms / 1e3, network.loss_pct / 100)
    links = [[default for _ in hosts] for _ in hosts]
    for override in network.links:
        link = default
        if override.delay_ms is not None:
            link = link._replace(delay_s=override.delay_ms / 1e3)
        if override.bandwidth_gbps is not None:
            link = link._replace(bits_per_s=override.bandwidth_gbps * 1e9, shares=False)
        links[override.source][override.target] = link
    return links


def mtu_for(links: Sequence[Sequence[Link]]) -> int:
    """Return the MTU in bytes: large packets cost least, but must not take long on the slowest link."""
    slowest = min((link.bits_per_s for row in links for link in row if link.bits_per_s), default=None)
    if slowest is None:
        return LARGEST_MTU
    return int(min(max(slowest * LONGEST_PACKET_S / 8, SMALLEST_MTU), LARGEST_MTU))


def run_emulated(config: RunConfig, config_path: Path) -> int:
    """Run the ranks of a configuration on its links and return their exit code.

    Raises Refused if this machine cannot provide the links.
    """
    ability = try_here()
    if ability.why_not:
        raise Refused(f"network.apply emulate: {ability.why_not}")
    printer, links = Printer(NODE), links_of(config)
    by = "netem" if netem.is_enough(config.network, ability.has_netem) else "forwarder"
    with ExitStack() as stack:
        hosts = [] if by == "netem" else make_hosts(stack, links)
        namespaces = [host.namespace for host in hosts] or _by_netem(stack, config, links)
        # Ranks that compute import their engine themselves: CUDA must not be initialized before a fork.
        is_emulated = config.train.compute == "emulated"
        ranks = stack.enter_context(nursery(config, config_path, namespaces)) if is_emulated else None
        if hosts:
            lead_s = _lead(config, hosts)
            stack.enter_context(forwarding(hosts, links, lead_s=lead_s, seed=config.train.seed))
        for measurement in measure_links(config, namespaces, links):
            _print_link(printer, by, measurement, links[measurement.source][measurement.target])
        return ranks.run() if ranks else run_ranks(config, config_path, namespaces, start_python)


def _by_netem(stack: ExitStack, config: RunConfig, links: Sequence[Sequence[Link]]) -> list[int]:
    try:
        namespaces = netem.join_hosts(stack, config.network, config.num_hosts, mtu_for(links))
    except OSError as error:
        raise Refused(f"network.apply emulate: the kernel refused a link: {error}; {REMEDY}") from None
    for namespace in namespaces:
        with inside(namespace):
            _set_tcp_windows(_bandwidth_delay_product(links))
    return namespaces


def make_hosts(stack: ExitStack, links: Sequence[Sequence[Link]]) -> list[Host]:
    """Create a namespace with a device and an address for each host; closing the stack removes them."""
    mtu = mtu_for(links)
    hosts = []
    for number in range(len(links)):
        namespace = new_namespace()
        stack.callback(os.close, namespace)
        with inside(namespace):
            _set_tcp_windows(_bandwidth_delay_product(links))
            device = open_tun(number, mtu)
        stack.callback(os.close, device)
        hosts.append(Host(namespace, device))
    return hosts


def _bandwidth_delay_product(links: Sequence[Sequence[Link]]) -> float:
    """Return an upper limit of the bytes in flight on a link: highest rate times longest round trip."""
    longest = max(link.delay_s for row in links for link in row)
    fastest = max((link.bits_per_s or 0.0 for row in links for link in row), default=0.0)
    return 2 * longest * fastest / 8


def _set_tcp_windows(in_flight_bytes: float) -> None:
    """Let TCP windows cover a link's bandwidth-delay product; the default of 4 MB leaves long fast links idle."""
    limit = int(min(max(6 * in_flight_bytes, 32 << 20), 2**31 - 1))
    set_sysctl("net/ipv4/tcp_rmem", f"4096 131072 {limit}")
    set_sysctl("net/ipv4/tcp_wmem", f"4096 65536 {limit}")
    # A pipeline pauses between messages; slow start after each pause would waste round trips.
    set_sysctl("net/ipv4/tcp_slow_start_after_idle", "0")


@contextmanager
def forwarding(hosts: Sequence[Host], links: Sequence[Sequence[Link]], *, lead_s: float, seed: int) -> Iterator[None]:
    """Run the forwarder between hosts for the body of a with statement."""
    devices = [host.device for host in hosts]
    settings = {
        "devices": devices,
        "seed": seed,
        "lead_s": lead_s,
        "links": [[link._asdict() for link in row] for row in links],
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "runners.links.forwarder", json.dumps(settings)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=devices,
        preexec_fn=die_with(os.getpid()),  # noqa: PLW1509  this process has one thread
    )
    try:
        if process.stdout is None or not process.stdout.readline():
            raise Refused(f"network.apply emulate: the forwarder process did not start; {REMEDY}")
        yield
    finally:
        process.kill()
        process.wait()


def _lead(config: RunConfig, hosts: Sequence[Host]) -> float:
    """Return the one-way latency of links without delay, in seconds; raise Refused if the machine is too slow."""
    unshaped, namespaces = [[Link()] * len(hosts)] * len(hosts), [host.namespace for host in hosts]
    with forwarding(hosts, unshaped, lead_s=0.0, seed=0):
        trip = round_trips(namespaces, [(0, 1)], 0.0)[0]
        configured = max((link.bits_per_s or 0.0 for row in links_of(config) for link in row), default=0.0)
        if configured > SURELY_CARRIED:
            capacity = _best_throughput(namespaces, trip or 0.0, configured)
            if capacity is not None and capacity < configured / MAX_RATE_RATIO:
                raise Refused(
                    f"network.bandwidth_gbps {configured / 1e9:g} is more than the {capacity / 1e9:.3g} Gbit/s that"
                    f" this machine currently achieves; use less, leave it empty for no limit, or {REMEDY}"
                )
    return (trip or 0.0) / 2


def _best_throughput(namespaces: Sequence[int], round_trip_s: float, sufficient: float) -> float | None:
    """Return the best of a few short transfers in bits/s, because a busy machine may be slow for a moment."""
    best = None
    for _ in range(TRANSFERS):
        rate = throughput(namespaces, (0, 1), round_trip_s)
        best = max(filter(None, (best, rate)), default=None)
        if best is not None and best >= sufficient:
            break
    return best


def measure_links(config: RunConfig, namespaces: Sequence[int], links: Sequence[Sequence[Link]]) -> list[Measurement]:
    """Measure the overridden links and those between neighbours: all round trips at once, then the rates in turn."""
    selection = some_links(len(namespaces), [(link.source, link.target) for link in config.network.links])
    longest = max(links[source][target].delay_s + links[target][source].delay_s for source, target in selection)
    measurements = []
    for link, trip in zip(selection, round_trips(namespaces, selection, longest), strict=True):
        source, target = link
        rate = None
        if trip is not None and trip <= LONGEST_MEASURED_S:
            rate = _rate(namespaces, link, trip, links[source][target])
        measurements.append(Measurement(source, target, trip, rate))
    return measurements


def _rate(namespaces: Sequence[int], link: tuple[int, int], round_trip_s: float, setting: Link) -> float | None:
    """Measure a rate in bits/s; repeat if it is off, because another program may have taken the processors."""
    nearest: float | None = None
    for _ in range(TRANSFERS):
        rate = throughput(namespaces, link, round_trip_s, setting.bits_per_s)
        if rate is None or setting.bits_per_s is None or setting.loss:
            return rate
        if nearest is None or abs(rate - setting.bits_per_s) < abs(nearest - setting.bits_per_s):
            nearest = rate
        if abs(nearest / setting.bits_per_s - 1) < RATE_TOLERANCE:
            break
    return nearest


def _print_link(printer: Printer, by: str, measurement: Measurement, link: Link) -> None:
    printer.emit(
        "link",
        by=by,
        source=measurement.source,
        target=measurement.target,
        delay_s=link.delay_s,
        bits_per_s=link.bits_per_s,
        round_trip_s=measurement.round_trip_s,
        measured_bits_per_s=measurement.bits_per_s,
    )
