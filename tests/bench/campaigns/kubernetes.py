"""A pool of Kubernetes: the start of a gang, how late its pages are, and what a thousand pods cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import psutil
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.urls import reverse

from parlab.fleet import services
from parlab.lab.models import Experiment, Node, Run
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.series import store
from runners.node.kubernetes.pods import ATTEMPT, CONTROLLER, NODE_RANK, RUN, TTL
from runners.wire.trust import shared_key
from tests.bench import ROOT
from tests.bench.client import server
from tests.bench.database import new_attempt
from tests.bench.lists import PLAIN_FILES
from tests.bench.nodes import PIPELINE, Nodes, SeeingWorkers, broker, events_of, first_step
from tests.bench.result import Result, Scale, Unavailable
from tests.kubernetes.conftest import pod
from tests.kubernetes.controllers import Controller
from tests.kubernetes.plane.api import STRATEGIC, Object
from tests.kubernetes.plane.build import why_not
from tests.kubernetes.plane.cluster import Plane, running
from tests.kubernetes.plane.pods import END
from tests.kubernetes.without_volume.simulated import NODE, NUMBERS, Pods, Seen
from tests.patience import TRAINING_S, wait_for

POOL = "bench-kubernetes"
PORT = 29_512
PODS, HOLLOW = 1_000, "hollow"
WATCHED_S = 30.0
ENDED, FIRST_ENDED = 10_000, 1_000_000
POSTING, PROCESSES = 200, 4


class World:
    """A plane, the server's workers in this process, and a controller."""

    def __init__(self, plane: Plane, directory: Path, url: str, port: int) -> None:
        self.plane = plane
        self.namespace = plane.namespace("bench")
        self.controller = Controller(directory, url, plane, self.namespace)
        self.controller.environment |= {"TEST_SCRIPTS": "", "PARLAB_NODE_KEY": settings.NODE_KEY.decode()}
        self.controller.options = ("--pool", POOL, "--slots", str(2 * PODS))
        self.workers = SeeingWorkers(url)
        self.nodes = Nodes(self.workers, url, port)

    def start(self) -> None:
        """Start the controller and wait until the server knows it."""
        self.controller.start_daemon()
        self.workers.until(lambda: Node.objects.online().filter(pool=POOL).exists(), "the pool is online", TRAINING_S)

    def close(self) -> None:
        """End the controller and all pods."""
        self.workers.connection.release()
        with suppress(OSError):  # thousands take longer than a request; they end with the plane
            self.plane.clear(self.namespace)
        self.controller.close()
        for node in Node.objects.filter(pool=POOL):  # the next controller has the same name
            Node.objects.filter(pk=node.pk).update(name=f"ended-{node.pk}", pool="ended")

    def launch(self, sweep: dict[str, list[Any]] | None = None, **kubernetes: Any) -> list[Run]:
        """Launch runs of one pod, and dispatch them."""
        user, _ = User.objects.get_or_create(username="bench", defaults={"is_superuser": True})
        experiment = experiment_create(name=f"Pods {Experiment.objects.count()}", owner=user)
        cluster = {"pool": POOL, "nodes": 1, "device": "cpu"}
        parallel = {"engine": "pipeline", "pipeline_parallel_size": 1}
        data = {**PIPELINE, "parallel": parallel, "cluster": cluster, "kubernetes": kubernetes}
        config = config_save(experiment=experiment, data=data, sweep=sweep or {}, user=user)
        created = services.launch(config=config, user=user).created
        services.dispatch()
        return created


@contextmanager
def world() -> Iterator[World]:
    """Start everything, and end it."""
    if reason := why_not():
        raise Unavailable(reason)
    with (
        tempfile.TemporaryDirectory(prefix="parlab-pool-") as name,
        broker(Path(name)) as (url, port),
        running() as plane,
    ):
        built = World(plane, Path(name), url, port)
        try:
            built.start()
            yield built
        finally:
            built.close()


def gang_start_overhead_s(scale: Scale) -> Result:
    """Measure what parlab adds to three pods by hand, from the launch to the end of the first step."""
    repeats = scale.repeats(3)
    data = {**PIPELINE, "cluster": {"pool": POOL, "nodes": 3, "device": "cpu"}}
    ours, theirs = [], []
    with world() as built:
        for number in range(repeats):
            theirs.append(_by_hand(built, data, number))
            ours.append(built.nodes.run(data).first_step_s())
    against = f"three pods by hand: {median(theirs):.1f} s, parlab {median(ours):.1f} s"
    return Result(median(ours) - median(theirs), against, repeats)


def _by_hand(built: World, data: dict[str, Any], number: int) -> float:
    """Return the seconds from the first manifest to the end of the first step."""
    plane, name, space = built.plane, f"hand-{number}", built.namespace
    directory = built.controller.state_dir.parent / name
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({**data, "cluster": {"nodes": 3, "device": "cpu"}}))
    began = time.time()
    spec = {"clusterIP": "None", "selector": {"gang": name}, "publishNotReadyAddresses": True}
    plane.api.create(f"/api/v1/namespaces/{space}/services", {"metadata": {"name": name}, "spec": spec})
    for rank in range(3):
        plane.api.create(f"/api/v1/namespaces/{space}/pods", _rank(name, rank, directory))
    outputs: list[dict[str, Any]] = []

    def first_steps() -> bool:
        outputs[:] = [
            event
            for rank in range(3)
            for event in events_of(plane.output(space, f"{name}-{rank}").encode().rpartition(b"\n")[0])
            if event["event"] == "step" and event["step"] == 1
        ]
        return len(outputs) == 3

    wait_for(first_steps, "all ranks have done a step", TRAINING_S)
    plane.clear(space)
    return first_step(outputs) - began


def _rank(name: str, rank: int, directory: Path) -> Object:
    """Return the pod of one rank, with what torchrun needs."""
    torchrun = ["python", "-m", "torch.distributed.run", "--nnodes=3", f"--node-rank={rank}", "--nproc-per-node=1"]
    meeting = ["--rdzv-backend=static", f"--master-addr={name}-0.{name}", f"--master-port={PORT}"]
    command = [*torchrun, *meeting, "-m", "runners.engines.pipeline", "--config", f"{directory}/config.json"]
    variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    container = {"env": [{"name": key, "value": value} for key, value in variables.items()]}
    labels = {"labels": {"gang": name}}
    return pod(
        f"{name}-{rank}", *command, metadata=labels, container=container, hostname=f"{name}-{rank}", subdomain=name
    )


def pod_event_lag_s(scale: Scale) -> Result:
    """Measure the time from the moment at which the server of Kubernetes states why a pod waits to the page."""
    repeats = scale.repeats(10)
    lags = []
    with override_settings(STORAGES=PLAIN_FILES), world() as built:
        browser = Client(SERVER_NAME="127.0.0.1")
        browser.force_login(User.objects.get_or_create(username="bench", defaults={"is_superuser": True})[0])
        for _ in range(repeats):
            [run] = built.launch(resources={"nvidia.com/gpu": "16"})
            address = reverse("run", args=[run.experiment.slug, run.number])
            stated = built.workers.until(lambda: _is_stated(built), "the scheduler has a reason", TRAINING_S)
            built.workers.until(lambda: b"Insufficient" in browser.get(address).content, "the page has it", TRAINING_S)  # noqa: B023
            lags.append(time.monotonic() - stated)
            services.cancel(run=run)
            built.workers.until(lambda: not built.plane.pods(built.namespace), "the pod is gone", TRAINING_S)
    return Result(max(lags), f"worst of {repeats}; median {median(lags):.2f} s", repeats)


def _is_stated(built: World) -> float:
    """Return the time if a pod has a reason to wait; 0 before."""
    conditions = [each for item in built.plane.pods(built.namespace) for each in item["status"].get("conditions", [])]
    return time.monotonic() if any(each.get("reason") == "Unschedulable" for each in conditions) else 0.0


def thousand_pods_cores(scale: Scale) -> Result:
    """Measure the processor time of a controller of 1,000 runs whose pods run, per second."""
    count = scale.of(PODS)
    seconds = 5.0 if scale.is_quick else WATCHED_S
    with world() as built:
        built.plane.start_node(HOLLOW, is_hollow=True)
        built.plane.wait_for_node(HOLLOW, is_ready=True)
        began = time.monotonic()
        tolerations = [{"key": HOLLOW}]
        built.launch({"train.seed": list(range(count))}, node_selector={HOLLOW: "true"}, tolerations=tolerations)
        built.workers.until(lambda: _running(built) == count, f"{count} pods run", TRAINING_S)
        started_s = time.monotonic() - began
        daemon = psutil.Process(built.controller.daemons[-1].pid)
        before, began = daemon.cpu_times(), time.monotonic()
        while time.monotonic() < began + seconds:
            built.workers.serve(0.2)
        after, took_s = daemon.cpu_times(), time.monotonic() - began
    cores = (after.user + after.system - before.user - before.system) / took_s
    return Result(cores, f"{count} pods, all running after {started_s:.0f} s; {took_s:.0f} s", 1)


def ended_pods_delay_s(scale: Scale) -> Result:
    """Measure by how much later the pod of a new run is created beside 10,000 ended pods of earlier ones."""
    count, repeats = scale.of(ENDED), scale.repeats(3)
    with world() as built:
        built.plane.start_node(HOLLOW, is_hollow=True)
        built.plane.wait_for_node(HOLLOW, is_ready=True)
        before, idle = _created_s(built, repeats), _cores(built)
        built.controller.kill_daemon()  # the next one lists what is there
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda place: _end_one(built, FIRST_ENDED + place), range(count)))
        built.start()
        after, beside = _created_s(built, repeats), _cores(built)
        left = len(built.plane.pods(built.namespace))
    against = f"{before:.2f} s before and {after:.2f} s beside {left} ended pods"
    return Result(after - before, f"{against}; controller {idle:.3f} and {beside:.3f} cores", repeats)


def _created_s(built: World, repeats: int) -> float:
    """Return the median time from a launch to its pod."""
    times = []
    for _ in range(repeats):
        began = time.monotonic()
        [run] = built.launch(node_selector={HOLLOW: "true"}, tolerations=[{"key": HOLLOW}])
        built.workers.until(lambda: _dispatched(built, run), "there is a pod", TRAINING_S)  # noqa: B023
        times.append(time.monotonic() - began)
        services.cancel(run=run)
        built.workers.until(lambda: not built.controller.pod(run.pk), "the pod is gone", TRAINING_S)  # noqa: B023
    return median(times)


def _dispatched(built: World, run: Run) -> Object | None:
    services.dispatch()
    return built.controller.pod(run.pk)


def _cores(built: World, seconds: float = 10.0) -> float:
    """Return the processor time of the controller per second."""
    daemon = psutil.Process(built.controller.daemons[-1].pid)
    before, began = daemon.cpu_times(), time.monotonic()
    while time.monotonic() < began + seconds:
        built.workers.serve(0.2)
    after, took_s = daemon.cpu_times(), time.monotonic() - began
    return (after.user + after.system - before.user - before.system) / took_s


def _end_one(built: World, run: int) -> None:
    """Create a pod of the controller that has ended long ago, and stays for a month."""
    name = built.controller.pod_name(run)
    labels = {CONTROLLER: built.controller.state.id, RUN: str(run), ATTEMPT: "1", NODE_RANK: "0"}
    metadata = {"labels": labels, "annotations": {TTL: str(30 * 86400), END: "Completed"}}
    spec: dict[str, Any] = {"nodeName": HOLLOW, "tolerations": [{"key": HOLLOW}]}
    path = f"/api/v1/namespaces/{built.namespace}/pods"
    built.plane.api.create(path, pod(name, "true", metadata=metadata, **spec))
    built.plane.api.patch(f"{path}/{name}/status", {"status": {"phase": "Succeeded"}}, STRATEGIC)


def _running(built: World) -> int:
    services.dispatch()
    pods = built.plane.api.items(f"/api/v1/namespaces/{built.namespace}/pods", fieldSelector="status.phase=Running")
    return len(pods)


def posting_pods_lag_s(scale: Scale) -> Result:
    """Measure from a step in a pod to the answer that it is stored, over 200 pods without a volume at one server."""
    count, seconds = (20, 4.0) if scale.is_quick else (POSTING, WATCHED_S)
    attempts = [new_attempt() for _ in range(count)]
    with tempfile.TemporaryDirectory(prefix="parlab-posting-") as name, _posted_to(Path(name)) as url:
        key = shared_key(settings.NODE_KEY, NODE)
        groups = [[(each.run_id, each.number) for each in attempts[place::PROCESSES]] for place in range(PROCESSES)]
        own = key.id, key.secret.hex()
        pods = [Pods(url, own, group, f"{name}/{place}", seconds) for place, group in enumerate(groups)]
        seen = _simulated(pods)
    lags = sorted(lag for each in seen for lag in each.lags)
    errors = [error for each in seen for error in each.errors]
    steps, left = sum(each.steps for each in seen), sum(each.left for each in seen)
    stored = sum(info.points for each in attempts for info in store.metrics(each.pk) if info.metric == "loss")
    if left or stored != steps:
        raise RuntimeError(f"{stored} of {steps} steps are stored, {left} pods have not ended: {errors[:3]}")
    against = f"median {median(lags):.2f} s, worst {lags[-1]:.2f} s; {NUMBERS * steps / seconds:,.0f} points/s"
    return Result(lags[int(len(lags) * 0.99)], f"{against}, {len(errors)} errors {errors[:1] or ''}".strip(), 1)


@contextmanager
def _posted_to(directory: Path) -> Iterator[str]:
    """Start a Redis, and a server that knows the key of this process; yields the address of the server."""
    with broker(directory) as (url, _):
        own = {"PARLAB_NODE_KEY": settings.NODE_KEY.decode(), "PARLAB_SHARED_NODE_KEY": "1", "REDIS_URL": url}
        with mock.patch.dict(os.environ, own), server() as (address, _):
            yield address


def _simulated(pods: list[Pods]) -> list[Seen]:
    """Run pods, each group in a process."""
    command = [sys.executable, "-m", "tests.kubernetes.without_volume.simulated"]
    pipe, processes = subprocess.PIPE, list[subprocess.Popen[bytes]]()
    try:
        for group in pods:
            given = Path(f"{group.directory}.json")
            given.write_text(json.dumps(group._asdict()))
            with given.open() as stdin:
                processes.append(subprocess.Popen(command, cwd=ROOT, stdin=stdin, stdout=pipe))
        return [Seen(**json.loads(process.communicate()[0])) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
