"""The series of a chain of attempts as one: a step that was made again counts once, as it was made last."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from django.db.models import Min

from parlab.series.columns import Columns
from parlab.series.models import SeriesChunk, SeriesLevel
from parlab.series.store import Part, read_parts

Key = tuple[int, str, int]
"""Attempt, metric, rank."""
Series = Mapping[Key, Columns]
Chains = Mapping[int, Sequence[int]]
"""Attempt -> those before it, in their order."""
IsSampled = Callable[[tuple[str, int]], bool]
"""Whether a series is sampled by the node: its points belong to moments, of which none comes again."""


def everything_of(chains: Chains, attempts: Collection[int]) -> list[int]:
    """Return attempts with all that come before them."""
    return [*attempts, *(pk for attempt in attempts for pk in chains.get(attempt, ()))]


def first_steps(attempts: Collection[int], metrics: Collection[str] | None) -> dict[tuple[int, str], int]:
    """Return the first step of each metric that ranks have printed, by attempt, from the index."""
    firsts: dict[tuple[int, str], int] = {}
    chosen = {} if metrics is None else {"metric__in": metrics}
    for stored in (SeriesChunk.objects.all(), SeriesLevel.objects.filter(level=1)):
        rows = stored.filter(attempt_id__in=attempts, rank__gte=0, **chosen).values_list("attempt_id", "metric")
        for attempt, metric, step in rows.annotate(first=Min("first_step")):
            firsts[attempt, metric] = min(step, firsts.get((attempt, metric), step))
    return firsts


def cuts(chains: Chains, metrics: Collection[str] | None) -> dict[tuple[int, str], int]:
    """Return the step from which on the points of an attempt were made again, by attempt and metric."""
    if not chains:
        return {}
    firsts = first_steps(everything_of(chains, list(chains)), metrics)
    names = {metric for _, metric in firsts}
    limits: dict[tuple[int, str], int] = {}
    for last, before in chains.items():
        for metric in names:
            least: int | None = None
            for attempt in reversed([*before, last]):
                if least is not None:
                    limits[attempt, metric] = least
                first = firsts.get((attempt, metric))
                least = first if least is None else least if first is None else min(least, first)
    return limits


def joined(read: Series, chains: Chains, limits: Mapping[tuple[int, str], int], is_sampled: IsSampled) -> Series:
    """Return the series of the last attempts, with what the earlier ones have not in common with later ones."""
    if not chains:
        return read
    earlier = {pk for before in chains.values() for pk in before}
    whole = {key: columns for key, columns in read.items() if key[0] not in earlier}
    for last, before in chains.items():
        for metric, rank in sorted({key[1:] for key in read if key[0] in (last, *before)}):
            parts = [
                _kept(read[attempt, metric, rank], limits.get((attempt, metric)), is_sampled((metric, rank)))
                for attempt in (*before, last)
                if (attempt, metric, rank) in read
            ]
            columns = Columns.joined(parts)
            if len(columns):
                whole[last, metric, rank] = columns
    return whole


def _kept(columns: Columns, limit: int | None, is_sampled: bool) -> Columns:
    return columns if limit is None or is_sampled else columns.take(columns.steps < limit)


def joined_parts(
    chains: Chains,
    limits: Mapping[tuple[int, str], int],
    is_sampled: IsSampled,
    attempts: Collection[int],
    metrics: Collection[str],
    least: int,
    **window: int | None,
) -> dict[Key, Part]:
    """Return series like `store.read_parts`, those of a chain as one."""
    read = read_parts(everything_of(chains, attempts), metrics, least, **window)
    if not chains:
        return read
    whole = joined({key: part.columns for key, part in read.items()}, chains, limits, is_sampled)
    last_of = {pk: last for last, before in chains.items() for pk in (*before, last)}
    thinned = {(last_of.get(key[0], key[0]), *key[1:]) for key, part in read.items() if not part.is_whole}
    return {key: Part(columns, is_whole=key not in thinned) for key, columns in whole.items()}


def stretches(steps: Sequence[tuple[int | None, int | None]]) -> list[tuple[int, int]]:
    """Return the steps that were made again, as (first, last), from the first and last step of each attempt."""
    again: list[tuple[int, int]] = []
    for number, (first, last) in enumerate(steps):
        later = [other for other, _ in steps[number + 1 :] if other is not None]
        if first is not None and last is not None and later and min(later) <= last:
            again.append((max(first, min(later)), last))
    return merged(again)


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges that overlap or touch as one."""
    result: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result


def repeated_count(steps: Sequence[tuple[int | None, int | None]]) -> int:
    """Return how many steps were made more than once, each further time counted."""
    made = sum(last - first + 1 for first, last in steps if first is not None and last is not None)
    ranges = merged([(first, last) for first, last in steps if first is not None and last is not None])
    return made - sum(last - first + 1 for first, last in ranges)
