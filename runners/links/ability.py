"""Check whether this machine can emulate links: `python -m runners.links.ability` tries it and cleans up."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from runners.links.namespaces import inside, new_namespace, open_tun

REMEDY = "simulate the network instead (docs/understand/network.md), or use network.apply none"
_ROOT = Path(__file__).resolve().parent.parent.parent


class Ability(NamedTuple):
    """Support for link emulation on this machine."""

    why_not: str
    """Reason why links cannot be emulated, and the remedy; empty if they can."""
    has_netem: bool
    """The kernel has sch_netem, and tc is installed to configure it."""


@functools.cache
def ability() -> Ability:
    """Check in a separate process whether and how links can be emulated here; the result is cached."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        result = subprocess.run(
            [sys.executable, "-m", "runners.links.ability"],
            check=True,
            capture_output=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": ":".join(paths)},
        )
        return Ability(**json.loads(result.stdout))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError) as error:
        return Ability(f"the check for link emulation failed: {error}; {REMEDY}", False)


def try_here() -> Ability:
    """Create and drop a namespace and a device; the calling process must have a single thread."""
    try:
        namespace = new_namespace()
    except OSError as error:
        reason = f"emulated links require root (CAP_SYS_ADMIN): {error}"
        return Ability(f"{reason}; start the daemon as root, or {REMEDY}", False)
    with inside(namespace):
        try:
            os.close(open_tun(0, 1500))
        except FileNotFoundError:
            return Ability(f"this machine has no /dev/net/tun; load the kernel module tun, or {REMEDY}", False)
        except OSError as error:
            reason = f"emulated links require root and /dev/net/tun (CAP_NET_ADMIN): {error}"
            return Ability(f"{reason}; start the daemon as root, or {REMEDY}", False)
        return Ability("", has_netem("lo"))


def has_netem(device: str) -> bool:
    """Return whether netem can be added to a device of the current namespace; it stays added."""
    command = ("tc", "qdisc", "add", "dev", device, "root", "netem", "delay", "1ms")
    try:
        result = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


if __name__ == "__main__":
    sys.stdout.write(json.dumps(try_here()._asdict()))
