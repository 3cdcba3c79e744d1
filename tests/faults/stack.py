"""All processes of parlab on this machine: database, Redis, two workers, beat, web, three daemons, a Slurm cluster."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from parlab.embedded import free_port, redis_command
from runners.node.rundir import RunDir, StateDir
from runners.supervisor.processes import MARKER, die_with
from tests.faults import clock, ticker
from tests.faults.disks import POSTGRES_MIB, SIZE_MIB, Disk
from tests.faults.postgres import Postgres
from tests.faults.proxy import Proxy
from tests.patience import PATIENCE_S
from tests.slurm.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
NODES = ("n0", "n1", "n2")
WORKERS = ("worker", "worker2")
LOGIN = "login"
WEB = "web"
KEY = "a key that both sides know"


@dataclass
class Service:
    """A process that is started again after it was killed."""

    name: str
    argv: list[str]
    environment: dict[str, str]
    log: Path
    root: Path = ROOT
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        """Start the process, unless it runs: two faults of one moment may have ended it."""
        if self.is_running:
            return
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                env=self.environment,
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),  # noqa: PLW1509  no threads run here
            )

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def pause(self) -> None:
        """Stop the process until `resume`, as a machine that is out of memory does."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.is_running:
            self.process.send_signal(number)


class Stack:
    """Everything that can be killed, with the directories of one campaign."""

    def __init__(self, root: Path, *, has_slurm: bool, has_postgres: bool = False) -> None:
        self.root = root
        self.disks: dict[str, Disk] = {}
        self._disk("database", POSTGRES_MIB if has_postgres else SIZE_MIB)
        self.database = Postgres(root / "database") if has_postgres else None
        self.proxies: dict[str, Proxy] = {}
        self.witness = root / "witness"
        self.cluster = Cluster() if has_slurm else None
        self.services: dict[str, Service] = {}
        self._reporter: Service | None = None
        self.states: dict[str, Path] = {}
        self.redis_port = free_port()
        self.environment = {
            **os.environ,
            "REDIS_URL": f"redis://127.0.0.1:{self.redis_port}/0",
            "DATABASE_URL": self.database.start() if self.database else f"sqlite:///{root}/database/db.sqlite3",
            "PARLAB_SHARED_NODE_KEY": "1",
            "PARLAB_NODE_KEY": KEY,
            "PARLAB_ALLOWED_COMMANDS": str(root / "allowed.json"),
            "PYTHONPATH": str(ROOT),
            "TEST_SCRIPTS": "",
            "PARLAB_HEALTH_SWEEPS": "0",
            "PARLAB_BAD_NODE_ATTEMPTS": "0",  # its nodes are killed on purpose
        }
        self._disk("redis")
        self._service("redis", redis_command(self.redis_port, root / "redis"))

    @property
    def command(self) -> list[str]:
        """Return the command of all runs, with two ranks on each node."""
        return [sys.executable, str(Path(ticker.__file__)), "2", str(self.witness)]

    def start(self) -> None:
        """Start everything."""
        self.witness.mkdir()
        Path(self.environment["PARLAB_ALLOWED_COMMANDS"]).write_text(json.dumps([self.command]))
        celery = [sys.executable, "-m", "celery", "-A", "parlab.celery"]
        quiet = ["--without-gossip", "--without-mingle", "--loglevel=INFO"]
        for worker in WORKERS:
            argv = [*celery, "worker", f"--hostname={worker}@%h", "--pool=solo", "--queues=control,ingest,backlog"]
            self._service(worker, [*argv, *quiet], clock.environment(self.root / f"{worker}.clock"))
        self._service("beat", [*celery, "beat", "--pidfile="], clock.environment(self.root / "beat.clock"))
        self._web()
        for number, node in enumerate(NODES):
            self._disk(node)
            proxy = self.proxies[node] = Proxy(free_port(), self.redis_port)
            proxy.start()
            more = clock.environment(self.root / f"{node}.clock")
            more |= {"REDIS_URL": f"redis://127.0.0.1:{proxy.port}/0"}
            self._daemon(node, self.root / node, ["--slots", "2", "--address", f"127.0.0.{number + 2}"], more)
        if self.cluster is not None:
            self.cluster.start()
            slurm = {name: self.cluster.environment[name] for name in ("SLURM_CONF", "PATH")}
            slurm |= {"PARLAB_SLURM_POLL_S": "0.5", "PARLAB_SLURM_SETTLE_S": "2"}
            options = ["--slurm", "--partition", "debug", "--pool", "hpc", "--slots", "4"]
            self._daemon(LOGIN, self.cluster.home / LOGIN, options, slurm)
        for service in self.services.values():
            service.start()

    def start_reporter(self, token: str) -> None:
        """Start the script that reports over HTTP, through a proxy."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PARLAB_", "SLURM_"))}
        variables |= {
            "PARLAB_URL": f"http://127.0.0.1:{self.proxies[WEB].port}",
            "PARLAB_TOKEN": token,
            "PARLAB_HOME": str(self.root / "reporter"),
            "PYTHONPATH": str(ROOT),
            "NO_PROXY": "*",
        }
        argv = [sys.executable, "-m", "tests.faults.reporter", str(self.witness / "reporter")]
        self._reporter = Service("reporter", argv, variables, self.root / "reporter.log")
        self._reporter.start()

    def reported(self) -> int:
        """Return the last step that was reported over HTTP, as the script noted itself."""
        try:
            return int((self.witness / "reporter").read_text() or 0)
        except FileNotFoundError:
            return 0

    def end_reporter(self) -> int:
        """Let the script send what is left and end; return its exit code."""
        assert self._reporter is not None
        assert self._reporter.process is not None
        self._reporter.process.terminate()
        return self._reporter.process.wait(PATIENCE_S)

    def _web(self) -> None:
        port = free_port()
        proxy = self.proxies[WEB] = Proxy(free_port(), port)
        proxy.start()
        web = ["uvicorn", "parlab.asgi:application", "--port", str(port), "--lifespan", "off", "--no-access-log"]
        self._service(WEB, [sys.executable, "-m", *web], clock.environment(self.root / f"{WEB}.clock"))

    def close(self) -> None:
        """End everything, and what its runs have left."""
        with contextlib.ExitStack() as closing:  # whatever fails, the rest is ended too, the last line first
            if self.cluster is not None:
                closing.callback(self.cluster.close)
            for disk in self.disks.values():
                closing.callback(disk.unmount)
            if self.database is not None:
                closing.callback(self.database.stop_at_once)
            for proxy in self.proxies.values():
                closing.callback(proxy.stop)
            closing.callback(self._kill_left)
            if self._reporter is not None:
                closing.callback(self._reporter.end)
            for name in ["redis", *WORKERS, *self.daemons, "beat", WEB]:
                if name in self.services:
                    closing.callback(self.services[name].end, signal.SIGTERM)
                    closing.callback(self.services[name].resume)
            for disk in self.disks.values():
                closing.callback(disk.free)
            if self.cluster is not None:
                closing.callback(self._clear_cluster)

    def _clear_cluster(self) -> None:
        with contextlib.suppress(Exception):
            if self.cluster is not None:
                self.cluster.clear()

    def _kill_left(self) -> None:
        for _, process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    @property
    def daemons(self) -> list[str]:
        """Return the names of the nodes with a daemon."""
        return list(self.states)

    def state(self, node: str) -> StateDir:
        return StateDir(self.states[node])

    def runs(self, node: str) -> list[RunDir]:
        """Return the attempts that a node holds."""
        return self.state(node).runs()

    def supervisor(self, run: RunDir) -> psutil.Process | None:
        """Return the living supervisor of an attempt."""
        with contextlib.suppress(psutil.Error):
            process = run.supervisor()
            if process is not None and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    def processes(self) -> list[tuple[tuple[int, int], psutil.Process]]:
        """Return the living processes of runs, including supervisors and srun, by (run, attempt)."""
        ids = {self.state(node).id for node in self.states}
        roots = [f"{path}/runs/" for path in self.states.values()]
        matched = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError, ValueError):
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                node, _, name = process.environ().get(MARKER, "").partition(":")
                if node in ids:
                    run, attempt = name.split("/")[:2]
                    matched.append(((int(run), int(attempt)), process))
                    continue
                paths = [argument for argument in process.cmdline() if argument.startswith(tuple(roots))]
                if paths:
                    directory = RunDir(Path(paths[0]))
                    matched.append(((directory.run, directory.attempt), process))
        return matched

    def log(self) -> str:
        """Return the end of all logs, for a failed campaign."""
        tails = [
            f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(self.root.glob("*.log"))
        ]
        return "\n".join([*tails, self.cluster.log() if self.cluster else ""])

    def keep_logs(self, directory: Path) -> None:
        """Copy all logs, which are gone with the directory of the campaign."""
        directory.mkdir(parents=True, exist_ok=True)
        slurm = self.cluster.root.glob("*.log") if self.cluster else ()
        supervisors = self.root.glob("n?/runs/*/supervisor.log")
        for path in [*self.root.glob("*.log"), *self.root.glob("database/postgres/log"), *slurm, *supervisors]:
            with contextlib.suppress(OSError):
                shutil.copyfile(path, directory / f"{path.parent.name}-{path.name}")

    def _service(self, name: str, argv: list[str], more: dict[str, str] | None = None) -> None:
        environment = {**self.environment, **(more or {})}
        self.services[name] = Service(name, argv, environment, self.root / f"{name}.log")

    def _disk(self, name: str, size_mib: int = SIZE_MIB) -> None:
        self.disks[name] = Disk(self.root / name, size_mib)
        self.disks[name].mount()

    def _daemon(self, node: str, state: Path, options: list[str], more: dict[str, str] | None = None) -> None:
        argv = [sys.executable, "-m", "tests.runners.node_process", "--node", node, "--state-dir", str(state)]
        self._service(node, [*argv, *options], more)
        self.states[node] = state
