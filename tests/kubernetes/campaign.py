"""Faults at random on a real control plane: what each strikes, and what it has left."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from runners.supervisor.processes import marked
from tests.kubernetes.controllers import Controller, Pods
from tests.kubernetes.plane.cluster import NODES, Plane
from tests.patience import wait_for
from tests.runners.conftest import Server
from tests.slurm.conftest import AttentiveServer, start_own_redis

PARTS = ("apiserver", "etcd", "controllers", "scheduler")
OUTPUT = Path(__file__).resolve().parents[2] / "build" / "faults-kubernetes.json"
RUNS = 4
RECOVERY_S = 150.0
GO_AGAIN_S = 10.0
SHORT_S = (0.5, 8.0)
"""How long a part of the cluster is away."""
TICKS = """
import os, time
print("started in", os.environ["POD_NAME"], flush=True)
number = 0
while True:
    number += 1
    print("tick", number, flush=True)
    time.sleep(0.1)
"""
_TICK = re.compile(rb"^tick (\d+)$", re.MULTILINE)


class Wrong(Exception):
    """Something was lost, doubled, left, or has not recovered."""


@dataclass
class Fault:
    """One fault that has happened."""

    victim: str
    repair: Callable[[], None] | None = None
    ends: dict[int, str] = field(default_factory=dict)
    """Runs that must end, and how."""


@dataclass
class Row:
    """What is printed of a fault."""

    number: int
    kind: str
    victim: str
    recovered_s: float
    wrong: list[str]


class Campaign:
    """Runs, faults and their checks."""

    def __init__(self, plane: Plane, controller: Controller, server: Server, chance: random.Random) -> None:
        self.plane, self.controller, self.server, self.chance = plane, controller, server, chance
        self.pods = Pods(controller, server)
        self.runs: list[int] = []
        self.rows: list[Row] = []
        self.ended: Counter[str] = Counter()

    def run(self, faults: int, kinds: list[str]) -> None:
        """Inject faults."""
        self._fill()
        for number in range(1, faults + 1):
            time.sleep(self.chance.uniform(0, 1))
            self.plane.mend()
            kind = self.chance.choice(kinds)
            least = {run: self._spooled(run) for run in self.runs}
            began = time.monotonic()
            fault = KINDS[kind](self)
            row = Row(number, kind, fault.victim, 0.0, [])
            try:
                time.sleep(self.chance.uniform(*SHORT_S) if fault.repair else 0)
                if fault.repair:
                    fault.repair()
                self._settle(fault, least)
            except (Wrong, AssertionError) as error:
                row.wrong.append(str(error))
            row.recovered_s = time.monotonic() - began
            self.rows.append(row)
            if not row.wrong:
                try:
                    self._fill()
                except (Wrong, AssertionError) as error:
                    row.wrong.append(f"the next run: {error}")
            print(
                f"{number:4} {kind:12} {fault.victim:28} {row.recovered_s:6.1f} s  {'; '.join(row.wrong)}", flush=True
            )
            if row.wrong:
                return
        self._finish()

    def _fill(self) -> None:
        """Start runs in place of those that have ended."""
        new = [self.pods.begin(TICKS) for _ in range(RUNS - len(self.runs))]
        self.runs += new
        for run in new:
            self._until_ticking(run)

    def _until_ticking(self, run: int) -> None:
        """Wait for the first tick; Go is repeated, as by the server: a daemon that was killed may have taken it."""
        deadline = time.monotonic() + RECOVERY_S
        while not self._last(run):
            with contextlib.suppress(AssertionError):
                self.server.until(lambda: self._last(run), f"run {run} ticks", GO_AGAIN_S)
            if time.monotonic() > deadline:
                raise Wrong(f"run {run} does not tick: {self.pods.waiting(run)!r}, pod {self.controller.pod(run)}")
            self.server.go(run)

    def _settle(self, fault: Fault, least: dict[int, int]) -> None:
        """Wait until what must end has ended and all others have gone on; check both."""
        for run, state in fault.ends.items():
            end = self.server.end_of(run, within_s=RECOVERY_S)
            if end.state != state:
                raise Wrong(f"run {run} has ended as {end.state} instead of {state}: {end.reason}")
            self.ended[state] += 1
            self.runs.remove(run)
            self.pods.until_gone(run)
            self._check(run, least[run])
        # Those that go on ship what was in the spool, and more.
        wanted = {run: max(self._last(run) + 5, least[run]) for run in self.runs}
        for run, number in wanted.items():
            self.server.until(lambda: self._last(run) > number, f"run {run} goes on", RECOVERY_S)  # noqa: B023
        for run in self.runs:
            self._check(run, least[run])
        self._check_pods()

    def _check(self, run: int, least: int) -> None:
        """Raise Wrong if a line is lost or doubled, or a run has begun or ended twice."""
        lines = self.server.lines(run)
        ticks = [int(number) for number in _TICK.findall(self.server.output[run, 1])]
        if ticks != list(range(1, len(ticks) + 1)):
            raise Wrong(f"run {run}: the ticks are not each number once")
        if len(ticks) < least:
            raise Wrong(f"run {run}: {least} ticks were in the spool, {len(ticks)} are stored")
        if starts := sum(line.startswith(b"started in") for line in lines) - 1:
            raise Wrong(f"run {run} has begun {starts + 1} times")
        ends = sum(report.is_final for report in self.server.reports[run, 1])
        if ends != (run not in self.runs):
            raise Wrong(f"run {run} has {ends} final reports")

    def _check_pods(self) -> None:
        """Raise Wrong if a pod or a process belongs to no run."""
        names = {self.controller.pod_name(run) for run in self.runs}

        def strangers() -> set[str]:
            living = [pod for pod in self.controller.pods() if pod["status"]["phase"] in ("Pending", "Running")]
            return {pod["metadata"]["name"] for pod in living} - names

        wait_for(lambda: not strangers(), f"only pods of {sorted(names)} live")
        prefix = f"{self.controller.state.id}:"
        held = {marker.removeprefix(prefix).split("/")[0] for marker in marked().values() if marker.startswith(prefix)}
        if left := held - {str(run) for run in self.runs}:
            raise Wrong(f"processes of runs {left} are left")

    def _finish(self) -> None:
        """Cancel all runs; nothing may be left."""
        for run in list(self.runs):
            self.server.cancel(run)
            self._settle(Fault("end", ends={run: "cancelled"}), dict.fromkeys(self.runs, 0))

    def _last(self, run: int) -> int:
        numbers = _TICK.findall(self.server.output[run, 1][-400:])
        return int(numbers[-1]) if numbers else 0

    def _spooled(self, run: int) -> int:
        """Return the last tick in the spool on the volume, or stored already."""
        text = b"".join(path.read_bytes() for path in sorted(self.controller.run_dir(run).spool.glob("*.spool")))
        numbers = re.findall(rb"tick (\d+)\b", text)
        return max([int(numbers[-1])] if numbers else [0], [self._last(run)])[0]

    def any_run(self) -> int:
        return self.chance.choice(self.runs)

    def place(self, run: int) -> str:
        """Return the node of a run."""
        pod = self.controller.pod(run)
        return str(pod["spec"]["nodeName"]) if pod else ""


def of_plane(name: str) -> Callable[[Campaign], Fault]:
    """Return a fault that kills a part of the control plane."""

    def strike(campaign: Campaign) -> Fault:
        campaign.plane.kill(name)

        def repair() -> None:
            campaign.plane.start_service(name)
            campaign.plane.wait_until_served()

        return Fault(name, repair)

    return strike


def controller(campaign: Campaign) -> Fault:
    campaign.controller.kill_daemon()
    return Fault("controller", lambda: _start(campaign))


def _start(campaign: Campaign) -> None:
    campaign.controller.start_daemon()


def kubelet(campaign: Campaign) -> Fault:
    node = campaign.chance.choice(NODES)
    campaign.plane.kill(node)
    return Fault(f"kubelet of {node}", lambda: campaign.plane.start_node(node))


def node(campaign: Campaign) -> Fault:
    """Lose a node for so long that its runs are lost; it comes back when they have ended."""
    name = campaign.place(campaign.any_run())
    ends = {run: "lost" for run in campaign.runs if campaign.place(run) == name}
    campaign.plane.kill_node(name)

    def repair() -> None:
        for run in ends:
            campaign.server.end_of(run, within_s=RECOVERY_S)
        campaign.plane.start_node(name)
        campaign.plane.wait_for_node(name, is_ready=True)

    return Fault(f"node {name}", repair, ends)


def evicted(campaign: Campaign) -> Fault:
    run = campaign.any_run()
    campaign.plane.end_pod(campaign.controller.namespace, campaign.controller.pod_name(run), "Evicted")
    return Fault(f"pod of run {run}", ends={run: "preempted"})


def memory(campaign: Campaign) -> Fault:
    run = campaign.any_run()
    campaign.plane.end_pod(campaign.controller.namespace, campaign.controller.pod_name(run), "OOMKilled")
    return Fault(f"pod of run {run}", ends={run: "oom"})


def deleted(campaign: Campaign) -> Fault:
    run = campaign.any_run()
    campaign.controller.delete(run)
    return Fault(f"pod of run {run}", ends={run: "cancelled"})


def cancelled(campaign: Campaign) -> Fault:
    run = campaign.any_run()
    campaign.server.cancel(run)
    return Fault(f"run {run}", ends={run: "cancelled"})


def supervisor(campaign: Campaign) -> Fault:
    run = campaign.any_run()
    campaign.controller.supervisor(run).send_signal(signal.SIGKILL)
    return Fault(f"supervisor of run {run}", ends={run: "lost"})


def rank(campaign: Campaign) -> Fault:
    run = campaign.any_run()
    script = str(campaign.controller.scripts / f"{run}.py")
    [victim] = [each for each in psutil.process_iter(["cmdline"]) if script in (each.info["cmdline"] or [])]
    victim.send_signal(signal.SIGKILL)
    return Fault(f"rank of run {run}", ends={run: "failed"})


KINDS: dict[str, Callable[[Campaign], Fault]] = {
    **{name: of_plane(name) for name in PARTS},
    "controller": controller,
    "kubelet": kubelet,
    "node": node,
    "evicted": evicted,
    "memory": memory,
    "deleted": deleted,
    "cancelled": cancelled,
    "supervisor": supervisor,
    "rank": rank,
}


def run_campaign(plane: Plane, directory: Path, arguments: argparse.Namespace) -> int:
    """Run a campaign; return 1 if anything was lost, doubled or left."""
    redis, url = start_own_redis(directory)
    server = AttentiveServer(url)
    machine = Controller(directory, url, plane, plane.namespace("faults"))
    machine.start_daemon()
    campaign = Campaign(plane, machine, server, random.Random(arguments.seed))
    try:
        kinds = [kind for kind in arguments.kinds.split(",") if kind]
        campaign.run(arguments.faults, kinds or list(KINDS))
    finally:
        server.close()
        wrong = [row for row in campaign.rows if row.wrong]
        if wrong or not campaign.rows:
            print(machine.log.read_text()[-20000:], plane.log())
        plane.wait_until_served()
        plane.clear("faults")
        left = machine.close()
        redis.kill()
        redis.wait()
    summary = {"seed": arguments.seed, "faults": len(campaign.rows), "wrong": len(wrong), "left": left}
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps({**summary, "rows": [asdict(row) for row in campaign.rows]}, indent=1) + "\n")
    print(f"\n{summary}; ends: {dict(campaign.ended)}")
    return 1 if wrong or left else 0
