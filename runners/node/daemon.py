"""The runner daemon of a node: takes orders from its queue, starts runs, ships their output.

`python -m runners.node.daemon --node NAME --state-dir DIR`, with REDIS_URL and PARLAB_NODE_KEY (or its _FILE) in the
environment. Runs continue when it stops; the next daemon on the same directory takes them over. Commands:

- `enrol --code CODE --state-dir DIR` gives the node a key of its own before its first start.
- `stop-all --state-dir DIR` ends all runs.
- `drain --lease 1h --state-dir DIR`, before an upgrade: the node takes no new runs, and its runs keep their lease while
  the daemon is stopped.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from parlab.client.json_log import start_logging
from parlab.client.version import VERSION
from runners.links.ability import Ability, ability
from runners.links.refusal import no_links
from runners.node.abilities import abilities
from runners.node.clocks import ClockOffset
from runners.node.daemon_settings import Settings, parse, read_duration, read_settings
from runners.node.jobs.state import JobStateDir
from runners.node.keeper import Command, Keeper, Node
from runners.node.kubernetes.pool import Pool
from runners.node.launch import launch
from runners.node.run_as import check_account, secret_paths
from runners.node.rundir import StateDir, lock
from runners.node.slurm.keeper import SlurmKeeper
from runners.node.spot import ASK_S, SpotNotice
from runners.node.stop_and_drain import drain, stop_all
from runners.supervisor.shipping import BrokerAway, Outgoing, Shipper
from runners.telemetry import faults, measured, telemetry
from runners.wire.broker import Broker
from runners.wire.enrolment import enrol
from runners.wire.keys import NodeKeys
from runners.wire.protocol import (
    HEARTBEAT_S,
    Acknowledge,
    Batch,
    Cancel,
    Enrol,
    Go,
    Heartbeat,
    Report,
    Rotate,
    RunSpec,
    node_queue,
    verify,
)
from runners.wire.trust import Seen, Untrusted

WATCH_S = 0.5
MEASURE_AGAIN_S = 15.0
"""Runs of a sweep follow each other within seconds: no measurement begins between them."""
JOBS_S = 0.1
"""The same for the runs of a batch system, which the keeper looks at when an order came, and else at its own pace."""
FAULTS_S = 60.0
"""Seconds between two looks at the hardware."""
EXIT_WITHIN_S = 1.5
M = TypeVar("M", RunSpec, Go, Cancel, Acknowledge, Rotate)
Measure = Callable[[measured.Kind, Callable[[], bool]], dict[str, Any] | None]

log = logging.getLogger(__name__)


class Daemon:
    """One node: receives orders from the server and runs them on this machine."""

    def __init__(self, settings: Settings, state: StateDir, keys: NodeKeys, command: Command, measure: Measure) -> None:
        self._settings = settings
        self._measure = measure
        # Pages show in advance which nodes can emulate links.
        run_as = settings.run_as
        links = Ability(no_links(run_as.name), has_netem=False) if run_as else ability()
        self._hardware = {**telemetry.hardware(), "links": links._asdict()}
        self._state = state
        self._keys = keys
        self._seen = Seen()
        self._broker = Broker(settings.redis_url, settings.node, self._keys, state_id=state.id)
        self._keeper = self._new_keeper(state, command)
        self._clock = ClockOffset(self._broker.server_time)
        self._shipper = Shipper(
            state,
            settings.node,
            send=self._broker.send_batches,
            queue_age_s=self._broker.queue_age_s,
            backlog_room=self._broker.backlog_room,
        )
        self._stop = threading.Event()
        self._is_broker_away = False
        self._is_taken_away = False
        self._waits: Sequence[tuple[tuple[int, int], str]] = ()
        self._told_at = float("-inf")
        # Two threads beat; the server refuses a heartbeat that comes after a later one.
        self._beating = threading.Lock()
        self._measuring = threading.Thread(target=self._measure_node, name="measuring", daemon=True)

    def run(self) -> int:
        """Run until SIGTERM or SIGINT; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._state.end_drain()
        self._keeper.end_strays()
        self._keeper.watch()
        threading.Thread(target=self._shipper.run, args=[self._stop], name="shipping", daemon=True).start()
        self._every(WATCH_S if self._settings.pace is None else JOBS_S, self._watch, "watching")
        self._every(HEARTBEAT_S, self._beat, "heartbeat")
        if self._settings.spot_notice is not None:
            self._every(ASK_S, partial(self._look_for_notice, self._settings.spot_notice), "asking for a spot notice")
        if self._settings.pace is None:  # a login node is shared by all users of the cluster
            self._every(FAULTS_S, self._look_for_faults, "looking for faults")
            self._measuring.start()
        log.info("node %s of pool %s takes %d runs", self._settings.node, self._settings.pool, self._settings.slots)
        self._broker.listen(self)
        if self._stop.is_set() and self._measuring.is_alive():
            self._measuring.join(EXIT_WITHIN_S)  # ends the processes of its measurement
        return 0 if self._stop.is_set() else 1

    def _new_keeper(self, state: StateDir, command: Command) -> Keeper:
        settings = self._settings
        self._write_broker()
        node = Node(settings.address, settings.lease_s, settings.allowed, settings.run_as)
        if settings.slurm is not None and isinstance(state, JobStateDir):
            # The GPUs of this machine are not those of the jobs; Slurm lists the latter.
            self._hardware |= {"gpus": [], "slurm": {"partitions": []}}
            return SlurmKeeper(
                state, hardware=self._hardware, limits=settings.limits, command=command, node=node, pool=settings.slurm
            )
        if settings.kubernetes is not None and isinstance(state, JobStateDir):
            self._hardware |= {"gpus": [], "kubernetes": {"namespace": settings.kubernetes.namespace}}
            return self._new_kubernetes_keeper(state, command, node, settings.kubernetes)
        return Keeper(state, hardware=self._hardware, limits=settings.limits, command=command, node=node)

    def _new_kubernetes_keeper(self, state: JobStateDir, command: Command, node: Node, pool: Pool) -> Keeper:
        # Its client is a package of an extra, and heavy.
        from runners.node.kubernetes.keeper import KubernetesKeeper
        from runners.node.kubernetes.without_volume.exchange import ServerAnswers
        from runners.node.kubernetes.without_volume.keeper import PostingKeeper

        settings = self._settings
        shared: dict[str, Any] = {
            "hardware": self._hardware,
            "limits": settings.limits,
            "command": command,
            "node": node,
            "pool": pool,
            "pool_name": settings.pool,
        }
        if pool.volume.is_shared:
            return KubernetesKeeper(state, **shared)
        answers = ServerAnswers(settings.node, self._keys.current, self._broker.posted)
        return PostingKeeper(state, answers=answers, **shared)

    def _write_broker(self) -> None:
        """Let the nodes of a batch system ship by themselves, or not."""
        if self._settings.pace is None or not isinstance(self._state, JobStateDir):
            return
        if self._settings.pace.ships_from_nodes:
            self._state.write_broker(self._settings.redis_url, self._settings.node, self._keys.current())
        else:
            self._state.forget_broker()

    # --- orders ------------------------------------------------------------------------------------------------------

    def start(self, envelope: Any) -> None:
        """Start a run if the order is genuine."""
        spec = self._verified(envelope, RunSpec)
        if spec is None:
            return
        try:
            self._keeper.start(spec)
        except OSError as error:
            log.exception("run %d attempt %d: cannot be started", spec.run, spec.attempt)
            self._refuse(spec, f"node {spec.node} cannot start the run: {error}; free space on its disk")

    def go(self, envelope: Any) -> None:
        """Start the ranks of a prepared run if the order is genuine."""
        order = self._verified(envelope, Go)
        if order is None:
            return
        try:
            self._keeper.go(order)
        except OSError:
            # The server repeats the order until the run has started.
            log.exception("run %d attempt %d: cannot be started now", order.run, order.attempt)

    def cancel(self, envelope: Any) -> None:
        """Cancel a run if the order is genuine."""
        order = self._verified(envelope, Cancel)
        if order is None:
            return
        try:
            self._keeper.cancel(order)
        except OSError:
            # The server repeats the order until the run has ended.
            log.exception("run %d attempt %d: cannot be cancelled now", order.run, order.attempt)

    def acknowledge(self, envelope: Any) -> None:
        """Record the position up to which the server has stored a spool."""
        answer = self._verified(envelope, Acknowledge)
        if answer is not None:
            self._shipper.acknowledge(answer.run, answer.attempt, answer.position, answer.node_rank)

    def rotate(self, envelope: Any) -> None:
        """Agree on the next key; it replaces the current one when the server first signs with it."""
        order = self._verified(envelope, Rotate)
        if order is None:
            return
        try:
            answer = self._keys.offer(order.key_id, order.public)
            if answer is not None:
                self._broker.send_enrol(Enrol(key_id=order.key_id, public=answer))
        except (ValueError, OSError, BrokerAway) as error:
            log.warning("the next key was not agreed on now; the server repeats the order: %s", error)

    def _verified(self, envelope: Any, kind: type[M]) -> M | None:
        try:
            message = verify(envelope, self._keys.find, kind, node=self._settings.node, seen=self._seen)
        except Untrusted as error:
            sample = json.dumps(envelope, default=str).encode()
            reason = f"refused a {kind.__name__}: {error}"
            self._broker.refusals.add(node_queue(self._settings.node), reason, size=len(sample), sample=sample)
            return None
        if self._keys.promote(str(envelope["key"])):
            log.info("node %s uses its next key", self._settings.node)
            self._write_broker()
        return message

    def _refuse(self, spec: RunSpec, reason: str) -> None:
        """Report the failure without the disk, which has no space for a run directory."""
        report = Report(state="failed", at=time.time(), reason=reason)
        batch = Batch(
            run=spec.run,
            attempt=spec.attempt,
            node=spec.node,
            node_rank=spec.node_rank,
            sequence=0,
            next_sequence=1,
            reports=[report],
        )
        try:
            self._broker.send_batches([Outgoing(batch.to_wire())])
        except BrokerAway as error:
            log.warning("the report cannot be sent, so the server will send the run again: %s", error)

    # --- background --------------------------------------------------------------------------------------------------

    def _every(self, seconds: float, work: Callable[[], None], name: str) -> None:
        def loop() -> None:
            while not self._stop.is_set():
                try:
                    work()
                except Exception:
                    log.exception("%s failed; retrying", name)
                self._stop.wait(seconds)

        threading.Thread(target=loop, name=name, daemon=True).start()

    def _watch(self) -> None:
        """Serve the runs; tell the server at once why some wait, if that has changed."""
        self._keeper.watch()
        now = time.monotonic()
        if now - self._told_at >= WATCH_S and (waits := self._keeper.waits()) != self._waits:
            self._waits, self._told_at = waits, now
            self._beat()

    def _look_for_notice(self, spot: SpotNotice) -> None:
        """Take no new runs and end those of this node once it is announced that the node is taken away."""
        notice = spot.read()
        if notice:
            if self._state.drain() is None:
                self._state.begin_drain(None)
                self._is_taken_away = True
                self._beat()  # before the ends of its runs: their next attempts must not come here
            self._keeper.preempt(notice)
        elif self._is_taken_away:
            log.info("the notice is gone: the node takes runs again")
            self._is_taken_away = False
            self._state.end_drain()

    def _measure_node(self) -> None:
        """Measure the node while no run is active; a run that starts ends the measurement, which is made later."""
        before = {kind: measured.stored(self._state.root, kind, self._hardware) for kind in measured.KINDS}
        for kind, stored in before.items():
            self._publish(kind, stored)
        for kind, stored in before.items():
            if not self._measure_one(kind, stored):
                return

    def _measure_one(self, kind: measured.Kind, stored: dict[str, Any] | None) -> bool:
        """Measure once; False if the daemon ends before."""
        wait_s = WATCH_S
        while not self._stop.wait(wait_s):
            if not self._is_idle():
                continue
            try:
                found = self._measure(kind, lambda: not self._stop.is_set() and self._is_idle())
            except measured.Interrupted:
                wait_s = MEASURE_AGAIN_S
                continue
            if found is None:
                return True
            if self._is_idle():
                best = measured.best(kind, stored, found)
                self._publish(kind, best)
                try:
                    measured.store(self._state.root, kind, self._hardware, best)
                except OSError as error:
                    log.warning("the measurement of %s cannot be stored: %s", kind.name, error)
                return True
        return False

    def _publish(self, kind: measured.Kind, found: dict[str, Any] | None) -> None:
        """Include a measurement in heartbeats and in the environment of later runs."""
        if found is not None:
            self._hardware[kind.name] = found

    def _look_for_faults(self) -> None:
        """Include the faults of the hardware in heartbeats."""
        found = [fault._asdict() for fault in faults.read_faults(faults.state_file(self._state.root))]
        if found != self._hardware.get("faults", []):
            log.warning("faults of this node: %s", "; ".join(f"{each['device']}: {each['text']}" for each in found))
        if found:
            self._hardware["faults"] = found
        else:
            self._hardware.pop("faults", None)

    def _is_idle(self) -> bool:
        return not any(run.alive for run in self._keeper.held())

    def _beat(self) -> None:
        with self._beating:
            self._send_beat()

    def _send_beat(self) -> None:
        drain = self._state.drain()
        heartbeat = Heartbeat(
            node=self._settings.node,
            pool=self._settings.pool,
            sent_at=time.time(),
            slots=self._settings.slots,
            version=VERSION,
            hardware={**self._hardware, "run_as": self._settings.run_as.name if self._settings.run_as else ""},
            held=self._keeper.held(),
            abilities=abilities(self._settings.allowed, self._settings.address, os.environ, kind=self._keeper.kind),
            clock=self._clock.measured(),
            lease_s=drain.lease_s if drain and drain.lease_s else self._settings.lease_s,
            is_draining=drain is not None,
            state_id=self._state.id,
            refused=self._broker.take_refused(),
        )
        try:
            self._broker.send_heartbeat(heartbeat)
            if self._settings.pace is not None:
                self._broker.mark_login(self._state.id)
            if drain is not None:
                self._state.confirm_drain()
            self._is_broker_away = False
        except BrokerAway as error:
            if not self._is_broker_away:
                log.warning("no heartbeat while the broker is unavailable: %s", error)
            self._is_broker_away = True

    def _on_signal(self, *_: object) -> None:
        self._stop.set()
        self._broker.stop()
        # Exit even if a connection or a disk hangs: all state is already on the disk.
        timer = threading.Timer(EXIT_WITHIN_S, os._exit, [0])
        timer.daemon = True
        timer.start()


def main(
    arguments: list[str] | None = None,
    *,
    command: Command = launch.command,
    measure: Measure = measured.measure,
) -> int:
    """Run from the command line. `command` turns a configuration into an argv; `measure` measures the node."""
    options = parse(arguments)
    start_logging()
    logging.getLogger("celery").setLevel(logging.WARNING)
    kind = JobStateDir if options.slurm or options.kubernetes else StateDir
    if options.action == "stop-all":
        return 1 if stop_all(kind(options.state_dir.resolve()), options) else 0
    try:
        if options.action == "drain":
            return drain(StateDir(options.state_dir.resolve()), read_duration(options.lease))
        if options.action == "enrol":
            return enrol(options.state_dir.resolve(), options.node, options.code, os.environ.get("REDIS_URL", ""))
        settings = read_settings(options, os.environ)
        state = kind(settings.state_dir.resolve())
        keys = NodeKeys(state.root, settings.node, settings.key)
        if settings.run_as:
            check_account(settings.run_as, state.work_path, secret_paths(state.root, os.environ))
    except (ValueError, OSError) as error:
        log.error("cannot start: %s", error)
        return 2
    descriptor = lock(state.lock)
    if descriptor is None:
        log.error("daemon %s already uses %s; stop it, or use another --state-dir", state.lock.read_text(), state.root)
        return 2
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    state.clear_drafts()
    exit_code = Daemon(settings, state, keys, command, (lambda *_: None) if options.no_measure else measure).run()
    log.info("stopped; the runs of %s continue", state.root)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
