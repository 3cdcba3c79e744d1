"""A chain over time limits and preemptions in a real Slurm of three nodes: which share of its steps was made once.

The time limit of its jobs is two minutes. PARLAB_BENCH_LIMITS and PARLAB_BENCH_PREEMPTIONS change the numbers. All
attempts are written to build/chain.json.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User

from parlab.fleet import services
from parlab.lab.models import Attempt, Node, Run
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.publishing.figures.chains import Chain, Joined
from runners.wire.protocol import RunState
from tests.bench import ROOT
from tests.bench.nodes import broker
from tests.bench.result import Result, Scale, Unavailable
from tests.chains.slurm_world import SlurmWorld, login_node, preempt
from tests.chains.world import World, chain_data, kill_all_of, machine_of, two_nodes
from tests.fleet.workers import Workers
from tests.slurm.cluster import Cluster
from tests.slurm.install import why_not

LIMITS, PREEMPTIONS, FAULTS = 10, 5, 20
FAULT_STEPS = 1_000
"""Steps between two faults."""
WITHIN_S = 400.0
_LIMITED = (RunState.CHECKPOINTED, RunState.TIME_LIMIT)


def chain_steps_once_pct(scale: Scale) -> Result:
    """Measure which share of the steps of a chain was computed once; raises RuntimeError if a promise is broken."""
    if reason := why_not():
        raise Unavailable(reason)
    limits = 1 if scale.is_quick else int(os.environ.get("PARLAB_BENCH_LIMITS", LIMITS))
    preemptions = 1 if scale.is_quick else int(os.environ.get("PARLAB_BENCH_PREEMPTIONS", PREEMPTIONS))
    settings.SHARED_NODE_KEY = True
    cluster = Cluster()
    with tempfile.TemporaryDirectory(prefix="parlab-chain-") as name, broker(Path(name)) as (url, _):
        try:
            cluster.start()
            login = login_node(cluster.home / "login", url, cluster)
            login.start_daemon()
            try:
                world = SlurmWorld(Workers(url), login)
                run, chain = _chain(world, limits, preemptions, is_quick=scale.is_quick)
                _check(world, run, chain, limits, preemptions)
            finally:
                left = _close(login)
        finally:
            cluster.close()
    if left:
        raise RuntimeError(f"processes are left: {left}")
    against = (
        f"{len(chain.attempts)} attempts: {limits} limits, {preemptions} preemptions; {chain.repeated} of"
        f" {chain.steps + chain.repeated:,} steps made again, longest gap {chain.longest_gap_s:.1f} s"
    )
    return Result(float(chain.once_pct or 0.0), against, 1)


def chain_faults_once_pct(scale: Scale) -> Result:
    """Measure the same over two daemons, one of which is killed with all its processes, again and again."""
    settings.SHARED_NODE_KEY = True
    faults = 1 if scale.is_quick else FAULTS
    with tempfile.TemporaryDirectory(prefix="parlab-chain-") as name, broker(Path(name)) as (url, _):
        machines = two_nodes(Path(name), url)
        try:
            world = World(Workers(url), machines)
            online = Node.objects.online().filter(name__in=[machine.name for machine in machines])
            world.until(lambda: online.count() == len(machines), "both nodes are online")
            run = _launched(chain_data(1_000_000, 0.01, 10, launcher={"timeout_s": 3600}, directory=world.checkpoints))
            for number in range(1, faults + 1):
                before = world.until_attempt(run, number).last_step or 0
                world.until(lambda: world.steps(run) > before + FAULT_STEPS, "many steps", WITHIN_S)  # noqa: B023
                machine = machine_of(run, machines)
                kill_all_of(machine)
                machine.start_daemon()
            world.until_attempt(run, faults + 1)
            services.end_chain(run=run)
            services.cancel(run=run)
            chain = world.until_ended(run)
            _check_curve(run, world)
        finally:
            left = [name for machine in machines for name in machine.close()]
    states = [attempt.state for attempt in chain.attempts]
    if left or states != [RunState.LOST] * faults + [RunState.CANCELLED]:
        raise RuntimeError(f"processes are left: {left}; ends: {states}")
    against = (
        f"{faults} faults; {chain.repeated} of {chain.steps + chain.repeated:,} steps made again, longest gap"
        f" {chain.longest_gap_s:.1f} s"
    )
    return Result(float(chain.once_pct or 0.0), against, 1)


def _close(login: Any) -> list[str]:
    login.clear()
    left: list[str] = login.close()
    return left


def _chain(world: SlurmWorld, limits: int, preemptions: int, *, is_quick: bool) -> tuple[Run, Chain]:
    """Run a chain until it has met so many limits and preemptions, then end it as a person does."""
    launcher = {"timeout_s": 12, "warn_before_s": 4} if is_quick else {"timeout_s": 3600, "warn_before_s": 30}
    data = chain_data(
        1_000_000, 0.05, 20, launcher=launcher, cluster={"pool": "hpc"}, slurm={"time_limit_s": 120},
    )  # fmt: skip
    run = _launched(data)
    number = 1
    while (counts := _counts(run))["limits"] < limits or counts["preemptions"] < preemptions:
        world.until_attempt(run, number, WITHIN_S)
        # Preemptions lie between limits, as long as both are missing.
        is_preemption = counts["preemptions"] * limits < (counts["limits"] + 1) * preemptions
        is_preemption = counts["preemptions"] < preemptions and (is_preemption or counts["limits"] >= limits)
        other = preempt(world, run) if is_preemption else None
        world.until(lambda: run.attempts.get(number=number).ended_at, f"attempt {number} ends", WITHIN_S)  # noqa: B023
        if other is not None:
            world.login.cluster.clear(other)
        sys.stderr.write(f"attempt {number}: {run.attempts.get(number=number).reason}\n")
        number += 1
    world.until_attempt(run, number, WITHIN_S)
    services.end_chain(run=run)
    return run, world.until_ended(run, WITHIN_S)


def _launched(data: dict[str, Any]) -> Run:
    user, _ = User.objects.get_or_create(username="bench", defaults={"is_superuser": True})
    experiment = experiment_create(name=f"Chain {Run.objects.count()}", owner=user)
    config = config_save(experiment=experiment, data=data, sweep={}, user=user)
    (run,) = services.launch(config=config, user=user).created
    return run


def _counts(run: Run) -> dict[str, int]:
    ended = run.attempts.exclude(ended_at=None)
    return {
        "limits": ended.filter(state__in=_LIMITED).count(),
        "preemptions": ended.filter(state=RunState.PREEMPTED).count(),
    }


def _check(world: SlurmWorld, run: Run, chain: Chain, limits: int, preemptions: int) -> None:
    """Check what has to hold: each step once in one curve, the next job queued before each end, one attempt at once."""
    rows = [attempt._asdict() for attempt in chain.attempts]
    path = ROOT / "build" / "chain.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(rows, indent=1, default=str) + "\n")
    _check_curve(run, world)
    wrong = {
        "a next job was not queued before an end": not world.ahead >= set(range(2, run.attempt_number + 1)),
        "other ends": len(rows) != limits + preemptions + 1 or run.state != RunState.CHECKPOINTED,
        "jobs are left": bool(world.until(lambda: not world.login.jobs(), "no job is left", 60.0) is None),
    }
    if broken := [name for name, is_wrong in wrong.items() if is_wrong]:
        raise RuntimeError(f"{'; '.join(broken)}: {[(row['number'], row['state']) for row in rows]}")


def _check_curve(run: Run, world: World) -> None:
    attempt = Attempt.objects.select_related("run").get(run=run, number=run.attempt_number)
    steps = Joined(attempt).read_ranks("loss")[0].steps.tolist()
    if steps != list(range(1, len(steps) + 1)) or world.at_once > 1:
        raise RuntimeError(f"{len(steps)} points, the last of step {steps[-1]}; {world.at_once} attempts alive at once")
