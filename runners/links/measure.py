"""Measurement of links before training: round trips of small packets, and the rate of a short transfer."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import NamedTuple

from runners.links.namespaces import address, inside

PINGS = 25
PING_EVERY_S = 0.002
MAX_LINKS = 8
"""Maximum number of links measured before a run."""
PATIENCE_S = 1.0
"""Time by which a response may exceed the expected time."""
TRANSFER_S = 0.2
"""Minimum duration of a transfer, to which ROUND_TRIPS round trips are added."""
ROUND_TRIPS = 16
"""Round trips in which TCP reaches the link's rate, plus some at that rate."""
SETTLED = 0.5
"""Share of a transfer's duration that is skipped before the rate is measured."""
QUEUE_S = 0.02
"""Queueing time that the send buffer covers beyond the round trip."""
_CHUNK = 1 << 18
_SO_SNDBUFFORCE = 32


class Measurement(NamedTuple):
    """Measured values of one link from host to host; None if not measured."""

    source: int
    target: int
    round_trip_s: float | None
    """Round trip, which includes the link in the opposite direction."""
    bits_per_s: float | None
    """TCP payload rate in the second half of a short transfer, after slow start."""


def some_links(num_hosts: int, first: Sequence[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """Return the links to measure: `first`, then one from each host to a neighbour; MAX_LINKS at most.

    One link per host suffices, because all links of a host without their own rate share the host's rate.
    """
    last = num_hosts - 1
    neighbours = [(host, host + 1 if host < last else last - 1) for host in range(num_hosts)]
    return list(dict.fromkeys([*first, *neighbours]))[:MAX_LINKS]


def round_trips(
    namespaces: Sequence[int],
    links: Sequence[tuple[int, int]],
    expected_s: float,
    pings: int = PINGS,
) -> list[float | None]:
    """Return the median round trip of each link in seconds, measured on all links at once; None without a response."""
    with ExitStack() as stack:
        stack.enter_context(_real_time_priority())
        pairs = [tuple(stack.enter_context(_udp(namespaces[end], end)) for end in link) for link in links]
        send_times, trips = dict[tuple[int, int], float](), [list[float]() for _ in links]
        roles = {end.fileno(): (index, side) for index, pair in enumerate(pairs) for side, end in enumerate(pair)}
        sockets = [end for pair in pairs for end in pair]
        began = time.perf_counter()
        deadline = began + pings * PING_EVERY_S + 1.5 * expected_s + PATIENCE_S
        number = 0
        while any(len(times) < pings for times in trips) and (now := time.perf_counter()) < deadline:
            if number < pings and now >= began + number * PING_EVERY_S:
                for index, (near, far) in enumerate(pairs):
                    send_times[index, number] = time.perf_counter()
                    near.sendto(number.to_bytes(2), far.getsockname())
                number += 1
            wait = PING_EVERY_S / 4 if number < pings else 0.05
            for ready in select.select(sockets, (), (), wait)[0]:
                index, side = roles[ready.fileno()]
                message, sender = ready.recvfrom(16)
                if side:
                    ready.sendto(message, sender)
                else:
                    trips[index].append(time.perf_counter() - send_times[index, int.from_bytes(message)])
    return [median(times) if times else None for times in trips]


def throughput(
    namespaces: Sequence[int], link: tuple[int, int], round_trip_s: float, expected_bits_per_s: float | None = None
) -> float | None:
    """Return the rate of a TCP connection over a link in bits/s, after slow start; None if the transfer failed."""
    source, target = link
    duration = TRANSFER_S + ROUND_TRIPS * round_trip_s
    with ExitStack() as stack:
        stack.enter_context(_real_time_priority())
        with inside(namespaces[target]):
            listener = stack.enter_context(socket.create_server((address(target), 0)))
        with inside(namespaces[source]):
            sender = stack.enter_context(socket.socket())
        if expected_bits_per_s is not None:
            # A larger send buffer would only fill the queue, which would still be draining when training starts.
            buffer_bytes = int(3 * expected_bits_per_s / 8 * (round_trip_s + QUEUE_S))
            sender.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, min(max(buffer_bytes, 1 << 14), 1 << 30))
        patience = 2 * round_trip_s + PATIENCE_S
        sender.settimeout(patience)
        listener.settimeout(patience)
        try:
            sender.connect(listener.getsockname())
            receiver = stack.enter_context(listener.accept()[0])
        except OSError:
            return None
        sending = threading.Thread(target=_send, args=(sender, duration))
        sending.start()
        marks = _receive(receiver, duration + patience)
        sending.join()
    return _settled_rate(marks)


@contextmanager
def _real_time_priority() -> Iterator[None]:
    """Give this thread and those it starts real-time priority, so that waits for a processor are not measured."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:  # a container may forbid it
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _udp(namespace: int, host: int) -> socket.socket:
    with inside(namespace):
        udp_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp_socket.bind((address(host), 0))
    return udp_socket


def _send(sender: socket.socket, duration: float) -> None:
    data, deadline = memoryview(bytes(_CHUNK)), time.perf_counter() + duration
    try:
        while time.perf_counter() < deadline:
            sender.send(data)
        sender.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the rate is computed from the data received so far


def _receive(receiver: socket.socket, timeout: float) -> list[tuple[float, int]]:
    """Return (time, total bytes) after each read from the socket."""
    receiver.settimeout(timeout)
    buffer, total, marks = bytearray(_CHUNK), 0, list[tuple[float, int]]()
    deadline = time.perf_counter() + timeout
    try:
        while (size := receiver.recv_into(buffer)) and (now := time.perf_counter()) < deadline:
            total += size
            marks.append((now, total))
    except OSError:
        pass
    return marks


def _settled_rate(marks: Sequence[tuple[float, int]]) -> float | None:
    if len(marks) < 4:
        return None
    begin, end = marks[0][0], marks[-1][0]
    first = bisect_left(marks, begin + SETTLED * (end - begin), hi=len(marks) - 2, key=lambda mark: mark[0])
    seconds = end - marks[first][0]
    return 8 * (marks[-1][1] - marks[first][1]) / seconds if seconds > 0 else None
