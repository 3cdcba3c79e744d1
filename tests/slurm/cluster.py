"""A real Slurm cluster of several nodes on this machine, with its own munge, ports and directories."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from parlab.embedded import free_port
from runners.supervisor.processes import die_with
from tests.patience import wait_for

SBIN = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
NODES = ("n1", "n2", "n3")
APART = "n4"
"""Node of partition apart, which does not see the home directory."""
CPUS = 8
"""Processors that each node pretends to have: four runs of two ranks fit on it."""

_CONF = """\
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SlurmdParameters=config_overrides
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=2
# On a loaded machine ranks may take longer to end than the default of 60 s, after which their node takes no jobs.
UnkillableStepTimeout=900
InactiveLimit=0
MessageTimeout=3
MailProg=/bin/true
SlurmctldPidFile={root}/slurmctld.pid
SlurmctldLogFile={root}/slurmctld.log
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmdPidFile={root}/slurmd.%n.pid
SlurmdLogFile={root}/slurmd.%n.log
PluginDir={plugins}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=debug Nodes=n[1-3] Default=YES MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE State=UP
PartitionName=busy Nodes=n3 MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE State=UP
PartitionName=urgent Nodes=n[1-3] MaxTime=60 PriorityTier=10 PreemptMode=OFF State=UP
PartitionName=apart Nodes=n4 MaxTime=60 State=UP
"""


class Cluster:
    """Munge, a controller and a slurmd per node; all of them end with `close`."""

    def __init__(self) -> None:
        # Not pytest's directory: munge refuses a socket below a directory that others may write to, or not enter.
        self.root = Path(tempfile.mkdtemp(prefix="parlab-slurm-", dir="/var/tmp"))
        self.root.chmod(0o755)
        self.conf = self.root / "slurm.conf"
        self.home = self.root / "home"
        """Directory that the login node and the compute nodes except APART share."""
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf), "PATH": SBIN}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start everything and wait until all nodes are idle."""
        self._start_munge()
        ports = {node: free_port() for node in (*NODES, APART)}
        nodes = "\n".join(f"NodeName={n} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS}" for n, port in ports.items())
        plugins = next(path for path in Path("/usr/lib").glob("*/slurm*") if (path / "auth_munge.so").exists())
        self.conf.write_text(
            _CONF.format(
                controller_port=free_port(), munge=self._munge / "socket", root=self.root, plugins=plugins, nodes=nodes
            )
        )
        (self.root / "state").mkdir()
        self.home.mkdir()
        self.start_controller()
        for node in (*NODES, APART):
            (self.root / "spool" / node).mkdir(parents=True)
            self.start_node(node)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait until all nodes are up and have no job."""
        wait_for(self._is_idle, "all nodes are idle")

    def wait_until_up(self, node: str) -> None:
        """Wait until the controller gives a node jobs again."""
        state = ("sinfo", "--noheader", "--Node", f"--nodes={node}", "--partition=debug", "--format=%T")
        wait_for(lambda: not self.run(*state).startswith(("down", "unknown")), f"{node} is up")

    def start_controller(self) -> None:
        """Start slurmctld."""
        self._spawn("slurmctld", ["slurmctld", "-D", "-f", str(self.conf)])

    def stop_controller(self) -> None:
        """Stop slurmctld and wait until it has ended."""
        self._stop("slurmctld", signal.SIGTERM)

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node."""
        hide = f'mount -t tmpfs none {shlex.quote(str(self.home))} && exec "$0" "$@"'
        before = ["unshare", "--mount", "sh", "-c", hide] if node == APART else []
        self._spawn(node, [*before, "slurmd", "-D", "-f", str(self.conf), "-N", node])

    def kill_node(self, node: str) -> None:
        """Kill the slurmd of a node; its job steps go on."""
        self._stop(node, signal.SIGKILL)

    def kill_machine(self, node: str) -> None:
        """Kill the slurmd of a node, its job steps and all their processes, as a machine that loses its power."""
        self.kill_node(node)
        lost = self._of_node(node)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none reports the end of another
            for process in lost:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)

    @contextlib.contextmanager
    def impatient(self) -> Iterator[None]:
        """Let the controller give up a node after some seconds without an answer; its default is five minutes."""
        with self.settings("SlurmdTimeout=15"):
            yield

    @contextlib.contextmanager
    def settings(self, line: str) -> Iterator[None]:
        """Add a line to slurm.conf for a while."""
        self._reconfigure("ReturnToService=2", f"ReturnToService=2\n{line}")
        try:
            yield
        finally:
            self._reconfigure(f"\n{line}", "")

    def run(self, *argv: str) -> str:
        """Run a command of Slurm and return what it prints."""
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout.strip()

    def clear(self, *jobs: int | str) -> None:
        """Cancel jobs, or all, and wait until they have ended."""
        which = [str(job) for job in jobs]
        self.run("scancel", *(which or ["--user=root"]))
        listed = [f"--jobs={','.join(which)}"] if which else []
        wait_for(lambda: not self.run("squeue", "--noheader", *listed), "jobs have ended")

    def close(self) -> None:
        """End all processes and delete the directories."""
        with contextlib.suppress(Exception):
            self.run("scancel", "--user=root")
        for name in [*NODES, APART, "slurmctld"]:
            self._stop(name, signal.SIGTERM)
        self._stop("munged", signal.SIGTERM)
        for process in self._steps():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def log(self) -> str:
        """Return the end of the logs, for a failed test."""
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.root.glob("*.log")))

    @property
    def _munge(self) -> Path:
        return self.root / "munge"

    def _start_munge(self) -> None:
        user = pwd.getpwnam("munge")
        self._munge.mkdir(mode=0o755)
        key = self._munge / "key"
        key.write_bytes(secrets.token_bytes(256))
        key.chmod(0o400)
        for path in (self._munge, key):
            os.chown(path, user.pw_uid, user.pw_gid)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self._munge / name}" for option, name in files.items()]
        self._spawn("munged", ["munged", "--foreground", "--force", *options], user=user.pw_uid, group=user.pw_gid)
        wait_for((self._munge / "socket").exists, "munge answers")

    def _spawn(self, name: str, argv: list[str], *, user: int | None = None, group: int | None = None) -> None:
        program = shutil.which(argv[0], path=SBIN)
        assert program, f"{argv[0]} is not installed"
        with (self.root / f"{name}.out").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                user=user,
                group=group,
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),  # noqa: PLW1509  # also if the tests are killed
            )

    def _stop(self, name: str, number: signal.Signals) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _reconfigure(self, old: str, new: str) -> None:
        self.conf.write_text(self.conf.read_text().replace(old, new))
        self.run("scontrol", "reconfigure")

    def _of_node(self, node: str) -> list[psutil.Process]:
        """Return the processes of a node's jobs, and the steps that have started them."""
        found = dict[int, psutil.Process]()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                own = process.environ()
                if own.get("SLURM_CONF") == str(self.conf) and own.get("SLURMD_NODENAME") == node:
                    steps = [parent for parent in process.parents() if parent.name() == "slurmstepd"]
                    found |= {each.pid: each for each in (*steps, process)}
        return list(found.values())

    def _steps(self) -> list[psutil.Process]:
        """Return what a killed slurmd has left."""
        steps = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.name() == "slurmstepd" and process.environ().get("SLURM_CONF") == str(self.conf):
                    steps.append(process)
        return steps

    def _is_idle(self) -> bool:
        try:
            states = self.run("sinfo", "--noheader", "--Node", "--partition=debug,apart", "--format=%T").split()
        except (AssertionError, subprocess.TimeoutExpired):
            return False
        return states == ["idle"] * (len(NODES) + 1)
