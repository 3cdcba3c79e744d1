"""The lease of a controller: of two on one state directory, one acts, and the other waits to take over."""

from __future__ import annotations

import contextlib
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runners.node.kubernetes.api import Api

GROUP = "coordination.k8s.io/v1"
DURATION_S = 15


def identity() -> str:
    """Return what tells this controller from one on another machine, and stays when it is started again."""
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}_{boot}"


class Lease:
    def __init__(self, api: Api, name: str, holder: str = "", duration_s: int = DURATION_S) -> None:
        self._api = api
        self._name = name
        self._holder = holder or identity()
        self._duration_s = duration_s
        self._renewed_at = float("-inf")
        # The version that another holder has written last, and when it was seen: clocks of two machines may differ.
        self._other = ("", 0.0)

    @property
    def other(self) -> str:
        """Who holds it instead."""
        return self._other[0].partition("_")[0]

    def holds(self) -> bool:
        """Take or renew the lease; return whether this controller may act. Raises KubernetesAway."""
        now = time.monotonic()
        if now - self._renewed_at < self._duration_s / 4:
            return True
        lease = self._api.get(self._api.path(GROUP, "leases", self._name))
        if lease is None:
            taken = self._api.create(self._api.path(GROUP, "leases"), self._content({}))
        elif self._is_free(lease, now):
            taken = self._api.replace(self._api.path(GROUP, "leases", self._name), self._content(lease))
        else:
            taken = None
        self._renewed_at = now if taken is not None else float("-inf")
        return taken is not None

    def _is_free(self, lease: dict[str, Any], now: float) -> bool:
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._holder):
            return True
        seen = f"{holder} {spec.get('renewTime', '')}"
        if self._other[0] != seen:
            self._other = (seen, now)
        return now - self._other[1] > (spec.get("leaseDurationSeconds") or self._duration_s)

    def _content(self, lease: dict[str, Any]) -> dict[str, Any]:
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self._holder, "leaseDurationSeconds": self._duration_s, "renewTime": at}
        version = lease.get("metadata", {}).get("resourceVersion")
        metadata = {"name": self._name, **({"resourceVersion": version} if version else {})}
        return {"apiVersion": GROUP, "kind": "Lease", "metadata": metadata, "spec": spec}
