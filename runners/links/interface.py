"""Shape what leaves a real network interface, and take it back: `network.apply: interface`.

Unlike namespaces this outlives its processes. So a record in the run's directory says what was done before it is done;
whoever looks after the run next (its own end, the supervisor, the daemon's next start) undoes it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

from runners.config import NetworkSection
from runners.links.ability import REMEDY, ability
from runners.rundir import write_atomically

RECORD = "interface.json"
"""File in a run's directory that names the interface while it is shaped."""
HANDLE = "70a1:"
"""Tells parlab's queueing discipline from everybody else's."""
_TIMEOUT_S = 10
_MTU_BYTES = 1500
_QUEUE_PACKETS = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,14}")

log = logging.getLogger(__name__)


def netem_arguments(network: NetworkSection) -> list[str]:
    """Write a setting as tc's netem takes it; the limit holds what the link holds, and a queue behind it."""
    rate = network.bandwidth_gbps
    delay_s = network.delay_ms / 1e3
    limit = _QUEUE_PACKETS + (int(4 * rate * 1e9 / 8 * delay_s / _MTU_BYTES) if rate else int(delay_s * 1e6))
    arguments = ["netem", "limit", str(limit)]
    if network.delay_ms:
        arguments += ["delay", f"{network.delay_ms:.6g}ms"]
        if network.jitter_ms:
            arguments += [f"{network.jitter_ms:.6g}ms"]
    if network.loss_pct:
        arguments += ["loss", f"{network.loss_pct:.6g}%"]
    if rate is not None:
        arguments += ["rate", f"{round(rate * 1e9)}bit"]
    return arguments


def tbf_arguments(bits_per_s: float) -> list[str]:
    """Write a mere rate as tc's token bucket takes it, which kernels without netem have too."""
    burst = max(int(bits_per_s / 8 / 250), 2 * 65_536)  # what passes between two ticks of the kernel, and large packets
    return ["tbf", "rate", f"{round(bits_per_s)}bit", "burst", f"{burst}b", "latency", "100ms"]


def why_not(network: NetworkSection) -> str:
    """Say why this node cannot shape the interface that a configuration names, and the remedy; empty where it can."""
    name = network.interface or ""
    if name not in _interfaces() or not _NAME.fullmatch(name):
        there = ", ".join(other for other in _interfaces() if other != "lo")
        return f"network.interface {name} is not on this node; use one of {there or 'none: there is only lo'}"
    try:
        root = _root(name)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"network.apply interface needs the program tc (package iproute2): {error}; install it, or {REMEDY}"
    if root.get("handle") == HANDLE:
        return f"network.interface {name} is being shaped for another run; wait until that ends, or cancel it"
    if root.get("handle", "0:") != "0:":
        kind = root.get("kind", "another rule")
        return f"network.interface {name} is shaped already, by {kind} of somebody else; remove that, or {REMEDY}"
    if os.geteuid() != 0:
        return f"network.apply interface needs root; start the daemon as root, or {REMEDY}"
    if _needs_netem(network) and not ability().has_netem:
        return (
            "network.apply interface: this kernel has no sch_netem, so an interface has no delay and no loss;"
            f" give bandwidth_gbps alone, use apply emulate, or {REMEDY}"
        )
    return ""


def shape(run_directory: Path, network: NetworkSection) -> None:
    """Shape an interface; raises ValueError saying why that cannot be done."""
    if reason := why_not(network):
        raise ValueError(reason)
    name, rate = str(network.interface), network.bandwidth_gbps
    arguments = netem_arguments(network) if _needs_netem(network) or rate is None else tbf_arguments(rate * 1e9)
    write_atomically(run_directory / RECORD, json.dumps({"interface": name}))
    try:
        _tc("qdisc", "add", "dev", name, "root", "handle", HANDLE, *arguments)
    except subprocess.CalledProcessError as error:
        (run_directory / RECORD).unlink()
        raise ValueError(f"network.interface {name} cannot be shaped: {error.stderr.strip()}; {REMEDY}") from None


def restore(run_directory: Path) -> None:
    """Undo what a run did to an interface, if it did something and nobody has undone it; raises OSError if that fails.

    What others have done to the interface since is left alone.
    """
    record = run_directory / RECORD
    try:
        name = json.loads(record.read_text())["interface"]
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        log.error("%s says nothing; see tc qdisc show for a rule with handle %s", record, HANDLE)
        record.unlink(missing_ok=True)
        return
    if isinstance(name, str) and _NAME.fullmatch(name) and name in _interfaces():
        try:
            if _root(name).get("handle") == HANDLE:
                _tc("qdisc", "del", "dev", name, "root", "handle", HANDLE)
                log.info("interface %s is as it was", name)
        except (ValueError, subprocess.SubprocessError) as error:
            raise OSError(f"interface {name} cannot be restored: {error}; do `tc qdisc del dev {name} root`") from error
    record.unlink(missing_ok=True)


def restored(run_directory: Path) -> str:
    """Undo what a run did to an interface; return what went wrong with that as the end of a sentence, mostly ""."""
    try:
        restore(run_directory)
    except OSError as error:
        log.error("%s", error)
        return f"; {error}"
    return ""


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def _needs_netem(network: NetworkSection) -> bool:
    return bool(network.delay_ms or network.loss_pct or network.jitter_ms)


def _root(interface: str) -> dict[str, Any]:
    """Return the root queueing discipline of an interface as tc tells it."""
    found = json.loads(_tc("-j", "qdisc", "show", "dev", interface, "root") or "[]")
    return dict(found[0]) if found else {}


def _tc(*arguments: str) -> str:
    return subprocess.run(
        ["tc", *arguments], check=True, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
    ).stdout
