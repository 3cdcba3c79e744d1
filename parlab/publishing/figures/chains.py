"""A chain of attempts as one training: its series as one, and its attempts with their limits, gaps and ends."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parlab.ingest.summaries.printed import is_sampled
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.chains import earlier_attempts
from parlab.series import joining, store
from parlab.series.columns import Columns
from parlab.series.store import Part, SeriesInfo
from runners.wire.protocol import RunState

Points = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Steps and values."""
_NO_END = 2**62
"""The last attempt has made all of its steps last."""
_STEP_METRICS = ("step_time_s", "loss", "lm_loss")
"""Series whose first step tells where an attempt has begun; else any that ranks print."""


class Joined:
    """The series of an attempt, with those of the attempts that it goes on from."""

    def __init__(self, attempt: Attempt) -> None:
        self._pk = attempt.pk
        self.attempts = [*earlier_attempts(attempt), attempt]
        """In their order, that of the series last."""
        earlier = [each.pk for each in self.attempts[:-1]]
        self.chains = {attempt.pk: earlier} if earlier else {}

    def names(self) -> set[str]:
        """Return the names of the series, from the index alone."""
        ids = joining.everything_of(self.chains, [self._pk])
        return set[str]().union(*store.metric_names(ids).values())

    def has(self, metric: str) -> bool:
        """Return whether a rank has points of a metric."""
        return store.has_metric(joining.everything_of(self.chains, [self._pk]), metric)

    def metrics(self) -> list[SeriesInfo]:
        """Return the series, sorted by name and rank, with the points of all attempts."""
        if not self.chains:
            return store.metrics(self._pk)
        points: Counter[tuple[str, int]] = Counter()
        for pk in joining.everything_of(self.chains, [self._pk]):
            points.update({(info.metric, info.rank): info.points for info in store.metrics(pk)})
        return [SeriesInfo(metric, rank, count) for (metric, rank), count in sorted(points.items())]

    def read_many(self, metrics: Collection[str], **window: int | None) -> joining.Series:
        """Return series like `store.read_many`."""
        read = store.read_many(joining.everything_of(self.chains, [self._pk]), metrics, **window)
        return joining.joined(read, self.chains, joining.cuts(self.chains, metrics), is_sampled)

    def read_ranks(self, metric: str) -> dict[int, Columns]:
        """Return the series of all ranks, like `store.read_ranks`."""
        return {rank: columns for (_, _, rank), columns in self.read_many([metric]).items()}

    def read_parts(self, metric: str, least: int, **window: int | None) -> dict[int, Part]:
        """Return the series of all ranks in at least so much detail."""
        limits = joining.cuts(self.chains, [metric])
        parts = joining.joined_parts(self.chains, limits, is_sampled, [self._pk], [metric], least, **window)
        return {rank: part for (_, _, rank), part in parts.items()}

    def extent(self, metrics: Collection[str], ranks: Collection[int]) -> tuple[int, int] | None:
        """Return the first and the last step, like `store.extent`."""
        made = [
            (bounds[0], min(bounds[1], end))
            for each, end in self.with_ends(metrics)
            if (bounds := store.extent(each.pk, metrics, ranks)) is not None and bounds[0] <= end
        ]
        return (min(first for first, _ in made), max(last for _, last in made)) if made else None

    def each_rank(
        self, metrics: Collection[str], ranks: Collection[int], *, first_step: int, last_step: int
    ) -> Iterator[tuple[int, dict[str, Points]]]:
        """Yield rank by rank {metric: (steps, values)}, like `store.each_rank`."""
        parts = [
            store.each_rank(each.pk, metrics, ranks, first_step=first_step, last_step=min(last_step, end))
            for each, end in self.with_ends(metrics)
        ]
        if len(parts) == 1:
            yield from parts[0]
            return
        by_rank = heapq.merge(*parts, key=itemgetter(0))  # of one rank in the order of the attempts
        for rank, rows in groupby(by_rank, key=itemgetter(0)):
            yield rank, _concatenated([series for _, series in rows])

    def attempt_at(self, step: int, metrics: Collection[str]) -> Attempt:
        """Return the attempt that made a step, and made it last."""
        return next((each for each, end in self.with_ends(metrics) if step <= end), self.attempts[-1])

    def with_ends(self, metrics: Collection[str]) -> list[tuple[Attempt, int]]:
        """Return the attempts with the last step that no later one has made again."""
        if not self.chains:
            return [(self.attempts[0], _NO_END)]
        firsts: dict[int, int] = {}
        for (pk, _), step in joining.first_steps([each.pk for each in self.attempts], metrics).items():
            firsts[pk] = min(step, firsts.get(pk, step))
        rows, end = list[tuple[Attempt, int]](), _NO_END
        for attempt in reversed(self.attempts):
            rows.append((attempt, end))
            end = min(end, firsts.get(attempt.pk, _NO_END) - 1)
        return rows[::-1]

    def repeated(self, metric: str) -> list[tuple[int, int]]:
        """Return the steps of a series that were made again, as (first, last)."""
        if not self.chains:
            return []
        ids = [*self.chains[self._pk], self._pk]
        firsts = joining.first_steps(ids, [metric])
        lasts = dict(Attempt.objects.filter(pk__in=ids).values_list("pk", "last_step"))
        return joining.stretches([(firsts.get((pk, metric)), lasts[pk]) for pk in ids])


def _concatenated(parts: Sequence[Mapping[str, Points]]) -> dict[str, Points]:
    joined: dict[str, Points] = {}
    for metric in dict.fromkeys(name for part in parts for name in part):
        pieces = [part[metric] for part in parts if metric in part]
        joined[metric] = np.concatenate([steps for steps, _ in pieces]), np.concatenate([each for _, each in pieces])
    return joined


class ChainAttempt(NamedTuple):
    number: int
    state: str
    reason: str
    waits_from: datetime
    """End of the attempt before it, or the time at which the run was queued."""
    started_at: datetime | None
    ended_at: datetime | None
    first_step: int | None
    last_step: int | None
    nodes: str

    @property
    def waited_s(self) -> float | None:
        """Gap before it: queue, preparation, start; None while it has not started."""
        return None if self.started_at is None else max(0.0, (self.started_at - self.waits_from).total_seconds())


class Chain(NamedTuple):
    """The attempts of a run as one training."""

    attempts: Sequence[ChainAttempt]
    steps: int
    """Steps that were made, each once."""
    repeated: int
    """Steps that were made again, each further time."""

    @property
    def once_pct(self) -> float | None:
        """Share of the steps that were computed once (%); None without steps."""
        made = self.steps + self.repeated
        return 100.0 * self.steps / made if made else None

    @property
    def waited_s(self) -> float:
        """All gaps after the first start."""
        return sum(attempt.waited_s or 0.0 for attempt in self.attempts[1:])

    @property
    def longest_gap_s(self) -> float:
        return max((attempt.waited_s or 0.0 for attempt in self.attempts[1:]), default=0.0)

    def count(self, state: RunState) -> int:
        """Return how many attempts ended so."""
        return sum(attempt.state == state for attempt in self.attempts)


def chain_of(run: Run) -> Chain | None:
    """Return the attempts of a chain; None for any other run."""
    if not run.is_chain:
        return None
    attempts = list(run.attempts.with_members().order_by("number"))
    firsts = _first_steps([attempt.pk for attempt in attempts])
    rows, waits_from = [], run.queued_at
    for attempt in attempts:
        rows.append(_row(attempt, waits_from, firsts.get(attempt.pk)))
        waits_from = attempt.ended_at or waits_from
    bounds = [(row.first_step, row.last_step) for row in rows]
    made = sum(last - first + 1 for first, last in bounds if first is not None and last is not None)
    repeated = joining.repeated_count(bounds)
    return Chain(rows, made - repeated, repeated)


def _row(attempt: Attempt, waits_from: datetime, first_step: int | None) -> ChainAttempt:
    return ChainAttempt(
        attempt.number,
        attempt.state,
        attempt.reason,
        waits_from,
        attempt.started_at,
        attempt.ended_at,
        first_step,
        None if first_step is None else attempt.last_step,
        attempt.node_names,
    )


def _first_steps(attempts: Sequence[int]) -> dict[int, int]:
    by_series = joining.first_steps(attempts, _STEP_METRICS)
    rest = set(attempts) - {attempt for attempt, _ in by_series}
    if rest:
        everything = joining.first_steps(rest, None)
        by_series |= {key: step for key, step in everything.items() if step > 0 and not is_sampled((key[1], 0))}
    firsts: dict[int, int] = {}
    for (attempt, _), step in by_series.items():
        firsts[attempt] = min(step, firsts.get(attempt, step))
    return firsts
