"""What a processor reaches in matrix products: measured, kept, and told with every heartbeat."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.telemetry import matmul
from runners.telemetry.measured import MATMUL, RATES, best, measure, store, stored
from tests.patience import wait_for
from tests.runners.conftest import NodeMachine, Server

MACHINE = {"cpu_model": "AMD EPYC"}
MEASURED = {"flops": {"fp32": {"1": 5e10}}, "torch": "2.13.0"}


def test_threads_double_up_to_the_cores() -> None:
    assert matmul.thread_counts(1) == [1]
    assert matmul.thread_counts(6) == [1, 2, 4, 6]
    assert matmul.thread_counts(8) == [1, 2, 4, 8]


class Machine:
    """A machine that does 1 GFLOP/s after 10 ms for each call, with a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sizes: list[int] = []

    def product(self, size: int) -> Callable[[], object]:
        def multiply() -> None:
            self.sizes.append(size)
            self.now += 0.01 + 2 * size**3 / 1e9

        return multiply


def test_products_grow_until_their_call_costs_nothing() -> None:
    machine = Machine()
    flops = matmul.best_flops(machine.product, lambda: machine.now)
    assert machine.sizes[0] == 256
    # 256 took 44 ms: large enough, and repeated for a while.
    assert len(machine.sizes) > 5
    assert flops == pytest.approx(2 * 256**3 / (0.01 + 2 * 256**3 / 1e9))


def test_what_was_measured_is_remembered_until_processor_gpus_or_torch_change(tmp_path: Path) -> None:
    assert stored(tmp_path, MATMUL, MACHINE) is None
    store(tmp_path, MATMUL, MACHINE, MEASURED)
    assert stored(tmp_path, MATMUL, MACHINE) == MEASURED
    assert stored(tmp_path, RATES, MACHINE) is None
    assert stored(tmp_path, MATMUL, {"cpu_model": "another"}) is None
    assert stored(tmp_path, MATMUL, MACHINE | {"gpus": [{"name": "NVIDIA H200"}]}) is None
    (tmp_path / "matmul.json").write_text("{ cut off")
    assert stored(tmp_path, MATMUL, MACHINE) is None


def test_of_two_measurements_the_better_figures_are_kept() -> None:
    busy = {"flops": {"fp32": {"1": 2e10, "2": 9e10}, "bf16": {"1": 1e11}}, "torch": "2.13.0"}
    assert best(MATMUL, None, MEASURED) == MEASURED
    assert best(MATMUL, MEASURED, busy)["flops"] == {"fp32": {"1": 5e10, "2": 9e10}, "bf16": {"1": 1e11}}
    assert best(MATMUL, busy, MEASURED)["flops"] == {"fp32": {"1": 5e10, "2": 9e10}, "bf16": {"1": 1e11}}
    quick = {"device": "CPU process", "memory": 9e9, "all_reduce": {"2": [[65536, 1e-4], [1048576, 2e-3]]}}
    slow = {"device": "CPU process", "memory": 7e9, "all_reduce": {"2": [[65536, 2e-4], [1048576, 1e-3]]}}
    expected = {"device": "CPU process", "memory": 9e9, "all_reduce": {"2": [[65536, 1e-4], [1048576, 1e-3]]}}
    assert best(RATES, quick, slow) == best(RATES, slow, quick) == expected


@pytest.mark.slow
def test_two_processes_measure_their_memory_and_the_links_between_them() -> None:
    rates = measure(RATES, lambda: True)
    assert rates is not None
    assert rates["device"] == "CPU process"
    for name in ("all_reduce", "all_to_all"):
        for points in rates[name].values():
            assert len(points) == 4
            assert all(seconds > 0 for _, seconds in points)
    assert rates["memory"] > 1e6


@pytest.mark.slow
def test_a_node_measures_while_it_is_idle_and_tells_it_with_its_heartbeats_and_runs(
    machine: NodeMachine, server: Server
) -> None:
    machine.start_daemon(TEST_MATMUL=json.dumps(MEASURED))
    server.until(lambda: server.heartbeats and server.heartbeats[-1].hardware.get("matmul") == MEASURED, "it is told")
    machine.script(1, "print('hello')")
    server.start(1)
    assert server.end_of(1).state == "finished"
    assert server.reports[1, 1][0].environment["matmul"] == MEASURED
    assert json.loads((machine.state_dir / "matmul.json").read_text())["measured"] == MEASURED


@pytest.mark.slow
def test_while_something_trains_nothing_is_measured(machine: NodeMachine, server: Server) -> None:
    machine.start_daemon()
    machine.script(1, "import time; print('trains', flush=True); time.sleep(600)")
    server.start(1)
    server.until(lambda: b"trains" in server.output[1, 1], "it trains")
    machine.daemons[-1].terminate()
    machine.daemons[-1].wait()
    machine.start_daemon(TEST_MATMUL=json.dumps(MEASURED))
    seen = len(server.heartbeats)
    server.until(lambda: len(server.heartbeats) >= seen + 2, "two heartbeats")
    assert "matmul" not in server.heartbeats[-1].hardware
    server.cancel(1)
    server.end_of(1)
    wait_for((machine.state_dir / "matmul.json").exists, "it is measured once the run has ended")
