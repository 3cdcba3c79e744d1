"""Rebuild the series of an attempt from the events of its whole log, while its output goes on arriving.

The log is read into a file and packed before anything is locked. Then series replace those that are stored, a few in
each transaction, in which the output that came since is read too: each of them is complete and agrees with the log.
A rebuild that is interrupted leaves old series beside new ones, and the next one replaces all of them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping

from django.db import transaction
from django.db.models import QuerySet

from parlab.ingest.batches.events import Parsed, parse
from parlab.ingest.batches.output import has_events, is_read, limits_of, log_refused
from parlab.ingest.spool import spooled
from parlab.ingest.summaries.printed import is_sampled
from parlab.lab.models import Attempt
from parlab.series import log, operations, store
from parlab.series.columns import Columns
from parlab.series.following import Follower
from parlab.series.models import SeriesArchive
from parlab.series.replacing import Packed, Spool, packed, replace, stored_keys
from parlab.series.store import Key

_PARSED_BYTES = 4 << 20
"""Output that is parsed at once."""
_POINTS = 100 * store.CHUNK_POINTS
_SERIES = 500
"""Points and series that a transaction replaces; a longer series is replaced alone."""


def locked_attempts() -> QuerySet[Attempt]:
    """Return attempts with their runs; each one is locked as it is read."""
    return Attempt.objects.select_for_update(of=("self",), no_key=True).select_related("run")


def series_rebuild(attempt: Attempt) -> None:
    """Rebuild the series of an attempt from the events in its log; must not run in a transaction.

    What a reader has made of the lines in the log stays, unless there are steps among the events. The summary is for
    the caller. Raises Attempt.DoesNotExist if the attempt is deleted meanwhile.
    """
    with spooled() as file:
        _Rebuild(attempt, Spool(file)).run()


class _Events:
    """The events in the log of an attempt, from its beginning to where it was read."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._limits = limits_of(attempt.run)
        self._clock_offsets_s = dict(attempt.members.values_list("node_rank", "clock_offset_s"))
        self._followers: dict[int, Follower] = {}
        self._unfinished: dict[int, bytes] = {}
        self._metrics: set[str] = set()
        self.operations = operations.Collected(attempt.pk)
        self.last_step: int | None = None
        self.steps = 0

    def more(self) -> Iterator[Mapping[Key, Columns]]:
        """Read what was appended since the last call, and yield its points."""
        for node_rank in log.node_ranks(self._attempt.pk):
            follower = self._followers.setdefault(node_rank, Follower(self._attempt.pk, node_rank))
            for output in _joined(follower.more()):
                yield self._parse(output, node_rank).series

    def _parse(self, output: bytes, node_rank: int) -> Parsed:
        text = self._unfinished.get(node_rank, b"") + output
        parsed = parse(
            text,
            limits=self._limits,
            existing_metrics=self._metrics,
            last_step=self.last_step,
            clock_offset_s=self._clock_offsets_s.get(node_rank, 0.0),
        )
        log_refused(self._attempt, parsed)
        self._unfinished[node_rank] = log.unfinished_line(text)
        self._metrics |= {metric for metric, _ in parsed.series}
        self.operations.add(parsed.operations)
        self.last_step = parsed.last_step
        self.steps += parsed.steps
        return parsed


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join consecutive pieces of output up to _PARSED_BYTES."""
    held: list[bytes] = []
    for piece in pieces:
        held.append(piece)
        if sum(map(len, held)) >= _PARSED_BYTES:
            yield b"".join(held)
            held = []
    if held:
        yield b"".join(held)


class _Rebuild:
    def __init__(self, attempt: Attempt, spool: Spool) -> None:
        self._attempt = attempt
        self._events = _Events(attempt)
        self._spool = spool
        self._replaced: set[Key] = set()
        self._since: dict[Key, list[Columns]] = {}
        """Points that came after their series was replaced."""

    def run(self) -> None:
        self._read_appended()
        stored = set(stored_keys(self._attempt.pk))
        while keys := self._first(self._due(stored)):
            rows = {key: packed(self._attempt.pk, key, self._spool) for key in keys}
            self._read_appended()
            began = time.monotonic()
            with transaction.atomic():
                self._lock()
                self._replace(rows)
            # A writer that waits for SQLite looks again after up to 0.1 s: leave it as much time as was taken.
            time.sleep(time.monotonic() - began)
        with transaction.atomic():
            self._lock()
            stored = {(info.metric, info.rank) for info in store.metrics(self._attempt.pk)}
            self._replace({key: packed(self._attempt.pk, key, self._spool) for key in self._due(stored)})
            self._finish()

    def _read_appended(self) -> None:
        """Read what was appended to the log since the last call."""
        for series in self._events.more():
            self._spool.add({key: columns for key, columns in series.items() if key not in self._replaced})
            for key in self._replaced & series.keys():
                self._since.setdefault(key, []).append(series[key])

    def _due(self, stored: Collection[Key]) -> list[Key]:
        """Return the series that are not replaced yet, by rank; those of a reader only give way to steps."""
        keys = {key for key in stored if self._is_of_events or is_sampled(key)} | set(self._spool.keys)
        return sorted(keys - self._replaced, key=lambda key: (key[1], key[0]))

    @property
    def _is_of_events(self) -> bool:
        return not is_read(self._attempt) or has_events(self._attempt) or self._events.steps > 0

    def _first(self, keys: list[Key]) -> list[Key]:
        """Return the first series, as many as one transaction replaces."""
        points = 0
        for count, key in enumerate(keys[:_SERIES]):
            points += self._spool.count(key)
            if points > _POINTS:
                return keys[: max(count, 1)]
        return keys[:_SERIES]

    def _lock(self) -> None:
        """Lock the attempt and bring the series that were replaced before up to date."""
        self._attempt = locked_attempts().get(pk=self._attempt.pk)
        self._read_appended()
        if is_read(self._attempt):
            # Until events replace the series of a reader, a batch leaves their points in the log.
            since = {key: Columns.joined(parts) for key, parts in self._since.items() if not is_sampled(key)}
            store.append(self._attempt.pk, since)
        self._since = {}

    def _replace(self, rows: Mapping[Key, Packed]) -> None:
        """Replace series of the locked attempt by packed rows and the points after them."""
        replace(self._attempt.pk, rows)
        store.append(self._attempt.pk, {key: self._spool.read(key, each.points) for key, each in rows.items()})
        self._replaced |= rows.keys()

    def _finish(self) -> None:
        """Store what is not a series, and that the series of the locked attempt are those of its events."""
        self._events.operations.store()
        if self._is_of_events:
            SeriesArchive.objects.filter(attempt_id=self._attempt.pk).delete()
            summary = {} if is_read(self._attempt) else self._attempt.summary
            rows = Attempt.objects.filter(pk=self._attempt.pk)
            rows.update(last_step=self._events.last_step, summary=summary)
