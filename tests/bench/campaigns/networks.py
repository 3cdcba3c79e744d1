"""The emulated 3-node case: real ranks in namespaces, real gloo, links of 10 ms and 1 Gbit/s.

Micro-batch times are calibrated so that the simulation reproduces the published time on the default network: GPipe from
its own row, 1F1B and its variants from the row of 1F1B.
"""

import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from parlab.planner.schedule import Plan
from parlab.planner.schedule.calibration import calibrate
from parlab.planner.schedule.choice import Outcome, best_schedule, outcome
from parlab.planner.schedule.pipeline import Link, Pipeline, StageTimes
from runners.links.emulate import forwarding, make_hosts
from runners.links.forwarder import Link as ForwarderLink
from runners.links.measure import throughput
from tests.bench import ROOT
from tests.bench.result import Result, Scale

RANKS, SEQUENCES, HIDDEN, LENGTH = 3, 64, 768, 2048
MESSAGE_BYTES = HIDDEN * LENGTH * 4
DEFAULT, SLOW = Link(0.1e-3, 10e9), Link(10e-3, 1e9)
PUBLISHED_S = {"gpipe": (6.64, 8.38), "1f1b": (6.54, 11.21)}
"""Published times on the default network and at 10 ms and 1 Gbit/s, for micro batch 1."""
BACKWARD_PER_FORWARD = 3.0
MAX_HELD = 9
STEPS, STEPS_BEST = 1, 2
"""Measured steps of a run of a published schedule and of the best one; before them one opens the connections."""
_TIMEOUT_S = 600


class Case(NamedTuple):
    """Iteration times of one schedule on both networks, in seconds."""

    default_s: float
    slow_s: float
    simulated: Outcome
    """Simulation on the slow network."""

    @property
    def slowdown(self) -> float:
        return self.slow_s / self.default_s


def _pipeline(times: StageTimes, link: Link, count: int, element_bytes: int = 4) -> Pipeline:
    size = MESSAGE_BYTES * element_bytes / 4
    return Pipeline((times,) * RANKS, count, (link,) * RANKS, size, size)


def _times(schedule: str) -> StageTimes:
    unknown = _pipeline(StageTimes(0.0, 0.0), DEFAULT, SEQUENCES)
    plan = Plan(schedule)
    return calibrate(PUBLISHED_S[schedule][0], plan, unknown, backward_per_forward=BACKWARD_PER_FORWARD)


@functools.cache
def _case(schedule: str, wire: str, is_best: bool, is_quick: bool) -> Case:
    """Run a schedule on both networks at the same time: the ranks mostly wait, and a busy machine slows down both."""
    count, times = (8, StageTimes(2e-3, 6e-3)) if is_quick else (SEQUENCES, _times(schedule))
    slow = _pipeline(times, SLOW, count, 4 if wire == "same" else 2)
    # The fastest slope by simulation that holds at most MAX_HELD micro batches.
    slopes = best_schedule(slow, max_held=MAX_HELD).compared if is_best else []
    plan = min(slopes, key=lambda slope: slope.simulation.iteration_s).plan if slopes else Plan(schedule)
    iterations = 1 + _steps(is_best, is_quick)
    near, far = (_config(plan, wire, times, link, count, iterations) for link in (DEFAULT, SLOW))
    with emulation(near) as default_steps, emulation(far) as slow_steps:
        return Case(median(default_steps()), median(slow_steps()), outcome(plan, slow))


def _steps(is_best: bool, is_quick: bool) -> int:
    """Return how many steps of a run are measured."""
    if is_quick:
        return 1
    return STEPS_BEST if is_best else STEPS


def _config(plan: Plan, wire: str, times: StageTimes, link: Link, count: int, iterations: int) -> dict[str, Any]:
    return {
        "model": {"num_layers": 12, "hidden_size": HIDDEN, "num_attention_heads": 12, "sequence_length": LENGTH},
        "train": {"global_batch_size": count, "iterations": iterations, "compute": "emulated"},
        "parallel": {
            "pipeline_parallel_size": RANKS,
            "schedule": plan.name,
            "warmup_slope": plan.warmup_slope,
            "wire_precision": wire,
        },
        "emulation": {"forward_ms": 1e3 * times.forward_s, "backward_ms": 1e3 * times.backward_s},
        "network": {"apply": "emulate", "delay_ms": 1e3 * link.delay_s, "bandwidth_gbps": _rate_setting(link)},
    }


@contextmanager
def emulation(config: dict[str, Any]) -> Iterator[Callable[[], list[float]]]:
    """Start a configuration on emulated links; yield a function that waits for the times of all steps but the first."""
    with tempfile.TemporaryDirectory(prefix="parlab-emulation-") as name:
        file, output = Path(name) / "config.json", Path(name) / "output"
        file.write_text(json.dumps(config))
        with output.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "runners.links", "--config", str(file)],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
                start_new_session=True,  # as supervisors: the scheduler divides the processor among sessions
            )

        def steps() -> list[float]:
            if process.wait(_TIMEOUT_S):
                raise RuntimeError(f"the emulated run failed: {output.read_text(errors='replace')[-4000:]}")
            return _after_the_first(output.read_text())

        try:
            yield steps
        finally:
            process.kill()
            process.wait()


def _after_the_first(output: str) -> list[float]:
    """Return the time of each step but the first, of the slowest rank."""
    slowest: dict[int, float] = {}
    for line in output.splitlines():
        event: dict[str, Any] = json.loads(line) if line.startswith('{"parlab":') else {}
        if event.get("event") == "step":
            slowest[event["step"]] = max(event["step_time_s"], slowest.get(event["step"], 0.0))
    return [seconds for step, seconds in slowest.items() if step > 1]


@functools.cache
def _rate_setting(link: Link) -> float | None:
    """Return the rate to set in Gbit/s; None (unlimited) if the machine cannot reach that rate anyway."""
    if link.bits_per_s < 2e9:
        return link.bits_per_s / 1e9
    return link.bits_per_s / 1e9 if _forwarder_rate() > 1.2 * link.bits_per_s else None


def _forwarder_rate() -> float:
    """Return the rate of TCP through the unshaped forwarder between two namespaces, in bits/s."""
    links = [[ForwarderLink()] * 2] * 2
    with ExitStack() as stack:
        hosts = make_hosts(stack, links)
        stack.enter_context(forwarding(hosts, links, lead_s=0.0, seed=1))
        return throughput([host.namespace for host in hosts], (0, 1), 0.0) or 0.0


def _cached_case(schedule: str, wire: str, is_best: bool, scale: Scale) -> Case:
    """Return a case, measured once; in quick mode a single case that covers all code paths replaces all others."""
    return _case("1f1b", "bf16", True, True) if scale.is_quick else _case(schedule, wire, is_best, False)


def _slowdown(schedule: str, wire: str, is_best: bool, scale: Scale) -> Result:
    case = _cached_case(schedule, wire, is_best, scale)
    plan = case.simulated.plan
    against = (
        f"{plan.title}: {case.default_s:.2f} -> {case.slow_s:.2f} s, simulated"
        f" {case.simulated.simulation.iteration_s:.2f} s"
    )
    return Result(case.slowdown, against, _steps(is_best, scale.is_quick))


def slowdown_gpipe(scale: Scale) -> Result:
    """Measure the time of GPipe at 10 ms and 1 Gbit/s, divided by that on the default network."""
    return _slowdown("gpipe", "same", False, scale)


def slowdown_1f1b(scale: Scale) -> Result:
    """Measure the slowdown of 1F1B."""
    return _slowdown("1f1b", "same", False, scale)


def slowdown_best_fp32(scale: Scale) -> Result:
    """Measure the slowdown of 1F1B with the warm-up slope that the simulation chooses."""
    return _slowdown("1f1b", "same", True, scale)


def slowdown_best_fp16(scale: Scale) -> Result:
    """Measure the slowdown of 1F1B with the chosen warm-up slope and 16-bit transfers."""
    return _slowdown("1f1b", "bf16", True, scale)


def gap_to_bound_pct(scale: Scale) -> Result:
    """Measure by how much the best fp32 schedule exceeds the lower bound of every order of its passes."""
    case = _cached_case("1f1b", "same", True, scale)
    bound = case.simulated.bound
    gap = 100 * (case.slow_s / bound.seconds - 1)
    against = f"bound {bound.seconds:.2f} s ({bound.binds}), measured {case.slow_s:.2f} s"
    return Result(gap, against, _steps(True, scale.is_quick))


def micro_batches_held(scale: Scale) -> Result:
    """Count the micro batches whose activations the first rank of the best fp32 schedule holds; GPipe holds all."""
    case = _cached_case("1f1b", "same", True, scale)
    total = 8 if scale.is_quick else SEQUENCES
    return Result(case.simulated.held, f"{total} by GPipe", 1, total / case.simulated.held)


def forwarder_gbit_per_s(scale: Scale) -> Result:
    """Measure the rate of TCP between two namespaces through the forwarder, against TCP over loopback."""
    repeats = scale.repeats(5)
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(_forwarder_rate() / 1e9)
        theirs.append(_loopback() / 1e9)
    value = median(ours)
    return Result(value, f"loopback: {median(theirs):.1f} Gbit/s", repeats, value / median(theirs))


def _loopback() -> float:
    """Return the rate of one TCP connection over loopback, in bits/s."""
    size, data = 0, bytes(1 << 18)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver = server.accept()[0]
        until = time.perf_counter() + 0.3

        def send() -> None:
            while time.perf_counter() < until:
                sender.send(data)
            sender.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=send)
        began = time.perf_counter()
        thread.start()
        with receiver:
            while piece := len(receiver.recv(1 << 18)):
                size += piece
        thread.join()
    return 8 * size / (time.perf_counter() - began)
