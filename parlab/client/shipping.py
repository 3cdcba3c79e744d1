"""Spool -> HTTP -> committed: send a stream in batches from the position that the server names."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

from parlab.client import journal
from parlab.client.beats import Beats
from parlab.client.http import Connection, Refused, Unreachable
from parlab.client.media import Files
from parlab.client.recent import BLOCK_BYTES, Recent
from parlab.client.spools import Stream, leftovers

BATCH_BYTES = 1 << 20
LARGE_BATCH_BYTES = 3 << 20
"""Bytes of a batch where the last full one was stored within LARGE_AFTER_S: larger batches cost the server less."""
LARGE_AFTER_S = 1.0
POLL_S = 0.25
POLL_MAX_S = 1.0
REQUEST_SHARE = 0.05
"""Share of the time that requests may take before they become rarer: a busy server is not asked four times a second."""
RETRY_S = 1.0
RETRY_MAX_S = 8.0
"""Longest pause between tries: what a script logs is to be on the server within 30 s after it has come back."""
TRIES_AT_THE_END = 3
"""After so many failed tries, `finish` does not wait for a server that has never answered."""
WATCH_S = 10.0
"""How often a rank looks whether another one of its run has been killed on this node."""
COMPRESS_BYTES = 2_048

log = logging.getLogger("parlab")


class Undecided(Unreachable):
    """The server does not know yet whether the launch before this one at the same address still runs."""


class Batch(NamedTuple):
    """The records between two positions, as they are sent."""

    position: int
    next_position: int
    body: bytes
    is_packed: bool = False
    is_full: bool = False


class Shipment:
    """How far one stream has come."""

    def __init__(self, stream: Stream, connection: Connection, recent: Recent | None = None) -> None:
        self.stream = stream
        self._recent = recent
        self.run: dict[str, Any] = {}
        """Experiment, number and address of the run, once the server has answered."""
        self._connection = connection
        self._opening = stream.opening()
        self._path = self._own_path = self._path_in(str(self._opening.get("run_id")))
        self._began = time.monotonic()
        self._position: int | None = None
        self._prepared: Batch | None = None
        self._limit = BATCH_BYTES
        self._files = Files(stream.path)

    def _path_in(self, run_id: str) -> str:
        return f"/api/runs/{quote(run_id, safe='')}/streams/{self.stream.id}/"

    @property
    def is_complete(self) -> bool:
        """Whether the server has stored everything that is on disk."""
        is_stored = self._position is not None and self._position >= journal.tail(self.stream.records)
        return is_stored and not self._files.waiting()

    def send(self) -> bool:
        """Send the next batch; return whether there was one. Raises Unreachable or Refused."""
        if self._position is None:
            self._open()
        assert self._position is not None
        batch = self._batch(self._position)
        if batch.next_position == self._position:
            return False
        self._send(batch)
        return True

    def send_file(self) -> bool:
        """Send the next file that the script has logged; return whether there was one."""
        waiting = self._files.waiting()
        if not waiting or not self.run:
            return False
        path, file = waiting[0]
        address = f"/api/artifacts/{quote(str(self.run['id']), safe='')}/{quote(path)}"
        try:
            self._connection.request("PUT", address, file.read_bytes(), {"Content-Type": "application/octet-stream"})
        except Refused as error:
            log.warning("file %s is not on the server: %s", path, error)
        file.unlink()
        return True

    def _batch(self, position: int) -> Batch:
        """Return the batch from a position, which may have been prepared while the one before it was under way."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared.position == position:
            return prepared
        recent = self._recent.read(position, self._limit) if self._recent else None
        if recent is not None:
            pieces, following = recent
            reports: list[bytes] = []
        else:
            output, reports, following, *_ = journal.read_stretch(self.stream.records, position, self._limit)
            pieces = [output[at : at + BLOCK_BYTES] for at in range(0, len(output), BLOCK_BYTES)]
        size = sum(map(len, pieces))
        body = b"".join(journal.encode(journal.Kind.OUTPUT, piece) for piece in pieces)
        body += b"".join(journal.encode(journal.Kind.REPORT, report) for report in reports)
        is_packed = len(body) > COMPRESS_BYTES and not self._connection.is_local
        if is_packed:
            body = zlib.compress(body, 1)
        return Batch(position, following, body, is_packed, is_full=size > self._limit // 2)

    def _prepare(self, position: int) -> None:
        batch = self._batch(position)
        # One that is not full yet would leave out what the script logs meanwhile.
        self._prepared = batch if batch.is_full else None

    def beat(self) -> None:
        """Send an empty batch, which shows that the script is alive."""
        if self._position is None:
            self._open()
        assert self._position is not None
        self._send(Batch(self._position, self._position, b""))

    def _open(self) -> None:
        body = {**self._opening, "sent_at": time.time()}
        if "launch" in body:
            body["launch"] = {**body["launch"], "waited_s": time.monotonic() - self._began}
        try:
            answer = self._connection.json("PUT", self._own_path, body)
        except Refused as error:
            if error.status == 409 and any(each.get("field") == "launch" for each in error.errors):
                raise Undecided(str(error)) from error
            raise
        self.run, self._position = answer["run"], max(int(answer["committed"]), 0)
        # The ranks of a launch that share no ID get into the run of the first of them.
        self._path = self._path_in(str(self.run["id"]))

    def _send(self, batch: Batch) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        if batch.is_packed:
            headers["Content-Encoding"] = "deflate"
        path = f"{self._path}?position={batch.position}&next={batch.next_position}"
        began = time.monotonic()
        try:
            answer, _ = self._connection.request(
                "POST", path, batch.body, headers, meanwhile=lambda: self._prepare(batch.next_position)
            )
        except Refused as error:
            if error.status == 404:
                self._position = None  # another server, or its data is gone: open the stream again
                raise Unreachable(str(error)) from error
            raise
        if batch.is_full:
            self._limit = LARGE_BATCH_BYTES if time.monotonic() - began < LARGE_AFTER_S else BATCH_BYTES
        committed = int(json.loads(answer)["committed"])
        if committed != self._position:
            self._position = committed
            self.stream.acknowledge(committed)


class Shipper(threading.Thread):
    """Ships the stream of this process, after what ended processes left behind for the same run."""

    def __init__(
        self,
        stream: Stream,
        connection: Connection,
        *,
        announce: Callable[[dict[str, Any]], None],
        recent: Recent | None = None,
    ) -> None:
        super().__init__(name="parlab", daemon=True)
        self.shipment = Shipment(stream, connection, recent)
        self._connection = connection
        self._announce = announce
        self._wake = threading.Event()
        self._stop_requested = threading.Event()
        self._is_announced = False
        self._failures = 0
        self._is_undecided = False
        self._warning = ""
        self._beats = Beats()
        self._has_siblings = int(stream.opening().get("world_size") or 1) > 1

    @property
    def is_failing(self) -> bool:
        """Whether the last try failed, and not because the server waits for other processes."""
        return self._failures > 0 and not self._is_undecided

    @property
    def _never_answered(self) -> bool:
        """Whether the server has not answered once, in several tries."""
        return self._failures >= TRIES_AT_THE_END and not self.shipment.run and not self._is_undecided

    def wake(self) -> None:
        """Ship without waiting for the next turn."""
        self._wake.set()

    def stop(self, timeout_s: float) -> bool:
        """Ship what is left within a time; return whether the server has stored everything."""
        self._stop_requested.set()
        self._wake.set()
        self.join(timeout_s)
        return not self.is_alive() and self.shipment.is_complete

    def run(self) -> None:
        """Ship until stopped and done; nothing that goes wrong here reaches the script."""
        clean_at = time.monotonic()
        while True:
            try:
                if time.monotonic() >= clean_at:
                    self._clean()
                    # Later, it is the death of another rank on this node that is found.
                    clean_at = time.monotonic() + WATCH_S if self._has_siblings else float("inf")
                pause = self._turn()
                self._failures, self._is_undecided = 0, False
                if self._stop_requested.is_set() and self.shipment.is_complete:
                    return
            except (Unreachable, Refused) as error:
                pause = self._failed(error)
                if self._stop_requested.is_set() and (isinstance(error, Refused) or self._never_answered):
                    return
            except Exception:
                log.exception("shipping failed; the data stays in %s", self.shipment.stream.path)
                self._failures += 1
                pause = RETRY_MAX_S
            self._wake.wait(pause)
            self._wake.clear()

    def _turn(self) -> float:
        """Send what there is; return the pause before the next turn in seconds."""
        shipment = self.shipment
        pause, began = POLL_S, time.monotonic()
        while shipment.send():
            self._beats.data_sent()
            ended = time.monotonic()
            pause = min(max(POLL_S, (ended - began) / REQUEST_SHARE), POLL_MAX_S)
            began = ended
            self._opened()
        while shipment.send_file():
            self._beats.data_sent()
        if self._beats.is_due:
            shipment.beat()
            self._beats.beat_sent()
            self._opened()
        return pause

    def _opened(self) -> None:
        if not self._is_announced:
            self._is_announced = True
            self._announce(self.shipment.run)

    def _clean(self) -> None:
        """Ship what killed processes of the same run and rank left, so that the server lets this one take over."""
        own = self.shipment.stream.opening()
        for stream in leftovers():
            try:
                opening = stream.opening()
                if opening.get("url") == own.get("url") and _launched_as(opening) == _launched_as(own):
                    sync(stream, self._connection)
            except Refused as error:
                stream.refuse(str(error))
            finally:
                stream.unlock()

    def _failed(self, error: Exception) -> float:
        """Log a new reason once; return the pause before the next try in seconds."""
        self._failures += 1
        self._is_undecided = isinstance(error, Undecided)
        if self._warning != str(error)[:80]:
            self._warning = str(error)[:80]
            log.warning("%s (the data stays on disk and is sent later; `parlab sync` sends it, too)", error)
        if isinstance(error, Refused):
            self.shipment.stream.refuse(str(error))
        if self._stop_requested.is_set() or self._is_undecided:
            return RETRY_S
        return float(min(RETRY_S * 2 ** min(self._failures - 1, 10), RETRY_MAX_S) * random.uniform(0.7, 1.0))


def sync(stream: Stream, connection: Connection) -> dict[str, Any]:
    """Ship all of an ended process's stream and delete it; return its run. Raises Unreachable or Refused."""
    if not stream.has_ended:
        with journal.Writer(stream.records) as writer:
            end = abandoned(stream.last_written_at)
            writer.append(journal.encode(journal.Kind.REPORT, json.dumps(end).encode()))
    shipment = Shipment(stream, connection)
    while shipment.send() or shipment.send_file():
        pass
    if shipment.is_complete:
        stream.remove()
    return shipment.run


def _launched_as(opening: dict[str, Any]) -> object:
    """Return what the processes of one launch, and of the next launch at its address, have in common."""
    return (opening.get("launch") or {}).get("key") or opening.get("run_id")


def abandoned(ended_at: float) -> dict[str, Any]:
    """Return the report of an end for a process that was killed, after it had last written something (Unix time, s)."""
    reason = "the process ended without finishing the run, for example because it was killed"
    return {"kind": "end", "state": "failed", "exit_code": None, "reason": reason, "at": ended_at}
