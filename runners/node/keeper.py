"""The runs of a node: start, cancel, watch, clean up. Independent of the broker."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from parlab.client.stopping import CHECKPOINT_DIRECTORY
from runners.config import ConfigError, RunConfig, check
from runners.links import interface
from runners.links.refusal import no_links, refusal
from runners.node.abilities import Allowed
from runners.node.addresses import Place, choose
from runners.node.launch import containers, launch
from runners.node.launch.share import HOSTFILE, LOOPBACK, Share
from runners.node.run_as import Account, without_secrets
from runners.node.rundir import RunDir, StateDir, lock, write_atomically
from runners.supervisor import processes, spool
from runners.telemetry import gpus
from runners.wire.protocol import LEASE_S, PREPARE_S, Cancel, Go, HeldRun, NodeKind, Report, RunSpec

KILL_WITHIN_S = 5.0

Command = Callable[[RunConfig, Path, Share], list[str]]
"""Turns a configuration, the path of its file and the share of this node into an argv."""
GO_WITHIN_S = 2 * PREPARE_S
"""A prepared run that is not told to start within this time, or the lease if that is longer, is lost."""

log = logging.getLogger(__name__)


class Limits(NamedTuple):
    """Limits of a run on this node."""

    spool_limit_mib: int = 4096
    """Unacknowledged output per run."""
    disk_grace_s: float = 60.0
    """Time that a run waits for space on a full disk."""


class Node(NamedTuple):
    """What a keeper must know about its node."""

    address: str = LOOPBACK
    """Address at which other nodes reach this one, unless a run chooses another interface."""
    lease_s: float | None = None
    """Lease that the node asks for."""
    allowed: Allowed = Allowed()
    run_as: Account | None = None
    """Account of the ranks; None: that of the daemon."""


class Keeper:
    """The runs of one state directory."""

    kind: NodeKind = "daemon"
    foreign_sections: tuple[str, ...] = ("kubernetes",)
    """Sections of a configuration that mean nothing here, and that runs do not see."""
    go_within_s = float(GO_WITHIN_S)
    """Time that a prepared run waits for the other nodes."""

    def __init__(
        self, state: StateDir, *, hardware: dict[str, Any], limits: Limits, command: Command, node: Node | None = None
    ) -> None:
        self._state = state
        self._node = node or Node()
        self._hardware = hardware
        self._limits = limits
        self._command = command
        # Supervisors started by this process, which must collect their exit status.
        self._children: list[subprocess.Popen[bytes]] = []
        self._settled: set[str] = set()

    def start(self, spec: RunSpec) -> None:
        """Prepare an attempt unless this node has or had it; raises OSError if the disk has no space for it."""
        run = self._state.find(spec.run, spec.attempt, spec.node_rank)
        if self._state.is_known(spec.run, spec.attempt, spec.node_rank):
            log.info("%s: already on this node, not started again", run)
            return
        draft = self._state.prepare(spec.run, spec.attempt, spec.node_rank)
        try:
            write_atomically(draft.spec, spec.model_dump_json(indent=1))
            own = {name: fields for name, fields in spec.config.items() if name not in self.foreign_sections}
            write_atomically(draft.config, json.dumps(own, indent=1))
            try:
                content = self._launch_content(spec)
            except ValueError as error:
                self._end_unstarted(draft, "failed", f"this node cannot start it: {error}")
                return
            draft.write_launch(content)
            # Reserve space for the final report before the run starts.
            with spool.SpoolWriter(draft.spool) as writer:
                writer.reserve()
            self._spawn(draft, content["environment"])
        except OSError:
            self._state.discard(draft)
            raise

    def go(self, go: Go) -> None:
        """Start the ranks of a prepared attempt; raises OSError if the disk is full.

        The server repeats the order until it knows that the run has started: only the first one counts.
        """
        run = self._state.find(go.run, go.attempt, go.node_rank)
        if not run.exists or run.has_go:
            return
        try:
            content = self._go_content(run, go)
        except ValueError as error:
            content = {"error": f"this node cannot start it: {error}"}
        run.write_go(content)
        log.info("%s: go", run)

    def cancel(self, cancel: Cancel) -> None:
        """End an attempt; record the cancellation of one that has not arrived, so that it does not start later."""
        run = self._state.find(cancel.run, cancel.attempt, cancel.node_rank)
        if run.exists:
            log.info("%s: cancel: %s", run, cancel.reason)
            run.cancel(cancel.reason, is_consequence=cancel.is_consequence)
        elif not self._state.is_known(cancel.run, cancel.attempt, cancel.node_rank):
            log.info("%s: cancelled before it arrived", run)
            draft = self._state.prepare(cancel.run, cancel.attempt, cancel.node_rank)
            self._end_unstarted(draft, "cancelled", cancel.reason)

    def preempt(self, notice: str) -> None:
        """End all runs because this node is taken away; their ranks may write a checkpoint within their grace."""
        for run in self._state.runs():
            if run.is_alive and run.preemption() is None:
                log.warning("%s: the node is taken away: %s", run, notice)
                run.preempt(notice)

    def held(self) -> list[HeldRun]:
        """List the attempts that this node holds."""
        return [
            HeldRun(run=run.run, attempt=run.attempt, alive=run.is_alive, node_rank=run.node_rank)
            for run in self._state.runs()
        ]

    def waits(self) -> Sequence[tuple[tuple[int, int], str]]:
        """Return why attempts (run and number) have not started, where something else decides."""
        return ()

    def watch(self) -> None:
        """Check once for supervisors that died without a final report, and clean up after them."""
        for child in list(self._children):
            if child.poll() is not None:
                self._children.remove(child)
        runs = self._state.runs()
        self._settled &= {run.path.name for run in runs}
        for run in runs:
            if run.path.name in self._settled or run.is_alive:
                continue
            try:
                self._settle(run)
            except OSError:
                if run.exists:
                    log.exception("%s: its final report cannot be written; retrying", run)

    def end_strays(self) -> None:
        """Kill marked processes whose run has no supervisor."""
        killed = processes.kill_all(self._strays, within_s=KILL_WITHIN_S)
        if killed:
            log.error("processes %s cannot be killed", ", ".join(str(process.pid) for process in killed))

    # --- starting ----------------------------------------------------------------------------------------------------

    def _launch_content(self, spec: RunSpec) -> dict[str, Any]:
        """Return the launch file of the supervisor; raises ValueError if the run cannot start here."""
        config, problems = check(spec.config)
        if config is None:
            raise ConfigError(problems)
        launch.check_span(config, spec.nodes, is_slurm=self.kind == "slurm")
        place = choose(config.cluster.interface, self._node.address) if spec.nodes > 1 else Place(LOOPBACK, "")
        here = interface.on_node(config, place.interface)
        if why_not := self._refusal(here):
            raise ValueError(why_not)
        self._node.allowed.check(here)
        if why_not := self._container_refusal(config):
            raise ValueError(why_not)
        run = self._state.find(spec.run, spec.attempt, spec.node_rank)
        share = Share(spec.node_rank, spec.nodes, place.address, place.interface)
        first_rank = spec.node_rank * (config.world_size // spec.nodes)
        return {
            "environment": launch.additions(config, os.environ, self._state.marker(run)) | self._variables(config, run),
            "checkpoints": self._own_checkpoints(config, run),
            "folder": self._folder(config, run),
            "share": share._asdict(),
            "first_rank": first_rank,
            "ranks": config.world_size // spec.nodes if config.starter.starts_ranks else 0,
            "saved_step": spec.saved_step,
            "go_within_s": max(self.go_within_s, self._node.lease_s or LEASE_S),
            "timeout_s": config.launcher.timeout_s,
            "grace_s": config.launcher.grace_s,
            "warn_before_s": config.launcher.warn_before_s,
            "warn_signal": config.launcher.warn_signal,
            "until_step": config.launcher.chain_until_step,
            "memory_limit_mib": containers.inherited_memory_limit(config.launcher),
            "container": config.launcher.container and config.launcher.container.runtime,
            "image": config.launcher.container and config.launcher.container.image,
            "hang_timeout_s": launch.hang_timeout_s(config),
            "run_as": self._node.run_as and self._node.run_as._asdict(),
            "directory": str(self._state.work_path / run.path.name) if self._node.run_as else None,
            "hardware": self._hardware,
            "gpus": gpus.used_by(config, self._hardware.get("gpus", []), os.environ, nodes=spec.nodes),
            **self._limits._asdict(),
        }

    def _go_content(self, run: RunDir, go: Go) -> dict[str, Any]:
        """Return what the launch file lacks; raises ValueError if the ranks cannot start."""
        config, problems = check(json.loads(run.config.read_text()))
        if config is None:
            raise ConfigError(problems)
        peers = sorted(go.members, key=lambda peer: peer.node_rank)
        prepared = run.read_launch()
        share = Share(**prepared["share"])
        if [peer.node_rank for peer in peers] != list(range(share.nodes)):
            ranks = ", ".join(str(peer.node_rank) for peer in peers)
            raise ValueError(f"members {ranks} of the order to start are not those of {share.nodes} nodes")
        share = share._replace(addresses=tuple(peer.address for peer in peers), port=peers[0].port)
        if share.nodes > 1:
            write_atomically(run.path / HOSTFILE, launch.host_lines(config, share))
        config_path = Path(prepared.get("directory") or run.path) / run.config.name
        argv = self._command(config, config_path, share)
        added = launch.additions(config, os.environ, self._state.marker(run), share) | self._variables(config, run)
        added |= launch.attempt_variables(config, run.attempt, prepared.get("saved_step"))
        return {"argv": argv, "environment": added, "shell": launch.shell_line(argv, added)}

    def _variables(self, config: RunConfig, run: RunDir) -> dict[str, str]:
        """Return the variables of an attempt that tell where its run has checkpoints."""
        if not config.has_checkpoints:
            return {}
        return {CHECKPOINT_DIRECTORY: str(self._checkpoints(config, run))}

    def _own_checkpoints(self, config: RunConfig, run: RunDir) -> str | None:
        """Return the folder in the state directory that the supervisor has to make; None if there is none."""
        is_here = config.has_checkpoints and config.checkpoint.directory is None
        return str(self._checkpoints(config, run)) if is_here else None

    def _folder(self, config: RunConfig, run: RunDir) -> str | None:
        """Return where this node has the folder of the checkpoints; None if there is none."""
        if not config.has_checkpoints:
            return None
        return str(containers.on_node(config.launcher.container, self._checkpoints(config, run)))

    def _checkpoints(self, config: RunConfig, run: RunDir) -> Path:
        return self._state.checkpoints(run.run, config.checkpoint.directory, is_run_as=bool(self._node.run_as))

    def _refusal(self, config: RunConfig) -> str:
        """Return why this node cannot start a run; empty if it can."""
        if self._node.run_as and config.network.apply != "none":
            return f"network.apply {config.network.apply}: {no_links(self._node.run_as.name)}"
        return refusal(config)

    def _container_refusal(self, config: RunConfig) -> str:
        """Return why this node cannot start the container of a run; empty if it can, or if there is none."""
        if (container := config.launcher.container) is None:
            return ""
        row, field = containers.RUNTIMES[container.runtime], f"launcher.container.runtime {container.runtime}"
        if self._node.run_as and not row.may_run_as:
            account = self._node.run_as.name
            return f"{field} needs rights that the account {account} of --run-as does not get; use apptainer"
        if self.kind == "slurm":
            return ""  # the compute node looks
        if row.needs_slurm:
            return f"{field} starts containers only in a job of Slurm; use a pool whose daemon runs with --slurm"
        return "" if containers.program_of(row) else f"{field}: {row.program} is not installed; install it on the node"

    def _end_unstarted(self, draft: RunDir, state: str, reason: str) -> None:
        self._append_end(draft, state, reason)
        self._state.put_in_place(draft)

    def _spawn(self, draft: RunDir, added: dict[str, str]) -> None:
        """Start the supervisor in its own session, so that signals to the daemon's group do not reach it."""
        # Locked before the directory is visible, because a run without a supervisor counts as lost.
        descriptor = lock(draft.lock)
        if descriptor is None:
            raise FileExistsError(f"{draft.lock} of a new directory is locked already")
        try:
            run = self._state.put_in_place(draft)
            try:
                child = self._start_supervisor(run, descriptor, added)
            except OSError as error:
                self._append_end(run, "failed", f"its supervisor cannot be started: {error}; see the log of the daemon")
                return
        finally:
            os.close(descriptor)
        self._children.append(child)
        log.info("%s: started, supervisor %d", run, child.pid)

    def _start_supervisor(self, run: RunDir, descriptor: int, added: dict[str, str]) -> subprocess.Popen[bytes]:
        with run.log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "runners.supervisor.supervise", str(run.path), "--lock-fd", str(descriptor)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=run.path,
                env={**without_secrets(os.environ), **added},
                start_new_session=True,
                pass_fds=[descriptor],
            )

    # --- cleaning up -------------------------------------------------------------------------------------------------

    def _settle(self, run: RunDir) -> None:
        """End the processes of a run without a supervisor, then write its final report."""
        if spool.final_report(run.spool) is None:
            marker = self._state.marker(run)
            survivors = processes.kill_all(
                lambda: [process for process, mark in processes.marked().items() if mark == marker],
                within_s=KILL_WITHIN_S,
            )
            self._remove_container(run, marker)
            # The supervisor may have written its final report in the meantime.
            if spool.final_report(run.spool) is None:
                # A supervisor that died while another node ended may be the cause of that end.
                cancelled = None if run.is_cancel_consequence else run.cancel_reason()
                reason = _loss_reason(run) if cancelled is None else cancelled
                if survivors:
                    reason += f"; processes {', '.join(str(process.pid) for process in survivors)} could not be killed"
                # Before the report, because a completely shipped run is deleted soon.
                reason += interface.restored(run.path)
                self._append_end(run, "lost" if cancelled is None else "cancelled", reason)
        self._settled.add(run.path.name)

    def _remove_container(self, run: RunDir, marker: str) -> None:
        """Remove what a container of a killed supervisor has left."""
        runtime = run.read_launch().get("container") if run.launch.exists() else None
        if runtime and (why_not := containers.remove(runtime, marker)):
            log.error("%s: its container cannot be removed: %s", run, why_not)

    def _append_end(self, run: RunDir, state: str, reason: str, *, is_consequence: bool = False) -> None:
        report = {"state": state, "at": time.time(), "reason": reason, "is_consequence": is_consequence}
        with spool.SpoolWriter(run.spool, at_least=run.acknowledged()) as writer:
            writer.append_report(Report.model_validate(report))
        log.warning("%s: %s: %s", run, state, reason)

    def _strays(self) -> list[psutil.Process]:
        watched = {self._state.marker(run) for run in self._state.runs() if run.is_alive}
        ours = f"{self._state.id}:"
        return [
            process
            for process, marker in processes.marked().items()
            if marker.startswith(ours) and marker not in watched
        ]


def _loss_reason(run: RunDir) -> str:
    """Return why a supervisor left no final report."""
    host = socket.gethostname()
    if 0 < run.started_at() < psutil.boot_time():
        return f"node {host} was restarted during the run"
    return f"its supervisor on {host} was killed; the processes of the run were ended"
