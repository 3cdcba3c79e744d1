"""Whether this machine can make links, and if not, why: `python -m runners.links.ability` tries and cleans up."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from runners.links.namespaces import inside, new_namespace, open_tun

REMEDY = "simulate the network instead (docs/network.md), or use network.apply none"
_ROOT = Path(__file__).resolve().parent.parent.parent


class Ability(NamedTuple):
    """What the links of this machine can be made of."""

    why_not: str
    """Why links cannot be emulated, and the remedy; empty where they can."""
    has_netem: bool
    """The kernel itself delays packets, and tc is there to tell it so."""


@functools.cache
def ability() -> Ability:
    """Try once, in a process of its own, whether links can be emulated here, and by what."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "runners.links.ability"],
            check=True,
            capture_output=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": ":".join(paths)},
        )
        return Ability(**json.loads(done.stdout))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError) as error:
        return Ability(f"whether links can be made here cannot be tried: {error}; {REMEDY}", False)


def try_here() -> Ability:
    """Make a namespace and a device and drop them; for a process with one thread."""
    try:
        namespace = new_namespace()
    except OSError as error:
        why = f"links need the rights of root (CAP_SYS_ADMIN): {error}"
        return Ability(f"{why}; start the daemon as root, or {REMEDY}", False)
    with inside(namespace):
        try:
            os.close(open_tun(0, 1500))
        except FileNotFoundError:
            return Ability(f"this machine has no /dev/net/tun; load the module tun, or {REMEDY}", False)
        except OSError as error:
            why = f"links need the rights of root and /dev/net/tun (CAP_NET_ADMIN): {error}"
            return Ability(f"{why}; start the daemon as root, or {REMEDY}", False)
        return Ability("", has_netem("lo"))


def has_netem(device: str) -> bool:
    """Tell whether a device of the namespace that the caller is in can be delayed; it is for a moment."""
    command = ("tc", "qdisc", "add", "dev", device, "root", "netem", "delay", "1ms")
    try:
        done = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.stdout.write(json.dumps(try_here()._asdict()))
