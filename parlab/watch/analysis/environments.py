"""The environment of a result, flattened, and the difference of two; pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_VALUE = 200
OF_EACH_RUN = ("shell", "command", "variables.PARLAB", "variables.MASTER_PORT", "matmul.", "rates.", "links.")
"""Beginnings of names that differ between any two runs, or are measured again, and explain nothing."""


def hardware_of(environment: Mapping[str, Any]) -> str:
    """Return a digest of the processor and the GPUs of an environment; empty if it states neither."""
    gpus = environment.get("gpus")
    names = [f"{gpu.get('name')} {gpu.get('uuid')}" for gpu in gpus or [] if isinstance(gpu, Mapping)]
    stated = [str(environment.get("cpu_model") or ""), *sorted(names)]
    return hashlib.sha256("\n".join(stated).encode()).hexdigest()[:16] if any(stated) else ""


class Difference(NamedTuple):
    """One row of the table of two environments."""

    name: str
    before: str
    after: str


def flattened(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return an environment as name -> text: `packages.torch`, `gpus.0.name`, `driver`."""
    rows: dict[str, str] = {}
    _flatten(environment, "", rows)
    return dict(list(rows.items())[:500])


def _flatten(content: Any, prefix: str, rows: dict[str, str]) -> None:
    if isinstance(content, Mapping):
        for name, value in content.items():
            _flatten(value, f"{prefix}.{name}" if prefix else str(name), rows)
    elif isinstance(content, list | tuple):
        for number, value in enumerate(content[:64]):
            _flatten(value, f"{prefix}.{number}", rows)
    elif content not in (None, ""):
        rows[prefix] = str(content)[:MAX_VALUE]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Return what differs between two environments; a value that one of them lacks is empty there."""
    old, new = flattened(before), flattened(after)
    names = [*old, *(name for name in new if name not in old)]
    rows = [Difference(name, old.get(name, ""), new.get(name, "")) for name in names]
    return [row for row in rows if row.before != row.after and not row.name.startswith(OF_EACH_RUN)]
