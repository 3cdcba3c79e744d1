"""Plain PyTorch scripts with planted causes: what parlab advises while they run, and what TraceML reports at the end.

Every script runs over two nodes, which are network namespaces with a host name of their own, without a tool, with
parlab's client and with TraceML, which pip installs into a temporary directory (PARLAB_TRACEML_PYTHON names the Python
of an environment with torch and TraceML).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from parlab.lab.models import TrackedRun
from runners.client.http import Connection
from runners.links.ability import try_here
from runners.links.namespaces import DEVICE, address
from tests.bench.client import server
from tests.bench.result import Result, Scale, Unavailable

VERSION = "traceml-ai==0.5.0"
SCRIPT = Path(__file__).with_name("plain_script.py")
ROOT = SCRIPT.parents[2]
NODES, PORT = 2, 29_500
LIMIT_S = 600.0
TOOLS, TRIES = ("none", "parlab", "traceml"), 4
_ENDED_S = 60.0
"""Time that the second node may end after the first."""


class Cause(NamedTuple):
    """A planted cause, and the words of both tools that name it."""

    steps: int
    advice: str
    """Kind of parlab's advice."""
    verdicts: tuple[str, ...]
    """Parts of TraceML's kinds of diagnoses."""
    gbps: float | None = None
    """Rate of the links; None: no limit."""


CAUSES: Mapping[str, Cause] = {
    "loading": Cause(150, "loading", ("INPUT",)),
    "rank": Cause(200, "rank", ("COMPUTE_STRAGGLER", "STRAGGLER")),
    "batch": Cause(400, "batch", ("BATCH", "LAUNCH", "OPTIMIZER")),
    "memory": Cause(400, "memory", ("CREEP", "MEMORY_RISING")),
    "network": Cause(150, "network", ("COMMUNICATION", "NETWORK", "SYNC"), gbps=0.05),
    "checkpoint": Cause(200, "checkpoint", ("CHECKPOINT",)),
}


class NotStarted(RuntimeError):
    """The script printed no steps."""


class Peer(NamedTuple):
    """How to start TraceML and the scripts: a Python with torch, TraceML's command and its packages."""

    python: str
    command: list[str]
    packages: str


class Ran(NamedTuple):
    """A script that has ended."""

    step_s: float
    processor_s: float
    """Of the first rank, per step."""
    named: str
    """What the tool names first."""
    is_right: bool
    gain: str = ""
    at: str = ""
    """When it was named."""


def traceml_causes(scale: Scale) -> Result:
    """Count the causes that parlab names while a script runs, first or second; against TraceML's report at the end."""
    if scale.is_quick:
        raise Unavailable("--quick installs nothing")
    if why_not := try_here().why_not:
        raise Unavailable(f"no network namespaces: {why_not}")
    chosen = [name for name in os.environ.get("PARLAB_CAUSES", "").split(",") if name] or list(CAUSES)
    with tempfile.TemporaryDirectory(prefix="parlab-traceml-") as folder, server() as (url, token):
        peer = _peer(Path(folder))
        rows = {}
        for name in chosen:
            rows[name] = {tool: _started(Bench(name, tool, Path(folder), url, token, peer)) for tool in TOOLS}
            _print(name, rows[name])
    right = {tool: sum(row[tool].is_right for row in rows.values()) for tool in ("parlab", "traceml")}
    cost = {tool: median(_cost_ms(row, tool) for row in rows.values()) for tool in ("parlab", "traceml")}
    against = f"{right['traceml']} by TraceML; processor per step {cost['parlab']:.2g} ms, theirs {cost['traceml']:.2g}"
    return Result(right["parlab"], f"of {len(rows)}", against, right["parlab"] / max(1, right["traceml"]), 1)


def _print(name: str, row: Mapping[str, Ran]) -> None:
    parlab, traceml = row["parlab"], row["traceml"]
    print(
        f"{name}: parlab {'named' if parlab.is_right else 'not'}: {parlab.named!r}, gain {parlab.gain}, {parlab.at};"
        f" TraceML {'named' if traceml.is_right else 'not'}: {traceml.named}; step {1e3 * row['none'].step_s:.1f} ms,"
        f" with parlab {1e3 * parlab.step_s:.1f}, with TraceML {1e3 * traceml.step_s:.1f}; processor per step"
        f" {_cost_ms(row, 'parlab'):+.2f} and {_cost_ms(row, 'traceml'):+.2f} ms",
        flush=True,
    )


def _cost_ms(row: Mapping[str, Ran], tool: str) -> float:
    return 1e3 * (row[tool].processor_s - row["none"].processor_s)


def _peer(folder: Path) -> Peer:
    if python := os.environ.get("PARLAB_TRACEML_PYTHON"):
        return Peer(python, [python, str(Path(python).with_name("traceml"))], "")
    # Beside the torch of this environment: TraceML does not require one of its own.
    packages = folder / "packages"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--target", str(packages)]
    done = subprocess.run([*pip, VERSION], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Unavailable(f"{VERSION} cannot be installed: {reason[:200]}")
    return Peer(sys.executable, [sys.executable, str(packages / "bin" / "traceml")], str(packages))


class Bench(NamedTuple):
    """One run of a script."""

    cause: str
    tool: str
    folder: Path
    url: str
    token: str
    peer: Peer

    @property
    def place(self) -> Path:
        return self.folder / f"{self.cause}-{self.tool}"

    @property
    def run_id(self) -> str:
        return f"plain-{self.cause}-{os.getpid()}"

    def variables(self) -> dict[str, str]:
        own = {"PARLAB_URL": self.url, "PARLAB_TOKEN": self.token, "NO_PROXY": "*", "OMP_NUM_THREADS": "1"}
        paths = [path for path in (self.peer.packages, str(ROOT)) if path]
        place = {"PYTHONPATH": os.pathsep.join(paths), "GLOO_SOCKET_IFNAME": DEVICE, "TP_SOCKET_IFNAME": DEVICE}
        return {**os.environ, **own, **place}

    def command(self) -> str:
        """Return the command of a node, with {node} for its number."""
        where = ["--nnodes", str(NODES), "--node-rank", "{node}", "--nproc-per-node", "1"]
        where += ["--master-addr", address(0), "--master-port", str(PORT)]
        script = [str(SCRIPT)]
        arguments = [self.tool, self.cause, str(CAUSES[self.cause].steps), self.run_id]
        if self.tool == "traceml":
            logs = ["--run-name", self.cause, "--logs-dir", str(self.place), "--aggregator-bind-host", "0.0.0.0"]
            plain = [*logs, "--no-save-training-output", *script, "--args", *arguments]
            return shlex.join([*self.peer.command, "run", *where, *plain])
        return shlex.join([self.peer.python, "-m", "torch.distributed.run", *where, *script, *arguments])


def _started(bench: Bench) -> Ran:
    """Run a script; TraceML gives up on a busy machine on which its own server takes long to start."""
    for _ in range(TRIES - 1):
        try:
            return _ran(bench)
        except NotStarted:
            shutil.rmtree(bench.place)
    return _ran(bench)


def _ran(bench: Bench) -> Ran:
    """Run a script over both nodes; ask for advice while it runs."""
    bench.place.mkdir()
    advised = Advised(bench)
    with _nodes(bench) as process:
        deadline = time.monotonic() + LIMIT_S
        while not all((bench.place / f"end-{node}").exists() for node in range(NODES)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{bench.cause} with {bench.tool} has not ended: {_output(bench)[-2000:]}")
            if bench.tool == "parlab":
                advised.look()
            time.sleep(1)
    line = next((line for line in _output(bench).splitlines() if line.startswith('{"steps_s"')), None)
    if line is None:
        raise NotStarted(f"{bench.cause} with {bench.tool} has printed no steps: {_output(bench)[-2000:]}")
    numbers = json.loads(line)
    steps = numbers["steps_s"]
    ran = Ran(median(steps), numbers["processor_s"] / len(steps), "", False)
    if bench.tool == "parlab":
        return ran._replace(named=advised.title, is_right=advised.is_right, gain=advised.gain, at=advised.at)
    if bench.tool == "traceml":
        kinds = _diagnoses(bench.place)
        is_right = any(word in kind for kind in kinds for word in CAUSES[bench.cause].verdicts)
        return ran._replace(named=", ".join(kinds), is_right=is_right)
    return ran


@contextmanager
def _nodes(bench: Bench) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command on every node, in a namespace with a host name of its own."""
    gbps = CAUSES[bench.cause].gbps
    rate = ["--bandwidth-gbps", str(gbps)] if gbps else []
    home = f"PARLAB_HOME={bench.place}/home-{{node}}"
    output, end = f"{bench.place}/output-{{node}}", f"{bench.place}/end-{{node}}"
    # A node whose command has ended waits for the other one.
    inner = f"hostname node-{{node}}; {home} {bench.command()} > {output} 2>&1; echo $? > {end}; sleep {LIMIT_S:g}"
    relay = str(urlsplit(bench.url).port)
    nodes = [sys.executable, "-m", "runners.links.nodes", "--count", str(NODES), "--relay", relay, *rate, "--"]
    command = [*nodes, "unshare", "--uts", "sh", "-c", inner]
    process = subprocess.Popen(command, env=bench.variables(), cwd=ROOT, start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_ENDED_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _output(bench: Bench) -> str:
    return "".join(path.read_text(errors="replace") for path in sorted(bench.place.glob("output-*")))


class Advised:
    """What parlab advises while a script runs."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._connection = Connection(bench.url, bench.token)
        self.title, self.gain, self.at, self.is_right = "", "", "not while it ran", False

    def look(self) -> None:
        """Ask for the advice as it is now; keep the first answer whose first or second advice names the cause."""
        if self.is_right:
            return
        tracked = TrackedRun.objects.select_related("run__experiment").filter(uuid=self._bench.run_id).first()
        if tracked is None or tracked.run.state != "running":
            return
        path = f"/api/experiments/{tracked.run.experiment.slug}/runs/{tracked.run.number}/advice/"
        rows: list[dict[str, Any]] = self._connection.json("GET", path)["advice"]
        if rows and not self.title:
            self._keep(rows[0])
        for row in rows[:2]:
            if row["kind"] == CAUSES[self._bench.cause].advice:
                self._keep(row)
                step = tracked.run.attempts.values_list("last_step", flat=True).first()
                self.is_right, self.at = True, f"at step {step}"
                return

    def _keep(self, row: dict[str, Any]) -> None:
        self.title, self.gain = row["title"], f"{100 * row['gain']:.0f} %"


def _diagnoses(folder: Path) -> list[str]:
    """Return the kinds of all diagnoses of TraceML's report, without those of a healthy section."""
    reports = sorted(folder.rglob("final_summary.json"))
    if not reports:
        return ["no report"]
    kinds = [kind for report in reports for kind in _kinds(json.loads(report.read_text()))]
    return list(dict.fromkeys(kinds)) or ["nothing"]


_HEALTHY = ("NORMAL", "BALANCED", "NO_GPU", "NO_DATA", "NO_CLEAR_PERFORMANCE_BOTTLENECK")


def _kinds(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("kind"), str) and "severity" in value and value["kind"] not in _HEALTHY:
            yield value["kind"]
        for each in value.values():
            yield from _kinds(each)
    elif isinstance(value, list):
        for each in value:
            yield from _kinds(each)
