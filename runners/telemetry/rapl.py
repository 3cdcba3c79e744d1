"""Power of the processors of this machine from its energy counters (RAPL), where they can be read.

Source: Linux, Documentation/power/powercap/powercap.rst. Each package has a zone `intel-rapl:N`, on AMD too; the
memory of a package is a zone below it, named dram. Most systems let only root read the counters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path("/sys/class/powercap")


class Rapl:
    """Computes the mean power of all packages and their memory since the previous call."""

    def __init__(self, root: Path = ROOT, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        zones = sorted(root.glob("intel-rapl:[0-9]*"))
        # Cores and graphics are parts of their package; memory is not.
        self._zones = [zone for zone in zones if _text(zone / "name").startswith(("package", "dram"))]
        self._read_at, self._energy = self._clock(), self._zone_energies()

    def watts(self) -> float | None:
        """Return the mean power since the last call (W); None without readable counters."""
        now, energy = self._clock(), self._zone_energies()
        seconds, before = now - self._read_at, self._energy
        self._read_at, self._energy = now, energy
        if not energy or seconds <= 0 or energy.keys() != before.keys():
            return None
        microjoules = sum(_grown(zone, before[zone], energy[zone]) for zone in energy)
        return round(microjoules / 1e6 / seconds, 3)

    def _zone_energies(self) -> dict[Path, int]:
        readings = {zone: _text(zone / "energy_uj") for zone in self._zones}
        return {zone: int(text) for zone, text in readings.items() if text.isdecimal()}


def _grown(zone: Path, before: int, now: int) -> int:
    """Return by how much a counter grew; it starts again at 0 after `max_energy_range_uj`."""
    if now >= before:
        return now - before
    most = _text(zone / "max_energy_range_uj")
    return now - before + int(most) if most.isdecimal() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
