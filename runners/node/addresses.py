"""Addresses of this node, and the choice of the one at which the other nodes of a run reach it."""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil

from runners.node.launch.share import LOOPBACK
from runners.wire.protocol import NodeAddress

MAX_ADDRESSES = 64


class AddressError(ValueError):
    """Raised if this node has no address that a run asks for."""


class Place(NamedTuple):
    """An address of this node and its interface."""

    address: str
    interface: str


def local_addresses() -> list[NodeAddress]:
    """List the IP addresses of this machine that other machines may reach, IPv4 first, then those of loopback."""
    states = psutil.net_if_stats()
    addresses = []
    for name, entries in psutil.net_if_addrs().items():
        if name in states and not states[name].isup:
            continue
        for entry in entries:
            if entry.family not in (socket.AF_INET, socket.AF_INET6) or not entry.netmask:
                continue
            address = ipaddress.ip_address(entry.address.partition("%")[0])
            if not address.is_link_local:
                addresses.append(NodeAddress(interface=name, address=str(address), prefix=_prefix(entry.netmask)))
    return sorted(addresses, key=_order)[:MAX_ADDRESSES]


def _prefix(netmask: str) -> int:
    """Return the number of bits of a netmask, also of IPv6, for which psutil has no prefix either."""
    return int(ipaddress.ip_address(netmask)).bit_count()


def _order(entry: NodeAddress) -> tuple[bool, bool, str]:
    address = ipaddress.ip_address(entry.address)
    return address.is_loopback, address.version == 6, entry.interface


def address_towards(url: str) -> str:
    """Return the address with which this machine reaches the host of a URL; loopback if it cannot be known."""
    parts = urlsplit(url)
    if parts.scheme.endswith("unix") or not parts.hostname:
        return LOOPBACK
    try:
        family, _, _, _, target = socket.getaddrinfo(parts.hostname, parts.port or 6379, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # chooses a route, and sends nothing
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return LOOPBACK


def choose(wanted: str | None, own: str) -> Place:
    """Return the address for a run: of interface or subnet `wanted` (`cluster.interface`), else `own`.

    Raises AddressError if this node has no such address.
    """
    local = local_addresses()
    if wanted is None:
        return Place(own, _interface_of(own, local))
    matches = [entry for entry in local if _matches(entry, wanted)]
    if any(_contains(entry, own) for entry in matches) and _suits(own, wanted):
        return Place(own, _interface_of(own, matches))
    if matches:
        return Place(matches[0].address, matches[0].interface)
    present = ", ".join(f"{entry.interface} {entry.address}/{entry.prefix}" for entry in local[:8]) or "none"
    raise AddressError(
        f"cluster.interface {wanted} matches no address of node {socket.gethostname()}, which has {present};"
        " use the name of an interface, or a subnet, that every node has"
    )


def _matches(entry: NodeAddress, wanted: str) -> bool:
    return _is_in(entry.address, wanted) if "/" in wanted else entry.interface == wanted


def _suits(address: str, wanted: str) -> bool:
    return "/" not in wanted or _is_in(address, wanted)


def _is_in(address: str, subnet: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(subnet, strict=False)


def _contains(entry: NodeAddress, address: str) -> bool:
    """Return whether an address belongs to an interface; all of 127.0.0.0/8 belongs to loopback."""
    if entry.address == address:
        return True
    is_loopback = ipaddress.ip_address(entry.address).is_loopback
    return is_loopback and _is_in(address, f"{entry.address}/{entry.prefix}")


def _interface_of(address: str, local: list[NodeAddress]) -> str:
    return next((entry.interface for entry in local if _contains(entry, address)), "")


def check_own(address: str) -> str:
    """Return an address if this machine has it; raises AddressError otherwise."""
    try:
        ipaddress.ip_address(address)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except (OSError, ValueError) as error:
        present = ", ".join(entry.address for entry in local_addresses()[:8]) or "none"
        raise AddressError(f"address {address} is not one of this machine ({error}); it has {present}") from None
    return address


def held_port(address: str) -> socket.socket:
    """Return a socket that holds a free port of this machine until it is closed; raises OSError.

    Without SO_REUSEADDR: with it, another program could take the port of a socket that does not listen.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))  # fails if the address is not one of this machine
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        # On all addresses, as the store of torch listens.
        holder.bind(("", 0))
    except OSError:
        holder.close()
        raise
    return holder
