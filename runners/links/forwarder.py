"""Forwarder process: moves packets between the TUN devices of hosts with the delay and rate of their links.

Run `python -m runners.links.forwarder SETTINGS` with the device file descriptors inherited. SETTINGS is JSON:
{"devices": [fd, ...], "seed": 1, "lead_s": 0.0, "links": [[LINK, ...], ...]}, links by source and target, where LINK is
{"delay_s", "bits_per_s" or null, "jitter_s", "loss", "shares": bool}. The process prints a line when it is ready; on
SIGTERM it prints its counters and ends.
"""

from __future__ import annotations

import ctypes
import heapq
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from runners.links.namespaces import PACKET_INFO_BYTES

READ_BYTES = 1 << 17
BURST = 8
"""Packets read from one device before the next device is served."""
QUEUE_BYTES = 64 << 20
"""Queue of a link beyond bandwidth x delay; further packets are dropped, as in a full router."""
MAX_QUEUE_BYTES = 1 << 30
PRIORITY = 1
"""Real-time priority: otherwise packets would wait for a time slice of several milliseconds on a busy machine."""
_VERSION_AT = PACKET_INFO_BYTES
_TARGET_AT = PACKET_INFO_BYTES + 19
"""Offset of the last byte of the target's IPv4 address, which is the host's number + 1."""
_PR_SET_TIMERSLACK = 29


class Link(NamedTuple):
    """Settings of the link from one host to another."""

    delay_s: float = 0.0
    bits_per_s: float | None = None
    jitter_s: float = 0.0
    loss: float = 0.0
    """Share of the packets that are lost, 0 to 1."""
    shares: bool = True
    """All links of the source with this flag share one rate."""


class Clock:
    """Queue state of a rate: when it is free for the next packet, and how many bytes wait."""

    __slots__ = ("free_at", "latest", "limit", "queued")

    def __init__(self, limit: float) -> None:
        self.free_at = 0.0
        self.latest = 0.0
        self.limit = limit
        self.queued = 0


class Forwarder:
    """The event loop; `links[i][j]` is the link from host i to host j."""

    def __init__(self, devices: Sequence[int], links: Sequence[Sequence[Link]], lead_s: float, seed: int) -> None:
        self._devices = list(devices)
        self._links = links
        self._lead_s = lead_s
        """Latency of this process itself, which is subtracted from delays."""
        self._random = random.Random(seed)
        shared = [Clock(_queue_limit(row)) for row in links]
        self._clocks = [
            [shared[source] if link.shares else Clock(_queue_limit([link])) for link in row]
            for source, row in enumerate(links)
        ]
        self._waiting: list[tuple[float, int, int, bytes, Clock]] = []
        self._sequence = 0
        self.packets = self.bytes = self.dropped = self.lost = 0
        self.late_s = self.max_late_s = 0.0
        self.is_stopped = False

    def run(self) -> None:
        """Forward until stopped."""
        by_file = {device: source for source, device in enumerate(self._devices)}
        waiting, clock = self._waiting, time.monotonic
        while not self.is_stopped:
            timeout = max(0.0, waiting[0][0] - clock()) if waiting else 1.0
            # select's timeout has a resolution of microseconds, epoll's one of milliseconds.
            readable = select.select(self._devices, (), (), timeout)[0]
            for device in readable:
                self._take(by_file[device], device)
            if waiting:
                self._deliver(clock())

    def _take(self, source: int, device: int) -> None:
        links, clocks, hosts = self._links[source], self._clocks[source], len(self._devices)
        for _ in range(BURST):
            try:
                packet = os.read(device, READ_BYTES)
            except BlockingIOError:
                return
            now = time.monotonic()
            size = len(packet) - PACKET_INFO_BYTES
            if size < 20 or packet[_VERSION_AT] >> 4 != 4:
                continue
            target = packet[_TARGET_AT] - 1
            if not 0 <= target < hosts:
                continue
            link, clock = links[target], clocks[target]
            if link.loss and self._random.random() < link.loss:
                self.lost += 1
                continue
            self.packets += 1
            self.bytes += size
            due = now
            if link.bits_per_s is not None:
                if clock.queued + size > clock.limit:
                    self.dropped += 1
                    continue
                clock.free_at = due = max(now, clock.free_at) + size * 8 / link.bits_per_s
            if link.delay_s:
                delay = link.delay_s
                if link.jitter_s:
                    delay += self._random.uniform(-link.jitter_s, link.jitter_s)
                due = max(now, due + delay - self._lead_s)
                # Packets of one host never overtake each other, which TCP would interpret as loss.
                if link.jitter_s:
                    clock.latest = due = max(due, clock.latest)
            if due <= now and not self._waiting:
                self._write(target, packet)
                continue
            self._sequence += 1
            clock.queued += size
            heapq.heappush(self._waiting, (due, self._sequence, target, packet, clock))

    def _deliver(self, now: float) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= now:
            due, _, target, packet, clock = heapq.heappop(waiting)
            clock.queued -= len(packet) - PACKET_INFO_BYTES
            late = now - due
            self.late_s += late
            if late > self.max_late_s:
                self.max_late_s = late
            self._write(target, packet)

    def _write(self, target: int, packet: bytes) -> None:
        try:
            os.write(self._devices[target], packet)
        except OSError:  # the host's queue is full, or its device is down
            self.dropped += 1

    def report(self) -> dict[str, Any]:
        """Return the counters: packets, bytes, dropped, lost, and by how much packets were delivered late."""
        return {
            "packets": self.packets,
            "bytes": self.bytes,
            "dropped": self.dropped,
            "lost": self.lost,
            "mean_late_s": self.late_s / max(self.packets, 1),
            "most_late_s": self.max_late_s,
        }


def _queue_limit(links: Sequence[Link]) -> float:
    in_flight = max((link.bits_per_s or 0) / 8 * link.delay_s for link in links)
    return min(QUEUE_BYTES + 2 * in_flight, MAX_QUEUE_BYTES)


def set_real_time_priority() -> None:
    """Give this process real-time priority and a small timer slack, if the kernel permits."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))


def main(arguments: Sequence[str]) -> int:
    """Forward packets until SIGTERM or SIGINT; return the exit code."""
    settings = json.loads(arguments[0])
    links = [[Link(**link) for link in row] for row in settings["links"]]
    forwarder = Forwarder(settings["devices"], links, settings["lead_s"], settings["seed"])

    def stop(*_: object) -> None:
        forwarder.is_stopped = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    set_real_time_priority()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    forwarder.run()
    sys.stdout.write(json.dumps(forwarder.report()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
