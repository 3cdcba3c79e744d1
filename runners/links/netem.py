"""Links by the kernel's netem: each host has a veth into one bridge, with netem on its outgoing side.

As with the forwarder, everything is in anonymous namespaces and ends with the processes that hold them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack

from runners.config import NetworkSection
from runners.links.interface import netem_arguments
from runners.links.namespaces import DEVICE, address, inside, new_namespace, set_sysctl

BRIDGE = "parlab-bridge"
_TIMEOUT_S = 10


def is_enough(network: NetworkSection, has_netem: bool) -> bool:
    """Return whether netem suffices: the kernel has it, no link has its own settings, and `ip` is installed."""
    return has_netem and not network.links and shutil.which("ip") is not None


def join_hosts(stack: ExitStack, network: NetworkSection, num_hosts: int, mtu: int) -> list[int]:
    """Create a namespace per host, connected by a bridge; closing the stack removes them.

    Raises OSError if the kernel, ip or tc refuses.
    """
    bridge = new_namespace()
    stack.callback(os.close, bridge)
    with inside(bridge):
        _run("ip", "link", "add", BRIDGE, "mtu", str(mtu), "type", "bridge")
        _run("ip", "link", "set", BRIDGE, "up")
    namespaces = []
    for host in range(num_hosts):
        namespace = new_namespace()
        stack.callback(os.close, namespace)
        namespaces.append(namespace)
        port = f"port{host}"
        with inside(namespace):
            peer = ["peer", "name", port, "mtu", str(mtu), "netns", f"/proc/{os.getpid()}/fd/{bridge}"]
            _run("ip", "link", "add", DEVICE, "mtu", str(mtu), "type", "veth", *peer)
            set_sysctl(f"net/ipv6/conf/{DEVICE}/disable_ipv6", "1")
            _run("ip", "addr", "add", f"{address(host)}/24", "dev", DEVICE)
            _run("ip", "link", "set", DEVICE, "up")
            _run("tc", "qdisc", "add", "dev", DEVICE, "root", *netem_arguments(network))
        with inside(bridge):
            _run("ip", "link", "set", port, "master", BRIDGE, "up")
    return namespaces


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        raise OSError(f"{' '.join(command)}: {error.stderr.strip()}") from None
    except subprocess.TimeoutExpired as error:
        raise OSError(str(error)) from None
