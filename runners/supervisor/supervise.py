"""Start, watch and stop one run's processes: `python -m runners.supervisor.supervise RUN_DIR`.

One small process per run, in a session of its own. It needs neither the daemon nor Redis: it writes all
output to the spool, and at the end a final report.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from parlab.client.journal import NODE
from parlab.client.json_log import start_logging
from parlab.client.stopping import CHECKPOINT_DIRECTORY
from runners.engines.checkpoints.folder import Folder, Lock, Taken
from runners.links import interface
from runners.node.addresses import held_port
from runners.node.launch import containers
from runners.node.launch.span_node import DEATHS_FILE
from runners.node.rundir import RunDir, lock
from runners.supervisor import hangs, processes
from runners.supervisor.files import FileFeed
from runners.supervisor.rank_processes import RankProcesses
from runners.supervisor.rank_warnings import RankWarning, launchers
from runners.supervisor.recorder import Recorder
from runners.supervisor.spool import SpoolWriter
from runners.supervisor.streams import Outputs, Piece
from runners.supervisor.verdict import Verdict, shorten
from runners.supervisor.workplace import Workplace
from runners.telemetry import faults, telemetry
from runners.telemetry.xid_events import Xid
from runners.wire.protocol import Rendezvous, Report, RunState

GO_TICK_S = 0.02
"""Seconds between checks for the order to start."""
TICK_S = 0.1
"""Seconds between checks for orders; output is read as it arrives."""
TERM_GRACE_S = 1.0
"""Time from SIGTERM to SIGKILL of a launch file of an earlier release, which states none (`launcher.grace_s`)."""
OWN_END_S = 8.0
"""Time for the launcher to end by itself and say why, if a rank of this node has ended before another node's end."""
LEFTOVER_GRACE_S = 0.3
"""The same for processes that remain after the launched command has ended."""
RUNTIME_S = 5.0
"""Time for a container runtime to clean up after the processes of the container have ended."""
LAUNCHER_S = 2.0
"""Time for a launcher to end by itself after its ranks, before it gets SIGTERM too."""
UNKILLABLE_S = 5.0
"""Time after SIGKILL at which the supervisor gives up a process (stuck in a driver)."""
DRAIN_S = 1.0
"""Maximum wait of an ended run for the last bytes of its pipe."""
_STOPPED = (RunState.TIME_LIMIT, RunState.PREEMPTED, RunState.CANCELLED, RunState.CHECKPOINTED)
"""Orders whose ranks may write a checkpoint within the grace."""
FOLDER_S = 600.0
"""Time for an earlier attempt to leave the folder of the checkpoints: one of a node that was given up may go on."""
CLOCKS_S = 1.0
"""How far the clocks of two nodes of a run may differ, and how much later than the ranks this process gets a signal."""
SAMPLE_S = 1.0
GATHER_S = 0.005
FEW_BYTES = 32 << 10
"""Output that was read at once and shows that the run prints line by line."""

log = logging.getLogger(__name__)


class Supervisor:
    """One run, from its first process to its final report."""

    def __init__(self, run: RunDir) -> None:
        self.run_dir = run
        self.launch = run.read_launch()
        self.recorder = Recorder(SpoolWriter(run.spool, limit_bytes=self.launch["spool_limit_mib"] << 20))
        self.samples = telemetry.Samples(
            [gpu.get("uuid", "") for gpu in self.launch.get("gpus", [])],
            node_rank=run.node_rank,
            first_rank=self.launch.get("first_rank", 0),
        )
        self.grace_s = float(self.launch.get("grace_s", TERM_GRACE_S))
        self.environment: dict[str, Any] = {}
        self.started_at = time.monotonic()
        self.sampled_at = self.started_at
        self.read_at = 0.0
        self.is_told_to_stop = False
        counts_steps = self.launch.get("until_step") is not None
        self.watch = hangs.Watch(self.launch.get("hang_timeout_s"), self.started_at, counts_steps=counts_steps)
        # Of a hanging run: the stacks of its ranks, and the time without a step.
        self.inquiry: hangs.Inquiry | None = None
        self.silence = (0.0, 0)
        # Why the run was stopped, if it was.
        self.order: Verdict | None = None
        # Whether the order is the disk's own, whose reason says already that output is missing.
        self.is_stopped_by_disk = False
        self.child: subprocess.Popen[bytes] | None = None
        self.exit_code: int | None = None
        self.outputs: Outputs | None = None
        self.workplace = Workplace(run, self.launch)
        self.files = FileFeed(self.workplace.path, self.recorder.spool)
        # When the supervisor began to end the processes, and whether they have ended.
        self.ending_at: float | None = None
        self.noticed_at: float | None = None
        self.xids: list[Xid] = []
        self.is_ended = False
        self.unkillable: list[int] = []
        self.ranks = RankProcesses(0)
        self.warning: RankWarning | None = None
        # Why the ranks were warned, and how that end is called.
        self.warned_of = Verdict(RunState.CHECKPOINTED, "")
        # When the ranks were first warned or told to end (Unix time).
        self.told_at: float | None = None
        # On the folder of the checkpoints, while ranks of this attempt may write there.
        self.folder: Lock | None = None
        # When only launchers were left of a run that is stopped.
        self.alone_since: float | None = None
        # When this node was told to end because another one has ended, while it was ending by itself.
        self.cancelled_at: float | None = None

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        processes.adopt_orphans()
        try:
            self._prepare()
            if self.order is None:
                self._start()
        except (OSError, subprocess.SubprocessError) as error:
            self.order = Verdict(RunState.FAILED, self._start_reason(error))
        while self._is_reading or not self.is_ended or self.recorder.is_blocked:
            self._turn()
        while self._feed_files():
            pass
        if self.folder is not None:
            self.folder.leave()
        self._report_end()

    # --- prepare and go ----------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Report that this node is ready and wait until all nodes are; a launch file with a command needs no order."""
        if "argv" in self.launch:
            return
        share = self.launch["share"]
        address = share["address"]
        holder = held_port(address) if share["nodes"] > 1 and share["node_rank"] == 0 else None
        try:
            rendezvous = Rendezvous(address=address, port=holder.getsockname()[1] if holder else 0)
            self.recorder.spool.append_report(Report(state="prepared", at=time.time(), rendezvous=rendezvous))
            # Takes a while, and is the same after the order to start.
            self.environment = telemetry.environment(self.launch["hardware"])
            self._wait_for_go()
        finally:
            if holder is not None:
                holder.close()

    def _wait_for_go(self) -> None:
        limit_s = self.launch["go_within_s"]
        while (go := self.run_dir.read_go()) is None:
            self._look_for_orders()
            if self.order is None and time.monotonic() - self.started_at > limit_s:
                reason = (
                    f"prepared, but not told to start within {limit_s:g} s;"
                    " check the other nodes of the run, the server and its Redis"
                )
                self.order = Verdict(RunState.LOST, reason)
            if self.order is not None:
                return
            time.sleep(GO_TICK_S)
        if "error" in go:
            self.order = Verdict(RunState.FAILED, go["error"])
        self.launch |= go
        self.started_at = time.monotonic()
        self.watch.pause(self.started_at)

    def _start(self) -> None:
        argv, added = self.launch["argv"], self.launch["environment"]
        environment = {
            **(self.environment or telemetry.environment(self.launch.get("hardware") or telemetry.hardware())),
            "variables": added,
            "shell": self.launch["shell"],
            "gpus_used": self.launch.get("gpus", []),
        }
        # The daemon has done this already; a supervisor started by hand has not.
        self.recorder.spool.reserve()
        running = Report(state="running", at=time.time(), command=argv, environment=environment)
        self.recorder.spool.append_report(running)
        self._take_folder()
        if self.order is not None:
            return
        first_rank = self.launch.get("first_rank", 0)
        ranks = range(first_rank, first_rank + self.launch.get("ranks", 0))
        has_others = self.launch.get("share", {}).get("nodes", 1) > 1
        # Only asked for after the end of another node.
        self.ranks = RankProcesses(len(ranks) or None if has_others else 0)
        self.outputs = Outputs(self.workplace.path, ranks, has_others=has_others)
        self.recorder.has_streams = self.outputs.has_ranks
        if runtime := self.launch.get("container"):
            row = containers.RUNTIMES[runtime]
            processes.expect_container(row.helpers, marker_of(self.launch) if row.is_apart else "")
        try:
            self.workplace.hand_over()
            self.child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=self.outputs.writer,
                stderr=self.outputs.writer,
                env=self.workplace.environment({**added, **self.outputs.environment}),
                process_group=0,
                # With a function before exec: this process has one thread so far.
                **self.workplace.popen_options(),
            )
        finally:
            os.close(self.outputs.writer)
        # Only now: there must be a single thread between fork and exec.
        self.samples.start()
        if self.folder is not None:
            self.folder.start_beating()

    def _take_folder(self) -> None:
        """Wait until no earlier attempt writes to the folder of the checkpoints."""
        path, until = self.launch.get("folder"), time.monotonic() + FOLDER_S
        has_said = False
        while path is not None and self.run_dir.node_rank == 0 and self.order is None:
            try:
                self.folder = self.workplace.take_folder(Path(path), self.run_dir.attempt)
                return
            except Taken as taken:
                if time.monotonic() > until:
                    self.order = Verdict(RunState.LOST, f"checkpoint.directory {path}: {taken}")
                elif not has_said:
                    self.recorder.insert(f"parlab: the start waits, because {taken}\n".encode())
                    self.recorder.write()
                    has_said = True
            except OSError as error:
                log.warning("%s cannot be locked, which its ranks may still create: %s", path, error)
                return
            self._look_for_orders()

    def _start_reason(self, error: Exception) -> str:
        if isinstance(error, FileNotFoundError | PermissionError):
            return f"{self.launch['argv'][0]} cannot be started: {error.strerror}; install it on the node"
        if isinstance(error, OSError):
            return self.recorder.disk_reason(error)
        return f"the run cannot be started: {error}"

    def _turn(self) -> None:
        self._look_for_orders()
        self._look_for_warning()
        self._reap()
        self._end_processes()
        self.recorder.write()
        self._read_output()
        self._feed_files()
        self._look_for_hang()
        self._look_at_disk()
        self._sample()

    # --- processes ---------------------------------------------------------------------------------------------------

    def _on_signal(self, *_: object) -> None:
        self.is_told_to_stop = True
        self.told_at = self.told_at or time.time()

    def _look_for_orders(self) -> None:
        """Decide once why the run is stopped; a run that has ended by itself is not stopped."""
        if self.order is not None or (self.exit_code is not None and not self.recorder.is_blocked):
            return
        if self.is_told_to_stop:
            self.order = Verdict(RunState.CANCELLED, "the node's daemon was stopped")
        elif (reason := self.run_dir.cancel_reason()) is not None:
            if not self._may_end_by_itself():
                self.order = Verdict(RunState.CANCELLED, reason)
        elif (notice := self.run_dir.preemption()) is not None:
            self.order = Verdict(RunState.PREEMPTED, f"its node is taken away: {notice}")
        elif time.monotonic() - self.started_at > self.launch["timeout_s"]:
            self.order = Verdict(RunState.TIME_LIMIT, f"stopped after {self._limit}; raise it, or shorten the run")
        elif (last_step := self.launch.get("until_step")) is not None and self.watch.last_step >= last_step:
            self.order = Verdict(RunState.CHECKPOINTED, f"stopped at launcher.chain_until_step {last_step}")
        if self.order is not None:
            self.told_at = self.told_at or time.time()
            log.info("stopping: %s", self.order.reason)

    @property
    def _limit(self) -> str:
        return f"launcher.timeout_s {self.launch['timeout_s']:g} s"

    def _look_for_warning(self) -> None:
        """Warn the ranks once ahead of the limit; those that are still starting get the signal when they handle it."""
        before_s = self.launch.get("warn_before_s")
        if before_s is None or self.order is not None or self.exit_code is not None or self.child is None:
            return
        now = time.monotonic()
        if self.warning is None and (limit := self._near_limit(before_s, now)):
            self.warning = RankWarning(self.launch["warn_signal"], now)
            self.told_at = self.told_at or time.time()
            log.info("warning the ranks with %s of %s", self.warning.name, limit)
            self.recorder.insert(f"parlab: {self.warning.name} to the ranks, ahead of {limit}\n".encode())
            self.warned_of = Verdict(RunState.CHECKPOINTED, f"its ranks wrote a checkpoint ahead of {limit}")
        if self.warning is not None:
            self.warning.turn(now)

    def _near_limit(self, before_s: float, now: float) -> str:
        """Return the limit of which the ranks are to be warned now; empty if it is not near."""
        left_s = self.launch["timeout_s"] - before_s
        return self._limit if now - self.started_at > left_s else ""

    def _may_end_by_itself(self) -> bool:
        """Return whether to let the launcher say what happened, although another node has ended.

        If a rank of this node has ended or failed too, it may be the first cause: other nodes may have noticed sooner.
        """
        if not self.run_dir.is_cancel_consequence or self.outputs is None:
            return False
        has_failed = self.recorder.evidence.has_failure or os.path.lexists(self.workplace.path / DEATHS_FILE)
        if not has_failed and not self.ranks.ended():
            return False
        now = time.monotonic()
        self.cancelled_at = self.cancelled_at or now
        return now - self.cancelled_at < OWN_END_S

    def _reap(self) -> None:
        """Collect the exit status of the child, and of adopted orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.child is not None and pid == self.child.pid:
                self.child.returncode = os.waitstatus_to_exitcode(status)
                self.exit_code = containers.exit_code_of(self.launch.get("container"), self.child.returncode)

    def _end_processes(self) -> None:
        """Send SIGTERM, then SIGKILL, to all processes of the run once it is stopped or its command has ended."""
        if self.is_ended or (self.order is None and self.exit_code is None):
            return
        remaining = processes.descendants()
        own = processes.of_run(remaining)
        is_first_turn = self.ending_at is None
        self.ending_at = self.ending_at or time.monotonic()
        self.noticed_at = self.noticed_at or time.time()
        waited = time.monotonic() - self.ending_at
        if not remaining:
            self._reap()
            self.is_ended = True
        elif is_first_turn:
            # A launcher that gets SIGTERM kills its ranks after a time of its own, and does not report how they ended.
            above = launchers(own) if self.order is not None else set()
            processes.signal_all([process for process in own if process.pid not in above], signal.SIGTERM)
        elif waited <= self.grace_s and self._are_launchers_left(own):
            processes.signal_all(own, signal.SIGTERM)
        elif waited > self.grace_s + UNKILLABLE_S + (RUNTIME_S if self.launch.get("container") else 0):
            self.unkillable = [process.pid for process in remaining]
            self.is_ended = True
        elif waited > (limit_s := self.grace_s if self.order else LEFTOVER_GRACE_S):
            processes.signal_all(own or (remaining if waited > limit_s + RUNTIME_S else []), signal.SIGKILL)

    def _are_launchers_left(self, remaining: list[psutil.Process]) -> bool:
        """Return, once, whether the ranks have ended and their launcher has had its time to end too."""
        now = time.monotonic()
        if self.alone_since is None or launchers(remaining):
            self.alone_since = now
        is_due = self.alone_since + LAUNCHER_S < now
        self.alone_since = float("inf") if is_due else self.alone_since
        return is_due

    # --- output ------------------------------------------------------------------------------------------------------

    @property
    def _is_reading(self) -> bool:
        return self.outputs is not None and self.outputs.is_open

    def _read_output(self) -> None:
        """Wait up to a tick for output and read it; while the disk is full nothing is read, so that the run waits."""
        if self.outputs is None or not self.outputs.is_open or self.recorder.is_blocked:
            time.sleep(0 if self.is_ended and not self.recorder.is_blocked else TICK_S)
            return
        pieces = self.outputs.read(0 if self._is_drained else TICK_S)
        if pieces:
            self.read_at = time.monotonic()
        elif self._is_drained:
            pieces = [Piece(rank, b"") for rank in self.outputs.close()]
        for rank, data in pieces:
            for record in self.recorder.take(data, rank=rank, is_last=not data):
                self.watch.see(record, self.read_at)
                if self.inquiry is not None:
                    self.inquiry.hear(record)
        if pieces and sum(len(data) for _, data in pieces) < FEW_BYTES:
            # Output that is printed line by line collects in the pipes meanwhile: fewer turns and larger records.
            time.sleep(GATHER_S)

    @property
    def _is_drained(self) -> bool:
        """Whether no more output can come; a process outside the run may keep the launcher's pipe open for ever."""
        if not self.is_ended or self.outputs is None:
            return False
        quiet_s = time.monotonic() - max(self.read_at, self.ending_at or 0.0)
        return not self.outputs.has_launcher or quiet_s > DRAIN_S

    def _feed_files(self) -> bool:
        """Append the next piece of a file to the spool; return whether there was one. Output is more important."""
        if self.recorder.is_blocked:
            return False
        try:
            return self.files.turn()
        except OSError as error:
            line = f"parlab: {self.files.drop()} was not stored: {self.recorder.disk_reason(error)}\n"
            self.recorder.insert(line.encode())
            return True

    def _look_for_hang(self) -> None:
        """End a run that makes no more steps, after collecting the stacks of its ranks."""
        now = time.monotonic()
        if self.order is not None or self.exit_code is not None or self.outputs is None:
            return
        if self.recorder.is_blocked:
            self.watch.pause(now)
        elif self.inquiry is None:
            silent_s = self.watch.silent_for(now)
            if silent_s is not None and not self.outputs.has_data():  # all its output was read
                self._ask_ranks(silent_s, now)
        elif self.watch.steps > self.silence[1]:
            log.info("a step was made after all")
            self.inquiry = None
        elif (rank := self.inquiry.step(now)) is not None:
            heading = f"parlab: stacks of {rank.name}, process {rank.process.pid}:\n"
            self.recorder.insert(heading.encode(), rank=NODE if rank.rank is None else rank.rank)
        elif self.inquiry.is_over(now):
            reason = hangs.reason(self.silence[0], self.watch, self.inquiry.places())
            self.order = Verdict(RunState.FAILED, shorten(reason), self.inquiry.stacks())
            log.info("stopping: %s", reason)

    def _ask_ranks(self, silent_s: float, now: float) -> None:
        ranks = hangs.find_ranks()
        if not ranks:  # they have ended; the message of their launcher, which is still to come, is a better reason
            self.watch.pause(now)
            return
        self.inquiry, self.silence = hangs.Inquiry(ranks, now), (silent_s, self.watch.steps)
        log.warning("no step for %.0f s: asking the ranks for their stacks", silent_s)

    def _look_at_disk(self) -> None:
        """End a run whose output could not be written for too long; one that is ending waits as long for room."""
        if not self.recorder.is_blocked or self.recorder.blocked_s <= self.launch["disk_grace_s"]:
            return
        reason = self.recorder.disk_reason()
        if self.order is None:
            self.order, self.is_stopped_by_disk = Verdict(RunState.FAILED, reason), True
            log.error("stopping: %s", reason)
        elif self.is_ended:
            log.error("the last output is lost: %s", reason)
            if not self.is_stopped_by_disk:
                self.order = self.order._replace(reason=f"{self.order.reason}; its last {reason}")
            self.recorder.give_up()

    def _sample(self) -> None:
        now = time.monotonic()
        if now - self.sampled_at > SAMPLE_S and self.exit_code is None:
            self.sampled_at = now
            self.ranks.look()
            self.recorder.insert(self.samples.lines())
            self._note_xids()

    def _note_xids(self) -> None:
        """Write the errors of GPUs into the log."""
        for xid in self.samples.xids():
            self.xids.append(xid)
            self.recorder.insert(f"parlab: {xid}\n".encode(), rank=xid.rank if self.recorder.has_streams else NODE)

    def _failed_check(self) -> str:
        """Return which faults of the GPUs of this node the run has met; empty for none."""
        fatal = list(dict.fromkeys(str(xid) for xid in self.xids if xid.is_fatal))
        if fatal:
            return f"failed its health check: {'; '.join(fatal[:3])}"
        return faults.failed_check(faults.state_file(self.run_dir.path.parent.parent))

    # --- the end -----------------------------------------------------------------------------------------------------

    def _remove_container(self) -> None:
        """Remove what the runtime has not removed itself, because it was killed or hangs."""
        runtime = self.launch.get("container")
        if runtime and self.child is not None and (why_not := containers.remove(runtime, marker_of(self.launch))):
            log.error("the container cannot be removed: %s", why_not)

    def _verdict(self, exit_code: int) -> Verdict:
        """Return how the run ended; ranks that were told to end may have written a checkpoint first."""
        order = self.order
        if order is None:
            verdict = self.recorder.evidence.verdict(exit_code)
            is_warned = verdict.state is RunState.CHECKPOINTED and self.warning is not None
            return self.warned_of if is_warned else verdict
        if order.state in _STOPPED and (self.recorder.evidence.has_checkpointed(exit_code) or self._has_saved()):
            is_limit = order.state is RunState.TIME_LIMIT
            what = f"stopped after {self._limit}" if is_limit else order.reason
            state = RunState.CHECKPOINTED if is_limit else order.state
            return order._replace(state=state, reason=f"{what}; its ranks wrote a checkpoint")
        if order.state is RunState.CHECKPOINTED:
            return order._replace(state=RunState.TIME_LIMIT, reason=f"{order.reason}; its ranks wrote no checkpoint")
        return order

    def _has_saved(self) -> bool:
        """Return whether the ranks have completed a checkpoint since they were told to end, whoever ended them."""
        folder = self.launch.get("folder") or self.launch.get("environment", {}).get(CHECKPOINT_DIRECTORY)
        if self.told_at is None or folder is None:
            return False
        return Folder(Path(folder), self.run_dir.attempt).has_complete_since(self.told_at - CLOCKS_S)

    def _report_end(self) -> None:
        self.samples.stop()
        self._remove_container()
        exit_code = self.exit_code
        verdict = self._verdict(-signal.SIGKILL if exit_code is None else exit_code)
        reason = verdict.reason
        runtime = self.launch.get("container")
        if runtime and verdict.state == RunState.FAILED and not verdict.traceback and not self.watch.steps:
            image, output = str(self.launch.get("image")), self.recorder.evidence.log_tail()
            reason = shorten(containers.start_failure(runtime, image, exit_code or 0, output)) or reason
        if self.unkillable:
            pids = ", ".join(map(str, self.unkillable))
            reason += f"; processes {pids} could not be killed and still hold their resources; check the node"
        reason += interface.restored(self.run_dir.path)
        if verdict.state == RunState.FAILED and self.launch.get("gpus"):
            self.xids += self.samples.xids()
            reason += f"; the node {failed}" if (failed := self._failed_check()) else ""
        report = Report.model_validate(
            {
                "state": verdict.state.value,
                "at": time.time(),
                "exit_code": exit_code,
                "reason": reason,
                "traceback": verdict.traceback,
                "first_failed_rank": verdict.rank,
                "is_consequence": verdict.is_consequence,
                "noticed_at": self.noticed_at,
            }
        )
        self.recorder.spool.append_report(report)
        self.recorder.spool.close()


def marker_of(launch: Mapping[str, Any]) -> str:
    """Return the marker of the processes of a run from its launch file."""
    return str((launch.get("environment") or {}).get(processes.MARKER, ""))


def supervise(run: RunDir, kind: Callable[[RunDir], Supervisor] = Supervisor) -> None:
    """Supervise a run; an error of the supervisor itself also ends the processes and is reported."""
    supervisor = kind(run)
    try:
        supervisor.run()
    except Exception as error:
        processes.kill_all(processes.descendants, within_s=UNKILLABLE_S)
        reason = f"parlab's supervisor failed: {error!r}; see {run.log} on the node"
        supervisor.recorder.spool.append_report(Report(state="failed", at=time.time(), reason=reason))
        raise


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m runners.supervisor.supervise", description="Run one prepared run directory."
    )
    parser.add_argument("run_dir", type=Path, help="directory that the daemon has prepared, named RUN-ATTEMPT")
    parser.add_argument("--lock-fd", type=int, help="the directory's lock, already taken by who starts this")
    options = parser.parse_args(arguments)
    start_logging()
    run = RunDir(options.run_dir.resolve())
    descriptor = options.lock_fd if options.lock_fd is not None else lock(run.lock)
    if descriptor is None:
        log.error("%s already has a supervisor", run.path)
        return 2
    # The lock must not be inherited by the processes of the run.
    os.set_inheritable(descriptor, False)
    run.write_supervisor()
    supervise(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
