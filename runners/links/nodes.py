"""Several nodes on this machine: `python -m runners.links.nodes --count 3 --relay PORT -- COMMAND ...`.

The command, usually a daemon, is started once per node, with {node} and {address} replaced. As root each node is a
network namespace with an address of its own, and parlab's forwarder carries packets between them, with a delay and a
rate if they are given; at 127.0.0.1:PORT a node reaches the Redis of this machine. Without root, or without --relay,
the nodes are addresses of loopback. No namespace remains when this program ends, whatever ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from runners.links.ability import try_here
from runners.links.emulate import Host, forwarding, make_hosts
from runners.links.forwarder import Link
from runners.links.measure import round_trips
from runners.links.namespaces import MAX_HOSTS, address, inside
from runners.links.ranks import fork_inside
from runners.supervisor.processes import die_with

STOP_WITHIN_S = 5.0
POLL_S = 0.2
LOOPBACK = "127.0.0.1"


def local_address(node: int) -> str:
    """Return the address of a node without a namespace: all of 127.0.0.0/8 belongs to this machine."""
    return f"127.0.{(node + 2) >> 8}.{(node + 2) & 255}"


@contextmanager
def namespaces_of(count: int, link: Link) -> Iterator[list[Host]]:
    """Create connected nodes; they are gone at the end of the with statement."""
    with ExitStack() as stack:
        links = [[link] * count] * count
        hosts = make_hosts(stack, links)
        lead_s = _lead(hosts) if link.delay_s else 0.0
        stack.enter_context(forwarding(hosts, links, lead_s=lead_s, seed=0))
        yield hosts


def _lead(hosts: Sequence[Host]) -> float:
    """Return the latency in seconds of the forwarder itself, which is taken off the delay."""
    with forwarding(hosts, [[Link()] * len(hosts)] * len(hosts), lead_s=0.0, seed=0):
        trip = round_trips([host.namespace for host in hosts], [(0, 1)], 0.0)[0]
    return (trip or 0.0) / 2


def filled(argv: Sequence[str], node: int, at: str) -> list[str]:
    return [argument.replace("{node}", str(node)).replace("{address}", at) for argument in argv]


def start_inside(argv: Sequence[str], hosts: Sequence[Host]) -> list[int]:
    """Start the command in each namespace; return the process ids."""

    children = []
    for node, host in enumerate(hosts):
        own = filled(argv, node, address(node))
        children.append(fork_inside(host.namespace, {}, functools.partial(os.execvp, own[0], own)))
    return children


def start_local(argv: Sequence[str], count: int) -> list[int]:
    """Start the command for each address of loopback; return the process ids."""
    own = [filled(argv, node, local_address(node)) for node in range(count)]
    # One thread; the processes are collected by their ids.
    return [subprocess.Popen(each, preexec_fn=die_with(os.getpid())).pid for each in own]  # noqa: PLW1509


def listeners(hosts: Sequence[Host], port: int) -> list[socket.socket]:
    """Return a socket in each namespace at which the server of this machine seems to listen."""
    sockets = []
    for host in hosts:
        with inside(host.namespace):
            sockets.append(socket.create_server((LOOPBACK, port)))
    return sockets


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Carry one connection of a node to the server."""
    with suppress(OSError, asyncio.CancelledError):  # cancelled at the end of this program
        onward = await asyncio.open_connection(LOOPBACK, port)
        await asyncio.gather(_pump(reader, onward[1]), _pump(onward[0], writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()


async def _watch(children: list[int], sockets: Sequence[socket.socket], port: int) -> int:
    """Relay connections until a process ends or this one is told to end; return the exit code."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    servers = [
        await asyncio.start_server(lambda reader, writer: _relay(reader, writer, port), sock=each) for each in sockets
    ]
    while not stopped.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), POLL_S)
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid:
            if pid in children:
                children.remove(pid)
            sys.stderr.write(f"parlab: process {pid} of the nodes has ended\n")
            return 1
    for server in servers:
        server.close()
    return 0


def stop(children: list[int]) -> None:
    """End the processes of all nodes."""
    deadline, number = time.monotonic() + STOP_WITHIN_S, signal.SIGTERM
    while children:
        for pid in list(children):
            if number is signal.SIGKILL or time.monotonic() < deadline:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            children.remove(pid)
        number = signal.SIGKILL if time.monotonic() > deadline else signal.SIGTERM
        time.sleep(POLL_S / 4 if children else 0)


def main(arguments: Sequence[str]) -> int:
    """Run until a process ends, SIGTERM or SIGINT; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m runners.links.nodes", description="Run nodes on this machine.")
    parser.add_argument("--count", type=int, default=3, help=f"number of nodes, 2 to {MAX_HOSTS}")
    parser.add_argument("--relay", type=int, metavar="PORT", help="port of Redis on this machine")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one-way delay between two nodes")
    parser.add_argument("--bandwidth-gbps", type=float, help="outgoing rate of each node; default: no limit")
    parser.add_argument("command", nargs="+", help="after --: the command of a node, with {node} and {address}")
    options = parser.parse_args(arguments)
    if not 2 <= options.count <= MAX_HOSTS:
        parser.error(f"--count {options.count} is not possible; use 2 to {MAX_HOSTS}")
    rate = options.bandwidth_gbps * 1e9 if options.bandwidth_gbps else None
    link = Link(delay_s=options.delay_ms / 1e3, bits_per_s=rate)
    why_not = try_here().why_not if options.relay else "namespaces need --relay, the port of Redis on this machine"
    if why_not and link != Link():
        parser.error(f"--delay-ms and --bandwidth-gbps: {why_not}")
    children: list[int] = []
    with ExitStack() as stack:
        stack.callback(stop, children)
        if why_not:
            sys.stderr.write(f"parlab: the nodes are addresses of loopback; {why_not}\n")
            children += start_local(options.command, options.count)
            return asyncio.run(_watch(children, [], 0))
        hosts = stack.enter_context(namespaces_of(options.count, link))
        sockets = listeners(hosts, options.relay)
        children += start_inside(options.command, hosts)
        # The forwarder ends last.
        stack.callback(stop, children)
        return asyncio.run(_watch(children, sockets, options.relay))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
