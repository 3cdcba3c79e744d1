"""What a processor reaches in matrix products: measured, kept, and told with every heartbeat."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.telemetry import matmul
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


def test_what_was_measured_is_remembered_until_processor_or_torch_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "matmul.json"
    assert matmul.stored(path, MACHINE) is None
    matmul.store(path, MACHINE, MEASURED)
    assert matmul.stored(path, MACHINE) == MEASURED
    assert matmul.stored(path, {"cpu_model": "another"}) is None
    path.write_text("{ cut off")
    assert matmul.stored(path, MACHINE) is None


def test_of_two_measurements_the_higher_figures_are_kept() -> None:
    busy = {"flops": {"fp32": {"1": 2e10, "2": 9e10}, "bf16": {"1": 1e11}}, "torch": "2.13.0"}
    assert matmul.highest(None, MEASURED) == MEASURED
    assert matmul.highest(MEASURED, busy)["flops"] == {"fp32": {"1": 5e10, "2": 9e10}, "bf16": {"1": 1e11}}
    assert matmul.highest(busy, MEASURED)["flops"] == {"fp32": {"1": 5e10, "2": 9e10}, "bf16": {"1": 1e11}}


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
