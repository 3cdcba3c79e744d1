"""What a node measures of itself while no run is active: kept on its disk, told with every heartbeat."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

WITHIN_S = 300
_LOOK_S = 0.2
"""How often a measurement looks whether the node is still free."""

log = logging.getLogger(__name__)

Machine = dict[str, Any]


class Kind(NamedTuple):
    """One measurement, made by a module of its own, which prints JSON."""

    name: str
    """Its field in the description of the node, and the name of its file."""
    module: str
    lost: str
    """What is not available without it."""
    rates: tuple[str, ...]
    """Its fields of which the higher value is the better one; of all other numbers it is the lower one."""


MATMUL = Kind("matmul", "runners.telemetry.matmul", "MFU on its processor", ("flops",))
RATES = Kind(
    "rates",
    "runners.engines.node_rates",
    "plans use the usual rates of such devices and links",
    ("matrix", "attention", "memory", "host"),
)
KINDS = (MATMUL, RATES)


def stored(directory: Path, kind: Kind, machine: Machine) -> dict[str, Any] | None:
    """Return the stored measurement; None if the processor, the GPUs or torch have changed since."""
    try:
        content = json.loads(_path(directory, kind).read_text())
        measured = content["measured"] if content["of"] == _key(machine) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return measured if isinstance(measured, dict) else None


def store(directory: Path, kind: Kind, machine: Machine, measured: dict[str, Any]) -> None:
    """Store a measurement for later daemons."""
    path = _path(directory, kind)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"of": _key(machine), "measured": measured}, indent=1))
    draft.rename(path)


def best(kind: Kind, stored: dict[str, Any] | None, measured: dict[str, Any]) -> dict[str, Any]:
    """Return the better value of each two: other load on the machine can only have worsened a measurement."""
    if stored is None:
        return measured
    return {
        name: _best(value, stored.get(name), max if name in kind.rates else min) for name, value in measured.items()
    }


def _best(new: Any, old: Any, choose: Callable[[float, float], float]) -> Any:
    if isinstance(new, dict) and isinstance(old, dict):
        return {**old, **{name: _best(value, old.get(name), choose) for name, value in new.items()}}
    if isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        return [_best(*pair, choose) for pair in zip(new, old, strict=True)]
    is_number = isinstance(new, int | float) and isinstance(old, int | float)
    return choose(new, old) if is_number else new


class Interrupted(Exception):
    """The measurement was ended before it was complete: what it measures is needed for something else."""


def measure(kind: Kind, is_free: Callable[[], bool]) -> dict[str, Any] | None:
    """Measure in a separate process; None if that fails, for instance without torch.

    Raises Interrupted as soon as the node is not free any more: training and measurement would slow each other down.
    """
    command = [sys.executable, "-m", kind.module, str(os.getpid())]
    try:
        output = _output(command, is_free)
        measured: dict[str, Any] = json.loads(output)
    except (OSError, ValueError) as error:
        log.warning("%s cannot be measured on this node, so %s: %s", kind.name, kind.lost, error)
        return None
    return measured


def _output(command: Sequence[str], is_free: Callable[[], bool]) -> str:
    """Return what a command prints; ValueError with its last words if it fails or takes too long."""
    ends_at = time.monotonic() + WITHIN_S
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        while True:
            try:
                output, errors = process.communicate(timeout=_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                is_late = time.monotonic() > ends_at
                if is_late or not is_free():
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate()
                    if not is_late:
                        raise Interrupted from None
                    raise ValueError(f"it took more than {WITHIN_S} s") from None
    if process.returncode:
        raise ValueError(" ".join(errors.split()[-60:]) or f"exit code {process.returncode}")
    return output


def _path(directory: Path, kind: Kind) -> Path:
    return directory / f"{kind.name}.json"


def _key(machine: Machine) -> list[Any]:
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    gpus = [gpu.get("name") for gpu in machine.get("gpus") or []]
    return [machine.get("cpu_model"), len(os.sched_getaffinity(0)), torch, gpus, machine.get("driver")]
