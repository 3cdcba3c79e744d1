"""Start ranks in network namespaces of their own, join these by links as slow as wanted, measure, and wait.

All that is made is held by this process and those it starts: when they end, however they end, the kernel takes
namespaces and devices away with them.
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
from runners.events import Printer
from runners.links import netem
from runners.links.ability import REMEDY, try_here
from runners.links.forwarder import Link
from runners.links.measure import Measured, round_trips, some_links, throughput
from runners.links.namespaces import inside, new_namespace, open_tun, set_sysctl
from runners.links.ranks import NODE, nursery, run_ranks, start_python
from runners.processes import die_with

SURELY_CARRIED = 2e9
"""bits/s below which a machine is not asked first whether it carries so much."""
TRANSFERS = 3
NEAR_ENOUGH = 0.05
"""A measured rate that is off by no more than this share is not measured again."""
LONGEST_MEASURED_S = 0.25
"""Round trip beyond which the rate is not measured: finding it would take longer than people wait."""
FAR_BEYOND = 2.0
"""A rate so many times what the machine carries is refused; one that is nearer runs, and a finding tells how near."""
LONGEST_PACKET_S = 1e-3
"""A packet takes no longer than this to send, so that small messages need not wait behind large packets."""
LARGEST_MTU, SMALLEST_MTU = 65_000, 1_500


class Refused(Exception):
    """This machine cannot give the links that are wanted; the message says which field, why, and the remedy."""


class Host(NamedTuple):
    """One end of links: a network namespace and the file of the device in it."""

    namespace: int
    device: int


def links_of(config: RunConfig) -> list[list[Link]]:
    """Return the link from each host to each host, as the forwarder wants them."""
    network, hosts = config.network, range(config.num_hosts)
    rate = None if network.bandwidth_gbps is None else network.bandwidth_gbps * 1e9
    usual = Link(network.delay_ms / 1e3, rate, network.jitter_ms / 1e3, network.loss_pct / 100)
    links = [[usual for _ in hosts] for _ in hosts]
    for special in network.links:
        link = usual
        if special.delay_ms is not None:
            link = link._replace(delay_s=special.delay_ms / 1e3)
        if special.bandwidth_gbps is not None:
            link = link._replace(bits_per_s=special.bandwidth_gbps * 1e9, shares=False)
        links[special.source][special.target] = link
    return links


def mtu_for(links: Sequence[Sequence[Link]]) -> int:
    """Choose how large packets may be: large ones cost least, but one must not take long on the slowest link."""
    slowest = min((link.bits_per_s for row in links for link in row if link.bits_per_s), default=None)
    if slowest is None:
        return LARGEST_MTU
    return int(min(max(slowest * LONGEST_PACKET_S / 8, SMALLEST_MTU), LARGEST_MTU))


def run_emulated(config: RunConfig, config_path: Path) -> int:
    """Run the ranks of a configuration to their end behind its links; return their exit code.

    Raises Refused where this machine cannot make the links.
    """
    ability = try_here()
    if ability.why_not:
        raise Refused(f"network.apply emulate: {ability.why_not}")
    printer, links = Printer(NODE), links_of(config)
    by = "netem" if netem.is_enough(config.network, ability.has_netem) else "forwarder"
    with ExitStack() as stack:
        hosts = [] if by == "netem" else make_hosts(stack, links)
        namespaces = [host.namespace for host in hosts] or _by_netem(stack, config, links)
        # Ranks that compute start by themselves: what they do to a GPU must not happen before a fork.
        is_emulated = config.train.compute == "emulated"
        ranks = stack.enter_context(nursery(config, config_path, namespaces)) if is_emulated else None
        if hosts:
            lead_s = _lead(config, hosts)
            stack.enter_context(forwarding(hosts, links, lead_s=lead_s, seed=config.train.seed))
        for one in measure_links(config, namespaces, links):
            _print_link(printer, by, one, links[one.source][one.target])
        return ranks.run() if ranks else run_ranks(config, config_path, namespaces, start_python)


def _by_netem(stack: ExitStack, config: RunConfig, links: Sequence[Sequence[Link]]) -> list[int]:
    try:
        namespaces = netem.join_hosts(stack, config.network, config.num_hosts, mtu_for(links))
    except OSError as error:
        raise Refused(f"network.apply emulate: the kernel refuses: {error}; {REMEDY}") from None
    for namespace in namespaces:
        with inside(namespace):
            _let_windows_grow(_most_in_flight(links))
    return namespaces


def make_hosts(stack: ExitStack, links: Sequence[Sequence[Link]]) -> list[Host]:
    """Make a namespace with a device and an address for each host; they go when the stack is closed."""
    mtu = mtu_for(links)
    hosts = []
    for number in range(len(links)):
        namespace = new_namespace()
        stack.callback(os.close, namespace)
        with inside(namespace):
            _let_windows_grow(_most_in_flight(links))
            device = open_tun(number, mtu)
        stack.callback(os.close, device)
        hosts.append(Host(namespace, device))
    return hosts


def _most_in_flight(links: Sequence[Sequence[Link]]) -> float:
    """Return what the largest link holds in a round trip, in bytes."""
    longest = max(link.delay_s for row in links for link in row)
    fastest = max((link.bits_per_s or 0.0 for row in links for link in row), default=0.0)
    return 2 * longest * fastest / 8


def _let_windows_grow(in_flight_bytes: float) -> None:
    """Let TCP have as much under way as a link holds; with the kernel's usual 4 MB a long fast link stays empty."""
    most = int(min(max(6 * in_flight_bytes, 32 << 20), 2**31 - 1))
    set_sysctl("net/ipv4/tcp_rmem", f"4096 131072 {most}")
    set_sysctl("net/ipv4/tcp_wmem", f"4096 65536 {most}")
    # A pipeline pauses between messages; a connection that then felt its way again would waste round trips.
    set_sysctl("net/ipv4/tcp_slow_start_after_idle", "0")


@contextmanager
def forwarding(hosts: Sequence[Host], links: Sequence[Sequence[Link]], *, lead_s: float, seed: int) -> Iterator[None]:
    """Have packets carried between hosts for the body of a with statement."""
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
            raise Refused(f"network.apply emulate: the process that carries packets does not start; {REMEDY}")
        yield
    finally:
        process.kill()
        process.wait()


def _lead(config: RunConfig, hosts: Sequence[Host]) -> float:
    """Measure how long the way takes where links have no delay, in seconds; and refuse a rate beyond the machine's."""
    unshaped, namespaces = [[Link()] * len(hosts)] * len(hosts), [host.namespace for host in hosts]
    with forwarding(hosts, unshaped, lead_s=0.0, seed=0):
        trip = round_trips(namespaces, [(0, 1)], 0.0)[0]
        wanted = max((link.bits_per_s or 0.0 for row in links_of(config) for link in row), default=0.0)
        if wanted > SURELY_CARRIED:
            carried = _most_carried(namespaces, trip or 0.0, wanted)
            if carried is not None and carried < wanted / FAR_BEYOND:
                raise Refused(
                    f"network.bandwidth_gbps: {wanted / 1e9:g} Gbit/s is more than the {carried / 1e9:.3g} Gbit/s that"
                    f" this machine carries now; use less, leave it empty for as much as it carries, or {REMEDY}"
                )
    return (trip or 0.0) / 2


def _most_carried(namespaces: Sequence[int], round_trip_s: float, enough: float) -> float | None:
    """Return the best of a few short transfers, in bits/s: a busy machine carries less for a moment."""
    best = None
    for _ in range(TRANSFERS):
        carried = throughput(namespaces, (0, 1), round_trip_s)
        best = max(filter(None, (best, carried)), default=None)
        if best is not None and best >= enough:
            break
    return best


def measure_links(config: RunConfig, namespaces: Sequence[int], links: Sequence[Sequence[Link]]) -> list[Measured]:
    """Measure the links that differ and those between neighbours: round trips all at once, then rates in turn."""
    chosen = some_links(len(namespaces), [(link.source, link.target) for link in config.network.links])
    longest = max(links[source][target].delay_s + links[target][source].delay_s for source, target in chosen)
    found = []
    for link, trip in zip(chosen, round_trips(namespaces, chosen, longest), strict=True):
        source, target = link
        rate = None
        if trip is not None and trip <= LONGEST_MEASURED_S:
            rate = _rate(namespaces, link, trip, links[source][target])
        found.append(Measured(source, target, trip, rate))
    return found


def _rate(namespaces: Sequence[int], link: tuple[int, int], round_trip_s: float, wanted: Link) -> float | None:
    """Measure a rate; once more where it is far off, since another program may just have taken the processors."""
    nearest: float | None = None
    for _ in range(TRANSFERS):
        rate = throughput(namespaces, link, round_trip_s, wanted.bits_per_s)
        if rate is None or wanted.bits_per_s is None or wanted.loss:
            return rate
        if nearest is None or abs(rate - wanted.bits_per_s) < abs(nearest - wanted.bits_per_s):
            nearest = rate
        if abs(nearest / wanted.bits_per_s - 1) < NEAR_ENOUGH:
            break
    return nearest


def _print_link(printer: Printer, by: str, measured: Measured, link: Link) -> None:
    printer.emit(
        "link",
        by=by,
        source=measured.source,
        target=measured.target,
        delay_s=link.delay_s,
        bits_per_s=link.bits_per_s,
        round_trip_s=measured.round_trip_s,
        measured_bits_per_s=measured.bits_per_s,
    )
