"""One launcher, mpirun or srun, for the ranks of all nodes: each runs `python -m runners.node.launch.span LAUNCHER`.

The launcher itself is called on the first node only. The other nodes connect to the first one at the port that the
members have agreed on. mpirun starts its daemon on each host of the hostfile by a remote shell: `span_agent` takes the
place of ssh, and hands the command to this program on the node. srun reaches the nodes of its job by itself.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from runners.engines.process.events import Printer
from runners.node.launch.ports import REFUSED, end_like, free_port, refused
from runners.node.launch.share import Share
from runners.node.launch.span_node import AGENT, SpanNode, Wire, labelled_rank, without_slurm
from runners.supervisor import processes

MEET_WITHIN_S = 60.0
"""Time for all nodes to connect to the first one."""
TICK_S = 0.02
RETRY_S = 0.1


class First:
    """The first node: it calls the launcher."""

    def __init__(self, argv: list[str], share: Share) -> None:
        self.node = SpanNode(share)
        self.share = share
        self.is_mpirun = Path(argv[0]).name != "srun"
        self.argv = argv
        self.others: dict[int, Wire] = {}
        self.waiting: list[Wire] = []
        """Connections that have not named themselves yet."""
        self.agents: dict[int, Wire] = {}
        self.cause: int | None = None
        self.reason = ""
        self.port = free_port()

    def run(self) -> int:
        """Return the exit code of the launcher."""
        try:
            listener = self._listen()
        except OSError as error:
            return taken(self.share, error)
        with listener, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agents:
            name = f"parlab-span-{secrets.token_hex(16)}"
            agents.bind(f"\0{name}")
            agents.listen(64)
            deadline = time.monotonic() + MEET_WITHIN_S
            while len(self.others) < self.share.nodes - 1:
                self._serve([listener])
                if time.monotonic() > deadline:
                    return self._missing()
            for other in self.others.values():
                other.send(port=self.port)
            self._serve([])  # srun's ranks look for the variables of their node
            try:
                launcher = self._start(name)
            except OSError as error:
                return self._end(refused(self.argv[0], str(error.strerror)))
            while (code := launcher.poll()) is None:
                self._serve([agents])
                self._look_at_daemon()
                if self.reason and self.cause is None:
                    launcher.terminate()
        return self._end(code)

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.share.address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.share.address, self.share.port))
            listener.listen(self.share.nodes)
        except OSError:
            listener.close()
            raise
        return listener

    def _start(self, agents: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **self.node.environment(self.port), AGENT: agents}
        if self.is_mpirun:
            command = f"{sys.executable} -m runners.node.launch.span_agent"
            rsh = {"PRTE_MCA_plm": "ssh", "PRTE_MCA_plm_ssh_agent": command, "PRTE_MCA_plm_ssh_no_tree_spawn": "1"}
            rsh |= {"OMPI_MCA_plm": "rsh", "OMPI_MCA_plm_rsh_agent": command, "OMPI_MCA_plm_rsh_no_tree_spawn": "1"}
            environment = without_slurm(environment) | rsh
        return subprocess.Popen(
            self.argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            preexec_fn=processes.die_with(os.getpid()),  # noqa: PLW1509  # one thread
        )

    def _serve(self, listeners: list[socket.socket]) -> None:
        """Take what the other nodes and the agents send for a moment."""
        wires = {wire.connection: wire for wire in [*self.others.values(), *self.waiting] if wire.is_open}
        ready, _, _ = select.select([*listeners, *wires], [], [], TICK_S)
        for source in ready:
            if source in listeners:
                self.waiting.append(Wire(source.accept()[0]))
                continue
            wire = wires[source]
            for message in wire.receive():
                self._take(wire, message)
            if not wire.is_open:
                self._lost(wire)
        if self.cause is None and self.node.has_death():
            self._died(0)

    def _take(self, wire: Wire, message: dict[str, Any]) -> None:
        if "host" in message:
            self._hand_over(wire, str(message["host"]), str(message["command"]))
        elif wire in self.waiting:
            self.waiting.remove(wire)
            self.others[int(message["node_rank"])] = wire
        elif message.get("died"):
            self._died(self._node_rank(wire))
        elif "code" in message:
            self._daemon_ended(self._node_rank(wire), int(message["code"]))

    def _hand_over(self, agent: Wire, host: str, command: str) -> None:
        """Give a command of mpirun to the node that it is for."""
        self.waiting.remove(agent)
        node_rank = labelled_rank(host)
        self.agents[node_rank] = agent
        if node_rank:
            self.others[node_rank].send(command=command)
            return
        try:
            self.node.start_daemon(command, self.port)
        except (OSError, ValueError) as error:
            self._daemon_ended(0, 1)
            sys.stderr.write(f"parlab: mpirun's daemon cannot be started on node {node_rank}: {error}\n")

    def _look_at_daemon(self) -> None:
        if self.node.daemon is not None and (code := self.node.daemon.poll()) is not None:
            self._daemon_ended(0, code)

    def _daemon_ended(self, node_rank: int, code: int) -> None:
        """Tell mpirun, through the agent that stands for its remote shell."""
        if (agent := self.agents.pop(node_rank, None)) is not None:
            agent.send(code=code)
            agent.connection.close()

    def _died(self, node_rank: int) -> None:
        if self.cause is None:
            self.cause = node_rank
            self.reason = f"a rank of node {node_rank} of the run ended before; see the log of that node"

    def _lost(self, wire: Wire) -> None:
        if wire in self.waiting:
            self.waiting.remove(wire)
        elif wire in self.others.values():
            self.reason = self.reason or (
                f"node {self._node_rank(wire)} of the run closed its connection to the first one;"
                " see the log of that node"
            )

    def _node_rank(self, wire: Wire) -> int:
        return next(number for number, other in self.others.items() if other is wire)

    def _missing(self) -> int:
        missing = [number for number in range(1, self.share.nodes) if number not in self.others]
        where = ", ".join(f"{number} ({self.share.addresses[number]})" for number in missing[:8])
        message = (
            f"node {where} did not connect to the first node at {self.share.address}, port {self.share.port}, within"
            f" {MEET_WITHIN_S:g} s; open the ports of the firewall between the nodes, or set cluster.interface to a"
            " network between them"
        )
        Printer(-1).emit("error", traceback=message)
        return 1

    def _end(self, code: int) -> int:
        exit_code = code if code >= 0 else 128 - code
        default = f"the launcher on the first node ended with exit code {exit_code}; see the log of node 0 of the run"
        reason = self.reason or default
        is_closed = bool(self.reason) and self.cause is None
        cause = self.cause if self.cause is not None or is_closed else 0
        for other in self.others.values():
            other.send(end=exit_code, cause=cause, reason=reason)
        return self.node.finish(exit_code, cause, reason)


class Other(SpanNode):
    """A node beside the first one: it waits for the launcher."""

    def run(self) -> int:
        """Return the exit code of the node."""
        connection = self._connected()
        if connection is None:
            return 1
        wire, has_reported, port = Wire(connection), False, 0
        wire.send(node_rank=self.share.node_rank)
        while wire.is_open:
            for message in wire.receive() if select.select([connection], [], [], TICK_S)[0] else []:
                if "port" in message:
                    port = int(message["port"])
                    self.environment(port)
                elif "command" in message:
                    self._start(wire, str(message["command"]), port)
                elif "end" in message:
                    return self.finish(int(message["end"]), message["cause"], str(message["reason"]))
            if not has_reported and self.has_death():
                has_reported = True
                wire.send(died=True)
            if self.daemon is not None and (code := self.daemon.poll()) is not None:
                wire.send(code=code)
                self.daemon = None
        return self.finish(1, None, "the first node of the run closed its connection; see the log of that node")

    def _start(self, wire: Wire, command: str, port: int) -> None:
        try:
            self.start_daemon(command, port)
        except (OSError, ValueError) as error:
            sys.stderr.write(f"parlab: mpirun's daemon cannot be started here: {error}\n")
            self.note_death()
            wire.send(code=1)

    def _connected(self) -> socket.socket | None:
        deadline = time.monotonic() + MEET_WITHIN_S
        place = (self.share.master_address, self.share.port)
        while True:
            try:
                return socket.create_connection(place, timeout=MEET_WITHIN_S, source_address=(self.share.address, 0))
            except OSError as error:
                if time.monotonic() > deadline:
                    message = (
                        f"the first node of the run did not answer at {place[0]}, port {place[1]} ({error}); open the"
                        " ports of the firewall between the nodes, or set cluster.interface to a network between them"
                    )
                    Printer(-1 - self.share.node_rank).emit("error", traceback=message)
                    return None
            time.sleep(RETRY_S)


def taken(share: Share, error: OSError) -> int:
    """Report that the first node cannot listen; return the exit code."""
    message = (
        f"port {share.port} of {share.address} was taken by another program between prepare and start"
        f" ({error.strerror}); start the run again, or stop that program ('ss -ltnp' shows it)"
    )
    Printer(0).emit("refused", field="MASTER_PORT", value=share.port, message=message)
    return REFUSED


def main(argv: list[str]) -> int:
    """Run on one node; return its exit code."""
    share = Share.from_environment(os.environ)
    # A launcher that is told to end ends its ranks itself.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return First(argv, share).run() if share.node_rank == 0 else Other(share).run()


if __name__ == "__main__":
    sys.exit(end_like(main(sys.argv[1:])))
