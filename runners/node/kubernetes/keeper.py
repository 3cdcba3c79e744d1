"""The runs of a controller: each attempt is a few pods. Independent of the broker."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

from runners.config import Problem, RunConfig
from runners.node.abilities import ALLOWED_COMMANDS, allowed_commands
from runners.node.jobs.keeper import JobKeeper, Key
from runners.node.jobs.state import JobDir, JobRecord, JobStateDir
from runners.node.jobs.system import SystemRefused
from runners.node.keeper import Command, Limits, Node
from runners.node.kubernetes import manifests, words
from runners.node.kubernetes.api import Api, KubernetesRefused
from runners.node.kubernetes.cleaning import Cleaner
from runners.node.kubernetes.cluster import Cluster
from runners.node.kubernetes.event_log import EventLog
from runners.node.kubernetes.lease import Lease
from runners.node.kubernetes.pods import COMMANDS_FILE, Pod
from runners.node.kubernetes.pool import Pool
from runners.node.kubernetes.problems import problems, quota_text, refusal
from runners.node.kubernetes.rights import FORBIDDEN_S, REMEDY, OwnRights
from runners.node.launch.containers import PACKAGE_ROOT
from runners.node.rundir import RunDir, write_atomically
from runners.wire.protocol import Cancel, RunState

QUOTA_S = 5.0
"""Seconds between two tries of a run that waits for a quota."""
QUIET_S = 10.0
"""Seconds between two looks at an attempt whose pods all run."""
WAITING_S = 1.0
"""The same where some wait, and nothing has changed."""
PASS_S = 5.0
"""Time of one pass over all attempts; the lease is renewed between two."""
ASK_S = 2.0
"""Seconds between two questions about a job without pods."""

log = logging.getLogger(__name__)


class KubernetesKeeper(JobKeeper):
    """The runs of one state directory, as pods that have it on a volume."""

    kind = "kubernetes"
    foreign_sections = ()
    system = "Kubernetes"
    further_rights: tuple[str, ...] = ()
    """What needs rights besides those of every pool."""
    rest_s = 0.0
    """Time for which an ended pod may wait for the server."""

    def __init__(
        self,
        state: JobStateDir,
        *,
        hardware: dict[str, Any],
        limits: Limits,
        command: Command,
        pool: Pool,
        pool_name: str = "default",
        node: Node | None = None,
        api: Api | None = None,
        holder: str = "",
    ) -> None:
        super().__init__(state, hardware=hardware, limits=limits, command=command, pace=pool.pace, node=node)
        self._pool, self._pool_name = pool, pool_name
        # The pods of a gang come one after the other: a node may have to pull the image first.
        self.go_within_s = max(self.go_within_s, pool.image_s)
        self._api = api or Api.connect(pool.namespace, pool.context)
        self._cluster = Cluster(self._api, state.id)
        self._lease = Lease(self._api, f"parlab-{state.id}", holder)
        self._cleaner = Cleaner(self._cluster, state)
        self._has_started = False
        self._rights = OwnRights(self._api)
        self._blocked: dict[Key, float] = {}
        """When a run that waits for a quota is tried again."""
        self._refused_since: float | None = None
        self._stuck_since: dict[str, float] = {}
        self._over_since: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}
        self._served: dict[Key, tuple[float, dict[int, Pod]]] = {}
        """When an attempt was served last, and its pods then."""
        self._cancelled_since: dict[str, float] = {}

    def cancel(self, cancel: Cancel) -> None:
        """End an attempt, whether it waits or runs."""
        super().cancel(cancel)
        self._serve_soon((cancel.run, cancel.attempt))

    def _serve_soon(self, key: Key) -> None:
        self._served.pop(key, None)
        self._polled_at = float("-inf")

    # --- the pods ----------------------------------------------------------------------------------------------------

    def _look(self, living: list[JobDir]) -> None:
        try:
            if not self._may_act(living):
                return
        except SystemRefused as error:
            self._refuse_all(living, str(error))
            return
        self._refused_since = None
        self._look_at_pods(living)

    def _may_act(self, living: list[JobDir]) -> bool:
        """Return whether this controller acts now. Raises SystemAway, SystemRefused."""
        self._read_rights()
        if not self._lease.holds():
            self._stand_by(living)
            return False
        if not self._has_started:
            self._cluster.start()
            self._has_started = True
        self._cluster.check()
        return True

    def _look_at_pods(self, living: list[JobDir]) -> None:
        pods = self._cluster.living()
        by_key: dict[Key, dict[int, Pod]] = {}
        for pod in pods:
            by_key.setdefault(pod.key, {})[pod.node_rank] = pod
        self._active_jobs = len(by_key)
        runs_by_key: dict[Key, list[JobDir]] = {}
        for run in living:
            runs_by_key.setdefault((run.run, run.attempt), []).append(run)
        now = time.monotonic()
        for key, runs in sorted(runs_by_key.items()):
            own = by_key.get(key, {})
            if self._is_quiet(key, runs, own, now):
                continue
            if time.monotonic() - now > PASS_S:
                break  # the lease must be renewed; the others are served in the next pass
            self._served[key] = (now, own)
            try:
                self._serve(key, runs, own)
            except OSError:
                log.exception("%s: its pods cannot be served; retrying", runs[0])
            except SystemRefused as error:
                log.error("%s: refused: %s", runs[0], error)
                self._waiting[key] = f"Kubernetes refuses: {error}"
        self._note_events(living)
        self._forget_pods({pod.uid for pod in pods})
        self._cleaner.clean(pods)

    def _forget_pods(self, present: set[str]) -> None:
        """Forget what is known of pods that are gone."""
        for facts in (self._cancelled_since, self._stuck_since):
            for uid in facts.keys() - present:
                del facts[uid]

    def _is_quiet(self, key: Key, runs: list[JobDir], pods: dict[int, Pod], now: float) -> bool:
        """Return whether nothing has happened to the pods of an attempt since it was served a moment ago."""
        served_at, before = self._served.get(key, (float("-inf"), {}))
        if _are_running(runs, pods):
            return now - served_at < QUIET_S
        return now - served_at < WAITING_S and len(pods) == len(runs) and pods == before

    def _note_events(self, living: list[JobDir]) -> None:
        """Write down the new events of pods, and of what creates them."""
        texts = self._cluster.new_events()
        for run in living if texts else ():
            if (lines := texts.get((run.run, run.attempt, run.node_rank))) and run.exists:
                EventLog(run).add(lines)

    def _append_end(self, run: RunDir, state: str, reason: str, *, is_consequence: bool = False) -> None:
        EventLog(run).close()
        super()._append_end(run, state, reason, is_consequence=is_consequence)

    def _stand_by(self, living: list[JobDir]) -> None:
        """Leave the pods to the controller that has the lease."""
        for run in living:
            self._waiting[run.run, run.attempt] = f"controller {self._lease.other} of this state directory acts"

    def _read_rights(self) -> None:
        objects = self._cluster.objects(self._pool.objects)
        if not self._rights.look(objects, *self.further_rights):
            return
        if missing := self._rights.missing:
            log.error("the account may not %s in %s; %s", ", ".join(missing), self._pool.namespace, REMEDY)
        self._hardware["kubernetes"] = {
            "namespace": self._pool.namespace,
            "objects": objects,
            "image": self._pool.image,
            "missing_rights": self._rights.missing,
        }

    def _refuse_all(self, living: list[JobDir], reason: str) -> None:
        """End what is not submitted if the account may not even list pods."""
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        for run in living:
            key = run.run, run.attempt
            text = f"Kubernetes refuses: {reason}; {REMEDY}"
            self._waiting[key] = text
            if now - self._refused_since > FORBIDDEN_S and not self._is_submitted(key):
                self._end(run, "failed", f"cluster.pool {self._pool_name}: {text}")

    def _serve(self, key: Key, runs: list[JobDir], pods: dict[int, Pod]) -> None:
        record = self._jobs.job(*key)
        if not self._is_submitted(key) and pods and any(run.cancel_reason() is not None for run in runs):
            # Created by a controller that was killed before it could record this.
            objects = next(iter(pods.values())).owner or "pods"
            self._record(key, record, objects)
        if not self._is_submitted(key):
            if not self._is_behind_quota(key) or any(run.cancel_reason() is not None for run in runs):
                self._submit(key, runs, record)
            return
        open_runs = self._unreported(runs)
        waits = []
        for run in open_runs:
            pod = pods.get(run.node_rank)
            if pod is None:
                waits.append(self._without_pod(run, record))
            elif (silent_s := self._lost_s(run, pod)) is not None:
                self._settle_member(run, words.lost_with_node(pod, silent_s), is_consequence=False)
                if not pod.is_deleted:
                    self._cluster.delete_pod(pod)
            else:
                self._tell(run, pod)
                self._pass_on_cancel(run, pod)
                waits.append(self._wait_of(run, pod))
        text = next((wait for wait in waits if wait), "")
        if text:
            self._waiting[key] = text
        else:
            self._waiting.pop(key, None)

    def _tell(self, run: JobDir, pod: Pod) -> None:
        """Tell a pod what is new for it: it reads the directory of its run."""

    def _wait_of(self, run: JobDir, pod: Pod) -> str:
        """Return why a pod waits; end one that waits in vain."""
        wait = words.waiting(pod, self._cluster.events_of(pod.name))
        if wait is not None and pod.is_gated and (event := self._cluster.last_event_above(*pod.key)):
            wait = words.Wait(f"Kubernetes: {event}")
        if wait is None or not wait.is_stuck:
            self._stuck_since.pop(pod.uid, None)
            return wait.text if wait else ""
        now = time.monotonic()
        since = self._stuck_since.setdefault(pod.uid, now)
        if wait.is_hopeless or now - since > self._pool.image_s:
            self._end(run, "failed", wait.text)
            self._cluster.delete_pod(pod)
        return wait.text

    def _lost_s(self, run: JobDir, pod: Pod) -> float | None:
        """Return for how long nothing has come from a pod whose node is away, if that is too long."""
        if pod.is_deleted and not pod.is_running:
            # Nobody confirms its end: it was to start on a node that has gone.
            silent_s = time.monotonic() - self._cancelled_since.setdefault(pod.uid, time.monotonic())
            return silent_s if silent_s > self._pool.node_lost_s + manifests.AFTER_GRACE_S else None
        if not pod.is_node_away:
            return None
        silent_s = time.time() - _last_sign(run)
        return silent_s if silent_s > self._pool.node_lost_s else None

    def _pass_on_cancel(self, run: JobDir, pod: Pod) -> None:
        """Delete the pod of a cancelled run: at once if it has not started, else if it does not end by itself."""
        if run.cancel_reason() is None or pod.is_deleted:
            return
        now = time.monotonic()
        since = self._cancelled_since.setdefault(pod.uid, now)
        grace_s = float(run.read_launch().get("grace_s", 0)) + manifests.AFTER_GRACE_S + self.rest_s
        if now - since >= (grace_s if pod.is_running else 0.0):
            log.info("%s: deleting pod %s", run, pod.name)
            self._cluster.delete_pod(pod)

    # --- starting ----------------------------------------------------------------------------------------------------

    def _is_behind_quota(self, key: Key) -> bool:
        """Return whether a run waits for a quota, or behind one that does: two half of each would wait forever."""
        if not self._blocked or time.monotonic() >= self._blocked.get(key, float("inf")):
            return False
        if key not in self._blocked:
            self._waiting[key] = "waits behind a run that waits for a quota of the namespace"
        return True

    def _problems(self, config: RunConfig) -> list[Problem]:
        found = list(problems(config, self._pool, self._rights.missing, self._node.allowed.images))
        queue = config.kubernetes.queue
        if not found and queue and (reason := self._cluster.queue_problem(queue, config.kubernetes.queue_system)):
            found.append(Problem("kubernetes.queue", queue, reason))
        return found

    def _send(self, key: Key, runs: list[JobDir], config: RunConfig, record: JobRecord) -> None:
        objects = self._cluster.objects(self._pool.objects)
        order = self._order(key, runs, config)
        try:
            manifest = self._cluster.create(config, order, objects)
        except KubernetesRefused as error:
            self._was_refused(key, runs, config, error)
            return
        except SystemRefused as error:
            self._refuse(runs, str(error))
            return
        self._blocked.pop(key, None)
        for run in runs:
            run.write_launch({**run.read_launch(), "script": json.dumps(manifest, indent=1)})
        self._record(key, record, objects)
        self._active_jobs += 1
        self._waiting[key] = f"Kubernetes: {order.name} is submitted"
        log.info("%s: submitted as %s %s", runs[0], objects, order.name)

    def _record(self, key: Key, record: JobRecord, objects: str) -> None:
        record.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        record.write(id=manifests.job_name(self._jobs.id, *key), objects=objects)

    def _was_refused(self, key: Key, runs: list[JobDir], config: RunConfig, error: KubernetesRefused) -> None:
        if error.is_quota:
            text, is_hopeless = quota_text(str(error), self._pool.namespace)
            if is_hopeless:
                self._refuse(runs, f"kubernetes.resources: {text}")
                return
            self._blocked[key] = time.monotonic() + QUOTA_S
            self._waiting[key] = text
        elif error.is_forbidden and not self._rights.is_refused_for_good(key):
            self._waiting[key] = f"Kubernetes refuses: {error}; {REMEDY}"
        elif error.is_forbidden:
            self._refuse(runs, f"cluster.pool {self._pool_name}: Kubernetes refuses: {error}; {REMEDY}")
        else:
            self._refuse(runs, refusal(str(error), error.status, config))

    def _order(self, key: Key, runs: list[JobDir], config: RunConfig) -> manifests.Order:
        image = config.kubernetes.image or self._pool.image
        return manifests.Order(
            name=manifests.job_name(self._jobs.id, *key),
            state_id=self._jobs.id,
            run=key[0],
            attempt=key[1],
            run_directory=str(self._jobs.find(*key).path),
            state_directory=str(self._jobs.root),
            pool=self._pool_name,
            volume=self._pool.volume,
            image=self._pool.image,
            python=sys.executable,
            package_root=str(PACKAGE_ROOT),
            prefix=sys.prefix,
            account=(os.getuid(), os.getgid()) if os.getuid() else None,
            variables={"PARLAB_POD_IMAGE": image, **self._commands()},
            rest_s=self.rest_s,
        )

    def _commands(self) -> dict[str, str]:
        """Return where the pods find the commands that they may start."""
        if not (allowed := allowed_commands(os.environ)):
            return {}
        path = self._jobs.root / COMMANDS_FILE
        write_atomically(path, json.dumps(allowed))
        return {ALLOWED_COMMANDS: str(path)}

    # --- ending ------------------------------------------------------------------------------------------------------

    def _without_pod(self, run: JobDir, record: JobRecord) -> str:
        """Return why a member has no living pod yet; settle one whose pod has ended or is gone."""
        objects = record.read().get("objects", "pods")
        now = time.monotonic()
        if objects == "pods":
            name = manifests.pod_name(str(record.read()["id"]), run.node_rank)
            pod = self._cluster.pod(name)
        else:
            if now - self._asked_at.get(run.path.name, float("-inf")) < ASK_S:
                return self._waiting.get((run.run, run.attempt), "")
            self._asked_at[run.path.name] = now
            seen = {pod.node_rank: pod for pod in self._cluster.pods_of(run.run, run.attempt)}
            past = {pod.node_rank: pod for pod in self._cluster.past().values() if pod.key == (run.run, run.attempt)}
            pod = seen.get(run.node_rank)
            name = pod.name if pod else past[run.node_rank].name if run.node_rank in past else ""
            if not name and not run.started_at() and (text := self._wait_of_job(run, objects)):
                return text
        if pod is None or pod.is_over:
            self._settle_pod(run, name or str(record.read()["id"]), pod)
        return ""

    def _wait_of_job(self, run: JobDir, objects: str) -> str:
        """Return why a job has created no pod; empty if it is gone."""
        job = self._cluster.job(run.run, run.attempt, objects)
        if job is None:
            return ""
        if run.cancel_reason() is not None:
            self._cluster.delete_job(run.run, run.attempt, objects)
            return ""
        if event := self._cluster.last_event_above(run.run, run.attempt):
            return f"Kubernetes: {event}"
        name = job["metadata"]["name"]
        if job.get("spec", {}).get("suspend"):
            return f"Kubernetes: {name} is suspended: its queue has not admitted it yet"
        return f"Kubernetes: {name} has no pods yet"

    def _settle_pod(self, run: JobDir, name: str, pod: Pod | None, left: str = "") -> None:
        """Write the final report of a member whose pod has ended or is gone, in the words of Kubernetes and `left`."""
        now = time.monotonic()
        since = self._over_since.setdefault(run.path.name, now)
        has_started = bool(run.started_at())
        if has_started and not run.was_stopped and now - since < self._pace.settle_s:
            return
        last = pod or self._cluster.past().get(name)
        is_closed = self._cluster.is_closed(last.node) if last and pod is None else False
        past = words.Past(name, last, self._cluster.events_of(name), is_closed)
        outcome = words.ending(past, str(run.path), has_started=has_started, was_stopped=run.was_stopped)
        if is_consequence := outcome.state is RunState.CANCELLED and self._has_job_failed(run, last):
            outcome = words.ended_with_job(name)
        self._settle_member(run, outcome._replace(text=outcome.text + left), is_consequence=is_consequence)

    def _has_job_failed(self, run: JobDir, pod: Pod | None) -> bool:
        """Return whether a job has deleted a pod because another one of it has failed, or was started again."""
        if pod is None or not pod.owner:
            return False
        past = [each for each in self._cluster.past().values() if each.key == pod.key]
        others = [each for each in (*self._cluster.pods_of(*pod.key), *past) if each.node_rank != run.node_rank]
        return any(each.phase == "Failed" or each.ended_before for each in others)

    def _forget(self, held: set[Key]) -> None:
        names = {f"{run}-{attempt}" for run, attempt in held}
        for facts in (self._over_since, self._asked_at):
            for name in [name for name in facts if _key_name(name) not in names]:
                del facts[name]
        self._blocked = {key: at for key, at in self._blocked.items() if key in held}
        self._served = {key: served for key, served in self._served.items() if key in held}
        self._rights.forget(held)
        self._cleaner.leave(held)
        self._cluster.forget(held)
        super()._forget(held)


def _are_running(runs: list[JobDir], pods: dict[int, Pod]) -> bool:
    """Return whether all pods of an attempt run, and none asks for an answer."""
    own = [pods.get(run.node_rank) for run in runs]
    return all(pod and pod.is_running and not pod.is_deleted and not pod.is_node_away for pod in own)


def _key_name(name: str) -> str:
    return "-".join(name.split("-")[:2])


def _last_sign(run: JobDir) -> float:
    """Return when a run has last written something."""
    paths = [run.path, run.spool, *run.spool.glob("*")]
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)
