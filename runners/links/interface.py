"""Traffic shaping on a real network interface: `network.apply: interface`.

Unlike namespaces, a queueing discipline outlives the process that adds it. A record in the run's directory is therefore
written before the interface is shaped; the run's end, the supervisor or the daemon's next start uses it for cleanup.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.links.ability import REMEDY, ability
from runners.node.rundir import write_atomically

if TYPE_CHECKING:
    from runners.config import NetworkSection, RunConfig

RECORD = "interface.json"
"""File in a run's directory with the name of the interface while it is shaped."""
HANDLE = "70a1:"
"""Handle that identifies parlab's queueing discipline."""
_TIMEOUT_S = 10
_MTU_BYTES = 1500
_QUEUE_PACKETS = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,14}")

log = logging.getLogger(__name__)


def netem_arguments(network: NetworkSection) -> list[str]:
    """Return tc's netem arguments for a network; the packet limit covers bandwidth x delay and a queue."""
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
    """Return tc's token bucket arguments for a rate without delay; works on kernels without netem."""
    burst = max(int(bits_per_s / 8 / 250), 2 * 65_536)  # at least the bytes of a kernel tick, and two large packets
    return ["tbf", "rate", f"{round(bits_per_s)}bit", "burst", f"{burst}b", "latency", "100ms"]


def on_node(config: RunConfig, of_run: str) -> RunConfig:
    """Return a configuration whose network names the interface to shape here: that of the run if it names none."""
    if config.network.apply != "interface" or config.network.interface is not None:
        return config
    return config.model_copy(update={"network": config.network.model_copy(update={"interface": of_run})})


def why_not(network: NetworkSection) -> str:
    """Return why this node cannot shape the configured interface, with the remedy; empty if it can."""
    name = network.interface or ""
    if name == "lo":
        return f"network.interface lo carries all local traffic of this node; set cluster.interface, or {REMEDY}"
    if name not in _interfaces() or not _NAME.fullmatch(name):
        choices = ", ".join(other for other in _interfaces() if other != "lo")
        remedy = f"use one of {choices}" if choices else f"it has only lo; {REMEDY}"
        return f"network.interface {name} does not exist on this node; {remedy}"
    try:
        root = _root(name)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"network.apply interface requires tc (package iproute2): {error}; install it, or {REMEDY}"
    if root.get("handle") == HANDLE:
        return f"network.interface {name} is in use by another run; wait until that ends, or cancel it"
    if root.get("handle", "0:") != "0:":
        kind = root.get("kind", "another rule")
        return f"network.interface {name} already has a queueing discipline ({kind}); remove it, or {REMEDY}"
    if os.geteuid() != 0:
        return f"network.apply interface requires root; start the daemon as root, or {REMEDY}"
    if _needs_netem(network) and not ability().has_netem:
        return (
            "network.apply interface: this kernel has no sch_netem, which delay, jitter and loss require;"
            f" set bandwidth_gbps only, use apply emulate, or {REMEDY}"
        )
    return ""


def shape(run_directory: Path, network: NetworkSection) -> None:
    """Shape the interface of a network; raise ValueError with the reason if that is not possible."""
    if reason := why_not(network):
        raise ValueError(reason)
    name, rate = str(network.interface), network.bandwidth_gbps
    arguments = netem_arguments(network) if _needs_netem(network) or rate is None else tbf_arguments(rate * 1e9)
    write_atomically(run_directory / RECORD, json.dumps({"interface": name}))
    try:
        _tc("qdisc", "add", "dev", name, "root", "handle", HANDLE, *arguments)
    except subprocess.CalledProcessError as error:
        (run_directory / RECORD).unlink()
        raise ValueError(f"cannot shape network.interface {name}: {error.stderr.strip()}; {REMEDY}") from None


def restore(run_directory: Path) -> None:
    """Remove a run's queueing discipline from an interface if it is still there; raise OSError if that fails.

    Queueing disciplines of other programs are not changed.
    """
    record = run_directory / RECORD
    try:
        name = json.loads(record.read_text())["interface"]
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        log.error("%s is invalid; check tc qdisc show for a rule with handle %s", record, HANDLE)
        record.unlink(missing_ok=True)
        return
    if isinstance(name, str) and _NAME.fullmatch(name) and name in _interfaces():
        try:
            if _root(name).get("handle") == HANDLE:
                _tc("qdisc", "del", "dev", name, "root", "handle", HANDLE)
                log.info("interface %s restored", name)
        except (ValueError, subprocess.SubprocessError) as error:
            raise OSError(f"cannot restore interface {name}: {error}; run `tc qdisc del dev {name} root`") from error
    record.unlink(missing_ok=True)


def restored(run_directory: Path) -> str:
    """Restore a run's interface; return "" or, if that failed, a clause to append to the run's reason."""
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
    """Return the root queueing discipline of an interface, as tc reports it."""
    disciplines = json.loads(_tc("-j", "qdisc", "show", "dev", interface, "root") or "[]")
    return dict(disciplines[0]) if disciplines else {}


def _tc(*arguments: str) -> str:
    return subprocess.run(
        ["tc", *arguments], check=True, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
    ).stdout
