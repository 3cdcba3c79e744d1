"""Anonymous network namespaces and their devices, created by system calls without external programs.

A namespace exists as long as a process or an open file refers to it, a TUN device as long as its file is open. Neither
can outlive the processes that use it, whatever ends them.
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
"""Name of the network device of every host, each in its own namespace."""
PACKET_INFO_BYTES = 10
"""Size of the virtio_net_hdr before each packet of a TUN device with IFF_VNET_HDR."""
MAX_HOSTS = 250

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
# Offload checksums to "the network card": between two namespaces of one machine they are not needed.
_TUN_F_CSUM = 0x01
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8916, 0x891C, 0x8922, 0x8943
_IFF_UP = 0x1
_DEVICE_QUEUE = 1000
_libc = ctypes.CDLL(None, use_errno=True)


def address(host: int) -> str:
    """Return the IPv4 address of a host (counted from 0) in 198.18.0.0/24, a range for network tests (RFC 2544).

    Raises ValueError for a host number of MAX_HOSTS or more.
    """
    if not 0 <= host < MAX_HOSTS:
        raise ValueError(f"host {host} exceeds the {MAX_HOSTS} hosts that links support; use fewer ranks or nodes")
    return f"198.18.0.{host + 1}"


def new_namespace() -> int:
    """Create a network namespace with loopback up; return a file descriptor that refers to it.

    The caller stays in its namespace; its process must have a single thread. Raises OSError if the kernel refuses.
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.unshare(_CLONE_NEWNET), "cannot create a network namespace")
        try:
            namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            _up("lo")
        finally:
            enter(home)
    finally:
        os.close(home)
    return namespace


def enter(namespace: int) -> None:
    """Move the calling thread into a namespace; open sockets stay in the namespace where they were created."""
    _check(_libc.setns(namespace, _CLONE_NEWNET), "cannot enter a network namespace")


@contextlib.contextmanager
def inside(namespace: int) -> Iterator[None]:
    """Enter a namespace for the body of a with statement."""
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
    """Create the device of a host in the current namespace; return its file descriptor, whose closing removes it.

    Reading returns a packet that the host sends, writing delivers a packet to the host; each packet follows a header
    of PACKET_INFO_BYTES. Raises OSError if the kernel refuses.
    """
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), flags))
        fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM)
        # IPv6 autoconfiguration would send packets of its own.
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
    """Set a kernel parameter of the current namespace, if the kernel has it and permits it."""
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
