"""What links really give, measured from outside of any training: round trips of small packets, and a short transfer."""

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
"""Links measured before a run; of more, these stand for the others."""
PATIENCE_S = 1.0
"""How much longer than expected an answer may take."""
TRANSFER_S = 0.2
ROUND_TRIPS = 16
"""How many round trips TCP needs to find the rate, and some more at that rate."""
SETTLED = 0.5
"""Share of a transfer's time after which it counts."""
QUEUE_S = 0.02
_CHUNK = 1 << 18
_SO_SNDBUFFORCE = 32


class Measured(NamedTuple):
    """One link, from host to host; None where it was not measured."""

    source: int
    target: int
    round_trip_s: float | None
    """There and back, which is another link."""
    bits_per_s: float | None
    """Payload of TCP in the second half of a short transfer, when it goes as fast as it will."""


def some_links(num_hosts: int, first: Sequence[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """Choose the links to measure: those named first, then one from each host to a neighbour, MAX_LINKS in all.

    A host has one rate for all its links that have none of their own.
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
    """Return the median round trip of each link in seconds, all links at once; None where nothing came back."""
    with ExitStack() as stack:
        stack.enter_context(_prompt())
        pairs = [tuple(stack.enter_context(_udp(namespaces[end], end)) for end in link) for link in links]
        sent, found = dict[tuple[int, int], float](), [list[float]() for _ in links]
        role = {one.fileno(): (index, side) for index, pair in enumerate(pairs) for side, one in enumerate(pair)}
        sockets = [one for pair in pairs for one in pair]
        began = time.perf_counter()
        deadline = began + pings * PING_EVERY_S + 1.5 * expected_s + PATIENCE_S
        number = 0
        while any(len(times) < pings for times in found) and (now := time.perf_counter()) < deadline:
            if number < pings and now >= began + number * PING_EVERY_S:
                for index, (near, far) in enumerate(pairs):
                    sent[index, number] = time.perf_counter()
                    near.sendto(number.to_bytes(2), far.getsockname())
                number += 1
            wait = PING_EVERY_S / 4 if number < pings else 0.05
            for ready in select.select(sockets, (), (), wait)[0]:
                index, side = role[ready.fileno()]
                message, sender = ready.recvfrom(16)
                if side:
                    ready.sendto(message, sender)
                else:
                    found[index].append(time.perf_counter() - sent[index, int.from_bytes(message)])
    return [median(times) if times else None for times in found]


def throughput(
    namespaces: Sequence[int], link: tuple[int, int], round_trip_s: float, expected_bits_per_s: float | None = None
) -> float | None:
    """Return what a TCP connection over a link gets, in bits/s, once it has found its speed; None if that failed."""
    source, target = link
    duration = TRANSFER_S + ROUND_TRIPS * round_trip_s
    with ExitStack() as stack:
        stack.enter_context(_prompt())
        with inside(namespaces[target]):
            listener = stack.enter_context(socket.create_server((address(target), 0)))
        with inside(namespaces[source]):
            sender = stack.enter_context(socket.socket())
        if expected_bits_per_s is not None:
            # More would only wait in the queue, and still be on its way when the training starts.
            waiting = int(3 * expected_bits_per_s / 8 * (round_trip_s + QUEUE_S))
            sender.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, min(max(waiting, 1 << 14), 1 << 30))
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
def _prompt() -> Iterator[None]:
    """Run this thread, and those it starts, before others for a moment: else it is the wait for a processor that is
    measured."""
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
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((address(host), 0))
    return made


def _send(sender: socket.socket, duration: float) -> None:
    data, deadline = memoryview(bytes(_CHUNK)), time.perf_counter() + duration
    try:
        while time.perf_counter() < deadline:
            sender.send(data)
        sender.shutdown(socket.SHUT_WR)
    except OSError:
        return  # what has arrived by then is what is counted


def _receive(receiver: socket.socket, timeout: float) -> list[tuple[float, int]]:
    """Return (time, bytes so far) of each piece that arrived."""
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
