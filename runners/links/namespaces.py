"""Network namespaces without names, and the devices in them, straight from the kernel: no program is needed for it.

A namespace lives as long as a process or an open file refers to it, a TUN device as long as its file is open. So
nothing that is made here can outlive the processes that use it, whatever kills them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

DEVICE = "parlab0"
"""The network device of every host; each is alone in its namespace."""
PACKET_INFO_BYTES = 10
"""The virtio_net_hdr before each packet of a TUN device with IFF_VNET_HDR."""
MAX_HOSTS = 250

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
# Checksums are left to "the network card": between two namespaces of one machine nobody need compute them.
_TUN_F_CSUM = 0x01
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8916, 0x891C, 0x8922, 0x8943
_IFF_UP = 0x1
_DEVICE_QUEUE = 1000
_libc = ctypes.CDLL(None, use_errno=True)


def address(host: int) -> str:
    """Return the address of a host, counted from 0, in 198.18.0.0/24: reserved for tests of networks (RFC 2544)."""
    if not 0 <= host < MAX_HOSTS:
        raise ValueError(f"host {host} is beyond the {MAX_HOSTS} that links can be made for; use fewer ranks or nodes")
    return f"198.18.0.{host + 1}"


def new_namespace() -> int:
    """Make a network namespace whose loopback is up, and return a file that refers to it.

    Raises OSError where the kernel refuses. Only for a process with one thread, which stays where it is.
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.unshare(_CLONE_NEWNET), "a network namespace cannot be made")
        try:
            made = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            _up("lo")
        finally:
            enter(home)
    finally:
        os.close(home)
    return made


def enter(namespace: int) -> None:
    """Move the calling thread into a namespace; sockets that it has open stay where they were made."""
    _check(_libc.setns(namespace, _CLONE_NEWNET), "a network namespace cannot be entered")


@contextlib.contextmanager
def inside(namespace: int) -> Iterator[None]:
    """Be in a namespace for the body of a with statement."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(namespace)
        try:
            yield
        finally:
            enter(home)
    finally:
        os.close(home)


def open_tun(host: int, mtu: int) -> int:
    """Make the device of a host in the namespace that the caller is in; return its file, which the device lives with.

    What the host sends is read from it, what it is to receive is written to it, one packet each time with
    PACKET_INFO_BYTES before it. Raises OSError where the kernel refuses.
    """
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), flags))
        fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM)
        # An address that the kernel makes up for itself would send packets that nobody has asked for.
        set_sysctl(f"net/ipv6/conf/{DEVICE}/disable_ipv6", "1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", DEVICE.encode(), mtu))
            fcntl.ioctl(control, _SIOCSIFTXQLEN, struct.pack("16si20x", DEVICE.encode(), _DEVICE_QUEUE))
            fcntl.ioctl(control, _SIOCSIFADDR, _request(address(host)))
            fcntl.ioctl(control, _SIOCSIFNETMASK, _request("255.255.255.0"))
        _up(DEVICE)
    except OSError:
        os.close(device)
        raise
    return device


def set_sysctl(name: str, value: str) -> None:
    """Set a kernel parameter of the namespace that the caller is in, where the kernel has it and a container may."""
    with contextlib.suppress(OSError):
        Path("/proc/sys", name).write_text(value)


def _up(device: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH22x", device.encode(), 0))
        flags = struct.unpack_from("H", answer, 16)[0] | _IFF_UP
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", device.encode(), flags))


def _request(ip: str) -> bytes:
    return struct.pack("16sHH4s16x", DEVICE.encode(), socket.AF_INET, 0, socket.inet_aton(ip))


def _check(result: int, message: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{message}: {os.strerror(number)}")
