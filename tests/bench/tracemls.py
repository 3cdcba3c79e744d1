"""Plain PyTorch scripts with planted causes: what parlab advises while they run, and what TraceML reports at the end.

Every script runs over two nodes, which are network namespaces with a host name of their own, without a tool, with
parlab's client and with TraceML (PARLAB_TRACEML_PYTHON names the Python of an environment with torch and TraceML).
"""

from __future__ import annotations

import json
import os
import re
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

from parlab.client.http import Connection
from parlab.lab.models import TrackedRun
from runners.links.ability import try_here
from runners.links.namespaces import DEVICE, address
from tests.bench import environments
from tests.bench.client import server
from tests.bench.result import Result, Scale, Unavailable

VERSION = "traceml-ai==0.5.0"
SCRIPT = Path(__file__).with_name("plain_script.py")
ROOT = SCRIPT.parents[2]
NODES, PORT = 2, 29_500
LIMIT_S = 600.0
TOOLS, TRIES, ROUNDS = ("none", "parlab", "traceml"), 4, 1
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
    "rank": Cause(70, "rank", ("COMPUTE_STRAGGLER", "STRAGGLER")),
    "batch": Cause(400, "batch", ("BATCH", "LAUNCH", "OPTIMIZER")),
    "memory": Cause(400, "memory", ("CREEP", "MEMORY_RISING")),
    "network": Cause(150, "network", ("COMMUNICATION", "NETWORK", "SYNC"), gbps=0.05),
    "checkpoint": Cause(200, "checkpoint", ("CHECKPOINT",)),
}


DEFAULT_CAUSES = ("rank",)
"""All six causes take minutes each: PARLAB_CAUSES=all."""


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
    launch_s: float
    """Time of the processor of all processes of both nodes, from the start of the launchers to their ends."""
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
    chosen = [name for name in os.environ.get("PARLAB_CAUSES", "").split(",") if name] or list(DEFAULT_CAUSES)
    if chosen == ["all"]:
        chosen = list(CAUSES)
    rounds = int(os.environ.get("PARLAB_ROUNDS", ROUNDS))
    rows: dict[str, dict[str, list[Ran]]] = {name: {tool: [] for tool in TOOLS} for name in chosen}
    with tempfile.TemporaryDirectory(prefix="parlab-traceml-") as folder, server() as (url, token):
        peer = _peer()
        for number in range(rounds):
            for name, row in rows.items():
                for tool in TOOLS:
                    row[tool].append(_started(Bench(name, tool, number, Path(folder), url, token, peer)))
                _print(name, {tool: ran[-1:] for tool, ran in row.items()})
    for name, row in rows.items():
        _print(f"{name}, median of {rounds}", row)
    named = [sum(ran.is_right for row in rows.values() for ran in row[tool]) for tool in TOOLS[1:]]
    step_s, launch_s = (
        [median(costs) for costs in zip(*(_costs_s(row, name) for row in rows.values()), strict=True)]
        for name in ("processor_s", "launch_s")
    )
    against = (
        f"{named[1]} by TraceML; processor per step {1e3 * step_s[0]:.2g} ms, theirs {1e3 * step_s[1]:.2g};"
        f" per launch {launch_s[0]:.2g} s, theirs {launch_s[1]:.2g}"
    )
    return Result(named[0], f"of {rounds * len(rows)}", against, named[0] / max(1, named[1]), rounds)


def _print(title: str, row: Mapping[str, list[Ran]]) -> None:
    parlab, traceml = row["parlab"], row["traceml"]
    step_ms = [1e3 * median(ran.step_s for ran in row[tool]) for tool in TOOLS]
    step_cost_s, launch_s = (_costs_s(row, name) for name in ("processor_s", "launch_s"))
    print(
        f"{title}: parlab {sum(ran.is_right for ran in parlab)} of {len(parlab)}: {parlab[-1].named!r},"
        f" gain {', '.join(ran.gain for ran in parlab)}, {', '.join(ran.at for ran in parlab)};"
        f" TraceML {sum(ran.is_right for ran in traceml)}: {traceml[-1].named};"
        f" step {step_ms[0]:.1f} ms, with parlab {step_ms[1]:.1f}, with TraceML {step_ms[2]:.1f};"
        f" processor per step {1e3 * step_cost_s[0]:+.2f} and {1e3 * step_cost_s[1]:+.2f} ms,"
        f" per launch {launch_s[0]:+.2f} and {launch_s[1]:+.2f} s",
        flush=True,
    )


def _costs_s(row: Mapping[str, list[Ran]], name: str) -> list[float]:
    """Return the median of a time with parlab and with TraceML, minus that without a tool."""
    none, *tools = (median(getattr(ran, name) for ran in row[tool]) for tool in TOOLS)
    return [each - none for each in tools]


def _peer() -> Peer:
    if python := os.environ.get("PARLAB_TRACEML_PYTHON"):
        return Peer(python, [python, str(Path(python).with_name("traceml"))], "")
    # Beside the torch of this environment: TraceML does not require one of its own.
    packages = environments.packages_with(VERSION)
    return Peer(sys.executable, [sys.executable, str(packages / "bin" / "traceml")], str(packages))


class Bench(NamedTuple):
    """One run of a script."""

    cause: str
    tool: str
    number: int
    folder: Path
    url: str
    token: str
    peer: Peer

    @property
    def place(self) -> Path:
        return self.folder / f"{self.cause}-{self.tool}-{self.number}"

    @property
    def run_id(self) -> str:
        return f"plain-{self.cause}-{self.number}-{os.getpid()}"

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
    ran = Ran(median(steps), numbers["processor_s"] / len(steps), _launch_s(bench), "", False)
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
    output, times, end = (f"{bench.place}/{name}-{{node}}" for name in ("output", "times", "end"))
    command = f"{home} {bench.command()} > {output} 2>&1"
    # A node whose command has ended waits for the other one.
    inner = f"hostname node-{{node}}; {command}; times > {times}; echo > {end}; sleep {LIMIT_S:g}"
    relay = str(urlsplit(bench.url).port)
    nodes = [sys.executable, "-m", "runners.links.nodes", "--count", str(NODES), "--relay", relay, *rate, "--"]
    process = subprocess.Popen(
        [*nodes, "unshare", "--uts", "sh", "-c", inner], env=bench.variables(), cwd=ROOT, start_new_session=True
    )
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


def _launch_s(bench: Bench) -> float:
    """Add up what `times` of the shell prints: minutes and seconds, user and system, of the shell and its children."""
    text = " ".join(path.read_text() for path in bench.place.glob("times-*"))
    return sum(60 * int(minutes) + float(rest) for minutes, rest in re.findall(r"(\d+)m([\d.]+)s", text))


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
