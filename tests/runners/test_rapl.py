"""Power from energy counters: packages and memory count, a counter starts again, and none is no number."""

from __future__ import annotations

from pathlib import Path

from runners.telemetry.rapl import Rapl


def zone(root: Path, name: str, title: str, microjoules: int) -> Path:
    path = root / name
    path.mkdir(exist_ok=True)
    (path / "name").write_text(f"{title}\n")
    (path / "energy_uj").write_text(f"{microjoules}\n")
    (path / "max_energy_range_uj").write_text("1000000000\n")
    return path


def test_packages_and_memory_add_up_and_counters_start_again(tmp_path: Path) -> None:
    times = iter([0.0, 2.0, 3.0, 4.0])
    zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 1_000_000)
    zone(tmp_path, "intel-rapl:0:1", "dram", 999_000_000)
    rapl = Rapl(tmp_path, clock=lambda: next(times))
    zone(tmp_path, "intel-rapl:0", "package-0", 105_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 91_000_000)
    zone(tmp_path, "intel-rapl:0:1", "dram", 19_000_000)
    assert rapl.watts() == 60.0  # 100 J and 20 J in 2 s; cores are part of their package
    assert rapl.watts() == 0.0
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert rapl.watts() is None  # counters that vanish are no power of the others


def test_a_machine_without_counters_has_no_power(tmp_path: Path) -> None:
    assert Rapl(tmp_path).watts() is None
