"""Rates of network interfaces from their counters."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from parlab.client import traffic
from runners.telemetry import nics


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, tuple[int, int]]:
    """The counters of a machine's interfaces, at the edge where psutil reads them; a clock that the test moves."""
    counters: dict[str, tuple[int, int]] = {}

    def read(pernic: bool) -> dict[str, SimpleNamespace]:
        return {name: SimpleNamespace(bytes_recv=rx, bytes_sent=tx) for name, (rx, tx) in counters.items()}

    monkeypatch.setattr(psutil, "net_io_counters", read)
    monkeypatch.setattr(traffic, "RDMA", tmp_path)
    monkeypatch.setattr(traffic, "time", Clock())
    return counters


def later(seconds: float) -> None:
    traffic.time.now += seconds  # type: ignore[attr-defined]


def test_bytes_become_rates_and_the_loopback_is_left_out(machine: dict[str, tuple[int, int]]) -> None:
    machine |= {"lo": (0, 0), "eth0": (1000, 50), "veth12": (0, 0)}
    network = nics.nic_rates()
    machine |= {"lo": (999, 999), "eth0": (5000, 250), "veth12": (9, 9)}
    later(2.0)
    assert network.rates() == {"nic_rx_bytes_per_s/eth0": 2000.0, "nic_tx_bytes_per_s/eth0": 100.0}


def test_an_interface_that_comes_or_starts_again_has_no_rate_yet(machine: dict[str, tuple[int, int]]) -> None:
    machine["eth0"] = (1000, 1000)
    network = nics.nic_rates()
    machine |= {"eth0": (10, 10), "ib0": (7, 7)}
    later(1.0)
    assert network.rates() == {}
    machine |= {"eth0": (30, 20), "ib0": (7, 8)}
    later(1.0)
    assert network.rates()["nic_rx_bytes_per_s/eth0"] == 20.0
    assert network.rates() != {}


def test_ports_of_rdma_count_words_of_four_bytes(machine: dict[str, tuple[int, int]], tmp_path: Path) -> None:
    counters = tmp_path / "mlx5_0" / "ports" / "1" / "counters"
    counters.mkdir(parents=True)
    for name in ("port_rcv_data", "port_xmit_data"):
        (counters / name).write_text("100\n")
    network = nics.nic_rates()
    (counters / "port_xmit_data").write_text("1100\n")
    later(1.0)
    assert network.rates() == {"nic_rx_bytes_per_s/mlx5_0:1": 0.0, "nic_tx_bytes_per_s/mlx5_0:1": 4000.0}


def test_of_many_interfaces_those_with_traffic_are_told(machine: dict[str, tuple[int, int]]) -> None:
    machine |= {f"eth{n}": (n, n) for n in range(40)}
    counts = nics.nic_rates().counts()
    assert len(counts) == traffic.MAX_INTERFACES
    assert "eth39" in counts
    assert "eth0" not in counts


def test_an_odd_name_becomes_one_that_a_series_may_have(machine: dict[str, tuple[int, int]]) -> None:
    machine["br@\u00e9"] = (1, 1)
    assert list(nics.nic_rates().counts()) == ["br__"]
