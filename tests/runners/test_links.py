"""Links between namespaces: real ones where the machine lets us make them, and the reason where it does not."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runners.config import NetworkSection, RunConfig
from runners.links import interface, netem
from runners.links.ability import ability
from runners.links.emulate import Host, forwarding, links_of, make_hosts, mtu_for
from runners.links.forwarder import Clock, Forwarder, Link
from runners.links.measure import round_trips, some_links, throughput
from runners.links.namespaces import DEVICE, PACKET_INFO_BYTES, address, inside, new_namespace, open_tun
from runners.links.refusal import refusal
from runners.node.keeper import Keeper, Limits
from runners.node.launch import launch
from runners.node.rundir import StateDir
from runners.supervisor.spool import final_report
from tests.patience import PATIENCE_S, wait_for

ROOT = Path(__file__).parents[2]
needs_links = pytest.mark.skipif(bool(ability().why_not), reason=ability().why_not)


def config(**network: Any) -> RunConfig:
    parallel = {"pipeline_parallel_size": 3}
    return RunConfig.model_validate({"parallel": parallel, "network": {"apply": "emulate", **network}})


# --- real links ------------------------------------------------------------------------------------------------------


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def round_trip(namespaces: list[int], link: tuple[int, int], expected_s: float) -> float:
    """Measure one link until it responds: a busy machine may lose the first packets."""
    measured = wait_for(
        lambda: [trip for trip in round_trips(namespaces, [link], expected_s, pings=5) if trip], "a response"
    )
    return float(measured[0])


def joined(stack: ExitStack, run_config: RunConfig) -> list[Host]:
    links = links_of(run_config)
    hosts = make_hosts(stack, links)
    stack.enter_context(forwarding(hosts, links, lead_s=0.0, seed=1))
    return hosts


@needs_links
def test_a_packet_takes_its_delay_each_way_and_each_link_its_own(stack: ExitStack) -> None:
    special = {"source": 1, "target": 2, "delay_ms": 40}
    hosts = joined(stack, config(delay_ms=5, links=[special]))
    namespaces = [host.namespace for host in hosts]
    assert round_trip(namespaces, (0, 1), 0.045) >= 0.010
    assert round_trip(namespaces, (1, 2), 0.045) >= 0.045


@needs_links
def test_a_link_carries_its_rate_and_no_more(stack: ExitStack) -> None:
    hosts = joined(stack, config(bandwidth_gbps=0.05))
    namespaces = [host.namespace for host in hosts]
    rate = wait_for(lambda: throughput(namespaces, (0, 1), 0.001, 0.05e9), "a transfer")
    # Packets that waited in a queue come faster than they were let in, the more so on a busy machine.
    assert 0 < rate < 0.2e9  # it would be gigabits


@needs_links
def test_hosts_behind_a_bridge_are_shaped_where_they_leave(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """With netem where the kernel has it; elsewhere a mere rate stands for it, so that all else is as it would be."""
    if not ability().has_netem:
        monkeypatch.setattr(netem, "netem_arguments", lambda _: interface.tbf_arguments(50e6))
    network = config(delay_ms=5, bandwidth_gbps=0.05).network
    namespaces = netem.join_hosts(stack, network, 3, 1500)
    trip = round_trip(namespaces, (0, 2), 0.01)
    assert trip >= (0.010 if ability().has_netem else 0)
    rate = wait_for(lambda: throughput(namespaces, (0, 2), trip, 0.05e9), "a transfer")
    assert 0 < rate < 0.2e9


def test_netem_makes_links_that_are_all_alike() -> None:
    assert netem.is_enough(config(delay_ms=5).network, has_netem=True)
    assert not netem.is_enough(config(links=[{"source": 0, "target": 1}]).network, has_netem=True)
    assert not netem.is_enough(config(delay_ms=5).network, has_netem=False)


@needs_links
def test_hosts_see_each_other_and_nothing_else(stack: ExitStack) -> None:
    hosts = joined(stack, config())
    with inside(hosts[0].namespace):
        assert sorted(name for _, name in socket.if_nameindex()) == ["lo", DEVICE]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, pytest.raises(OSError, match="unreachable"):
            probe.connect(("192.0.2.1", 9))
    assert DEVICE not in [name for _, name in socket.if_nameindex()]


KILLED = """
import sys, time
from contextlib import ExitStack, suppress
from runners.links.emulate import forwarding, make_hosts
from runners.links.forwarder import Link
links = [[Link(delay_s=0.01)] * 2] * 2
with ExitStack() as stack:
    hosts = make_hosts(stack, links)
    with forwarding(hosts, links, lead_s=0.0, seed=1):
        print("made", flush=True)
        time.sleep(600)
"""


@needs_links
def test_nothing_is_left_of_links_whose_process_is_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"made\n"
        files = [os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
        mine = {name for name in files if name.startswith("net:")}
        assert len(mine) == 2
        carriers = children(process.pid)
        assert carriers
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    wait_until_gone(carriers)
    assert not mine & set(namespaces())


def namespaces() -> Iterator[str]:
    """Every network namespace that a process is in."""
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            yield os.readlink(path)
        except OSError:
            continue


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until_gone(pids: list[int]) -> None:
    for pid in pids:
        wait_for(partial(has_ended, pid), f"process {pid} has ended")


def has_ended(pid: int) -> bool:
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


# --- the forwarder by itself -----------------------------------------------------------------------------------------


def packet(target: int, content: bytes) -> bytes:
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20, 0, 0, 64, 17, 0, bytes(4), socket.inet_aton(address(target)))
    return bytes(PACKET_INFO_BYTES) + header + content


Until = Callable[[Forwarder], bool]


class Wires:
    """Pairs of sockets in the place of devices: what hosts send goes in here, what they get comes out."""

    def __init__(self, stack: ExitStack, hosts: int) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(hosts)]
        self.devices, self.ends = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        self.received: list[list[bytes]] = [[] for _ in range(hosts)]
        for end in (*self.devices, *self.ends):
            stack.enter_context(end)
            end.setblocking(False)

    def carry(self, links: list[list[Link]], packets: list[tuple[int, bytes]], until: Until) -> Forwarder:
        forwarder = Forwarder([device.fileno() for device in self.devices], links, 0.0, 1)
        for source, content in packets:
            self.ends[source].send(content)
        thread = threading.Thread(target=forwarder.run)
        thread.start()
        try:
            wait_for(lambda: until(forwarder), f"what was sent is dealt with: {forwarder.report()}")
        finally:
            forwarder.is_stopped = True
            self.ends[0].send(b"wake up")
            thread.join()
        return forwarder

    def arrived(self, host: int) -> list[bytes]:
        with suppress(BlockingIOError):
            while True:
                self.received[host].append(self.ends[host].recv(1 << 16)[PACKET_INFO_BYTES + 20 :])
        return self.received[host]


def all_links(hosts: int, link: Link) -> list[list[Link]]:
    return [[link] * hosts for _ in range(hosts)]


def test_packets_go_to_their_host_in_order_and_odd_ones_nowhere(stack: ExitStack) -> None:
    wires = Wires(stack, 3)
    odd = [b"", bytes(5), bytes(PACKET_INFO_BYTES) + b"\x60" + bytes(40), packet(200, b"nobody")]
    sent = [(0, packet(1, b"a")), (0, packet(2, b"b")), (0, packet(1, b"c")), (2, packet(0, b"d"))]
    links = all_links(3, Link(delay_s=0.001, jitter_s=0.001, bits_per_s=1e6))
    packets = [(0, content) for content in odd if content] + sent
    forwarder = wires.carry(links, packets, lambda _: sum(len(wires.arrived(host)) for host in range(3)) >= len(sent))
    assert wires.arrived(1) == [b"a", b"c"]
    assert wires.arrived(2) == [b"b"]
    assert wires.arrived(0) == [b"d"]
    assert forwarder.report()["packets"] == 4


def test_what_is_to_be_lost_does_not_arrive(stack: ExitStack) -> None:
    wires = Wires(stack, 2)
    forwarder = wires.carry(all_links(2, Link(loss=1.0)), [(0, packet(1, b"x"))] * 5, lambda done: done.lost >= 5)
    assert wires.arrived(1) == []
    assert forwarder.report()["lost"] == 5


def test_a_link_that_is_full_drops_what_comes(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.links.forwarder.QUEUE_BYTES", 1000)
    wires = Wires(stack, 2)
    # So slow that none has left when the last one comes.
    forwarder = wires.carry(
        all_links(2, Link(bits_per_s=10)), [(0, packet(1, bytes(400)))] * 5, lambda done: done.packets >= 5
    )
    assert forwarder.report()["dropped"] == 3
    assert wires.arrived(1) == []


def test_links_of_one_host_share_its_rate_and_a_special_one_does_not() -> None:
    links = links_of(config(bandwidth_gbps=1, links=[{"source": 0, "target": 2, "bandwidth_gbps": 0.5}]))
    forwarder = Forwarder([3, 4, 5], links, 0.0, 1)
    clocks: list[list[Clock]] = forwarder._clocks
    assert clocks[1][0] is clocks[1][2]
    assert clocks[0][1] is not clocks[0][2]
    assert clocks[0][1] is not clocks[1][0]
    assert links[0][2].bits_per_s == 0.5e9


@pytest.mark.parametrize(("rate", "mtu"), [(None, 65_000), (10, 65_000), (0.1, 12_500), (0.001, 1_500)])
def test_no_packet_keeps_a_link_busy_for_long(rate: float | None, mtu: int) -> None:
    assert mtu_for(links_of(config(bandwidth_gbps=rate))) == mtu


def test_links_that_differ_are_measured_first_and_then_one_of_each_host() -> None:
    assert some_links(3, [(2, 0)]) == [(2, 0), (0, 1), (1, 2), (2, 1)]
    assert len(some_links(100)) == 8


# --- what cannot be --------------------------------------------------------------------------------------------------


def test_without_rights_links_are_refused_with_the_reason_and_the_remedy() -> None:
    """As nobody; where the tests themselves have no rights, as they are."""
    script = """
import json, os
from runners.links.ability import try_here
if os.geteuid() == 0:
    os.setuid(65534)
print(json.dumps(try_here().why_not))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True, timeout=PATIENCE_S
    )
    assert "require root" in json.loads(done.stdout)
    assert "simulate the network instead" in json.loads(done.stdout)


def test_an_interface_that_is_not_there_is_refused_by_name() -> None:
    network = {"apply": "interface", "interface": "nosuch0", "bandwidth_gbps": 1}
    assert "network.interface nosuch0 does not exist on this node; use " in refusal(
        RunConfig.model_validate({"network": network})
    )


# --- a real interface ------------------------------------------------------------------------------------------------


@pytest.fixture
def nic(stack: ExitStack) -> None:
    """Be in a namespace with an interface of the usual kind."""
    namespace = new_namespace()
    stack.callback(os.close, namespace)
    stack.enter_context(inside(namespace))
    stack.callback(os.close, open_tun(0, 1500))


def rules() -> str:
    return subprocess.run(["tc", "qdisc", "show", "dev", DEVICE], capture_output=True, text=True, check=True).stdout


@needs_links
@pytest.mark.usefixtures("nic")
def test_an_interface_is_shaped_and_then_as_it_was(tmp_path: Path) -> None:
    network = NetworkSection(apply="interface", interface=DEVICE, bandwidth_gbps=0.1)
    before = rules()
    interface.shape(tmp_path, network)
    assert "70a1: root" in rules()
    assert "rate 100Mbit" in rules()
    assert "in use by another run" in interface.why_not(network)
    interface.restore(tmp_path)
    assert rules() == before
    interface.restore(tmp_path)
    assert not list(tmp_path.iterdir())


@needs_links
@pytest.mark.usefixtures("nic")
def test_foreign_rules_on_an_interface_are_left_alone(tmp_path: Path) -> None:
    network = NetworkSection(apply="interface", interface=DEVICE, bandwidth_gbps=0.1)
    subprocess.run(
        ["tc", "qdisc", "add", "dev", DEVICE, "root", "handle", "1:", *interface.tbf_arguments(1e6)], check=True
    )
    with pytest.raises(ValueError, match=r"already has a queueing discipline \(tbf\)"):
        interface.shape(tmp_path, network)
    (tmp_path / interface.RECORD).write_text(json.dumps({"interface": DEVICE}))
    interface.restore(tmp_path)
    assert "tbf 1: root" in rules()


@needs_links
@pytest.mark.usefixtures("nic")
def test_a_delay_needs_netem_and_says_so_where_there_is_none() -> None:
    network = NetworkSection(apply="interface", interface=DEVICE, delay_ms=5)
    assert interface.why_not(network) == "" if ability().has_netem else "has no sch_netem" in interface.why_not(network)


def test_netem_is_told_all_that_is_set_with_a_queue_longer_than_the_link() -> None:
    network = NetworkSection(
        apply="interface", interface="eth0", delay_ms=10, jitter_ms=1.5, loss_pct=0.1, bandwidth_gbps=1
    )
    arguments = interface.netem_arguments(network)
    assert arguments[0] == "netem"
    assert arguments[3:] == ["delay", "10ms", "1.5ms", "loss", "0.1%", "rate", "1000000000bit"]
    assert int(arguments[2]) * 1500 > 1e9 / 8 * 0.010


@needs_links
@pytest.mark.usefixtures("nic")
def test_the_daemons_next_look_restores_the_interface_of_a_run_whose_supervisor_was_killed(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    before = rules()
    draft = state.prepare(1, 1)
    interface.shape(draft.path, NetworkSection(apply="interface", interface=DEVICE, bandwidth_gbps=0.1))
    run = state.put_in_place(draft)
    Keeper(state, hardware={}, limits=Limits(), command=launch.command).watch()
    assert rules() == before
    assert final_report(run.spool) is not None
