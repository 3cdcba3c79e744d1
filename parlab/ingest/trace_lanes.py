"""The lanes of the traced ranks of a run on one clock, as the trace view draws them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from parlab.ingest.summaries.traces import lanes_of
from parlab.lab.models import RankTrace, Run
from parlab.traces.breakdown import Window
from parlab.traces.collectives import Table
from parlab.traces.kinds import CLASSES, OTHER
from parlab.traces.lanes import StoredLanes
from parlab.traces.stored import Analysis, meeting_of

MAX_RANKS = 64
MOST_BARS = 700
"""Bars of a lane in one answer: a screen has about twice as many pixels."""
MAX_LINKS = 200
_CLASS_NAMES = [*(name for name, _ in CLASSES), OTHER]


class TracedRank(NamedTuple):
    """The lanes of a rank, and what must be added to its times for those of the view."""

    rank: int
    host: str
    lanes: StoredLanes
    shift_s: float


class Links(NamedTuple):
    """The collectives of several ranks, the longest first."""

    ranks: list[int]
    names: list[str]
    begins: Table
    """Rank x collective, in seconds on the clock of the first rank; NaN where a rank does not take part."""
    ends: Table


class Shared(NamedTuple):
    """What the analyses of the traced ranks add to their lanes, on the clock of the first rank."""

    hosts: dict[int, str]
    shifts: dict[int, float]
    steps: list[tuple[int, Window]]
    links: Links


class Traced(NamedTuple):
    """The traced ranks of a run with stored lanes."""

    ranks: list[TracedRank]
    missing: list[int]
    """Ranks whose lanes are not stored."""
    shared: Shared
    first_s: float
    """When the first event of all begins."""

    @property
    def begin_s(self) -> float:
        return min((row.lanes.begin_s + row.shift_s for row in self.ranks), default=0.0)

    @property
    def end_s(self) -> float:
        return max((row.lanes.end_s + row.shift_s for row in self.ranks), default=0.0)


def traced_ranks(run: Run) -> Traced:
    """Return the traced ranks of a run; times begin with the first event of all, on the clock of the first rank."""
    rows = RankTrace.objects.filter(run=run).order_by("rank")[:MAX_RANKS].values_list("pk", "rank", "sha256")
    shared = _shared(tuple(rows))
    ranks, missing = [], []
    for _, rank, sha256 in rows:
        lanes = lanes_of(sha256)
        if lanes is None:
            missing.append(rank)
        else:
            ranks.append(TracedRank(rank, shared.hosts[rank], lanes, shared.shifts[rank]))
    first_s = min((row.lanes.begin_s + row.shift_s for row in ranks), default=0.0)
    return Traced([row._replace(shift_s=row.shift_s - first_s) for row in ranks], missing, shared, first_s)


@lru_cache(maxsize=4)
def _shared(rows: tuple[tuple[int, int, str], ...]) -> Shared:
    """Read the analyses of (key, rank, digest of the file): a step of a zoom does not read them again."""
    traces = RankTrace.objects.filter(pk__in=[key for key, *_ in rows])
    analyses = {row.rank: Analysis.model_validate(row.analysis) for row in traces.order_by("rank")}
    offsets_s = meeting_of(analyses).offsets_s
    origin_s = analyses[min(analyses)].origin_s if analyses else 0.0
    shifts = {rank: analysis.origin_s - origin_s - offsets_s.get(rank, 0.0) for rank, analysis in analyses.items()}
    return Shared(
        {rank: analysis.host for rank, analysis in analyses.items()},
        shifts,
        [(rank, step) for rank, analysis in analyses.items() for step in analysis.steps],
        _links_of(analyses, shifts),
    )


def _links_of(analyses: Mapping[int, Analysis], shifts: Mapping[int, float]) -> Links:
    keys = {rank: [(each.group, each.name, each.sequence) for each in row.messages] for rank, row in analyses.items()}
    taking_part = Counter(key for own in keys.values() for key in dict.fromkeys(own))
    places = {key: place for place, key in enumerate(key for key, ranks in taking_part.items() if ranks > 1)}
    begins, ends = (np.full((len(analyses), len(places)), np.nan) for _ in range(2))
    for row, (rank, analysis) in enumerate(analyses.items()):
        for key, message in zip(keys[rank], analysis.messages, strict=True):
            if (place := places.get(key)) is not None:
                begins[row, place], ends[row, place] = message.begin_s + shifts[rank], message.end_s + shifts[rank]
    lengths = np.nanmax(ends - begins, axis=0) if places else np.empty(0)
    order = np.argsort(-lengths, kind="stable")
    names = [f"{name} {sequence}" for _, name, sequence in places]
    return Links(list(analyses), [names[place] for place in order], begins[:, order], ends[:, order])


def outline(traced: Traced) -> dict[str, Any]:
    """Return ranks, lanes, names and steps: all that does not depend on the window."""
    steps = [
        {"rank": rank, "step": step.step, "begin": step.begin_s + shift_s, "end": step.end_s + shift_s}
        for rank, step in traced.shared.steps
        for shift_s in [traced.shared.shifts[rank] - traced.first_s]
    ]
    return {
        "begin": traced.begin_s,
        "end": traced.end_s,
        "events": sum(row.lanes.events for row in traced.ranks),
        "classes": _CLASS_NAMES,
        "steps": steps,
        "ranks": [
            {
                "rank": row.rank,
                "host": row.host,
                "lanes": [lane._asdict() for lane in row.lanes.lanes],
                "names": row.lanes.names,
                "name_classes": [_CLASS_NAMES.index(name) for name in row.lanes.classes()],
            }
            for row in traced.ranks
        ],
        "missing": traced.missing,
    }


def window(traced: Traced, begin_s: float, end_s: float) -> dict[str, Any]:
    """Return the bars of all lanes in a window, times in seconds since its beginning, and the linked collectives."""
    ranks = []
    for row in traced.ranks:
        shown = row.lanes.window(begin_s - row.shift_s, end_s - row.shift_s, most=MOST_BARS)
        shift_s = row.shift_s - begin_s
        ranks.append(
            {
                "rank": row.rank,
                "lanes": [
                    {
                        "starts": [round(start + shift_s, 9) for start in bars.starts],
                        "lengths": [round(end - start, 9) for start, end in zip(bars.starts, bars.ends, strict=True)],
                        "names": bars.names,
                        "busy": None if bars.is_exact else [round(busy, 9) for busy in bars.busy],
                    }
                    for bars in shown
                ],
            }
        )
    return {"begin": begin_s, "end": end_s, "ranks": ranks, "links": _links(traced, begin_s, end_s)}


def _links(traced: Traced, begin_s: float, end_s: float) -> list[dict[str, Any]]:
    """Return the collectives of several ranks that at least one of them has in a window, the longest first."""
    links, from_s = traced.shared.links, begin_s + traced.first_s
    inside = ((links.ends >= from_s) & (links.begins <= end_s + traced.first_s)).any(axis=0)
    rows = []
    for place in np.flatnonzero(inside)[:MAX_LINKS].tolist():
        begins, ends = links.begins[:, place] - from_s, links.ends[:, place] - from_s
        there = np.flatnonzero(~np.isnan(begins))
        rows.append(
            {
                "name": links.names[place],
                "late": links.ranks[int(np.nanargmax(begins))],
                "skew": float(np.nanmax(begins) - np.nanmin(begins)),
                "times": [[links.ranks[row], float(begins[row]), float(ends[row])] for row in there],
            }
        )
    return rows


def matches(traced: Traced, text: str, after_s: float) -> list[dict[str, Any]]:
    """Return the names that contain a text over all ranks, with occurrences after a time, the next first."""
    by_name: dict[str, dict[str, Any]] = {}
    for row in traced.ranks:
        for match in row.lanes.search(text, after_s - row.shift_s):
            entry = by_name.setdefault(match.name, {"name": match.name, "count": 0, "total": 0.0, "at": []})
            entry["count"] += match.calls
            entry["total"] += match.total_s
            entry["at"] += [
                [row.rank, lane, start + row.shift_s, end + row.shift_s] for lane, start, end in match.occurrences
            ]
    for entry in by_name.values():
        entry["at"].sort(key=lambda place: (place[2] <= after_s, place[2]))
    return sorted(by_name.values(), key=lambda entry: -entry["total"])


def exported(traced: Traced) -> Iterator[bytes]:
    """Yield a Chrome trace of all ranks on one clock, which Perfetto opens."""
    yield b'{"displayTimeUnit":"ms","traceEvents":[\n'
    separator = b""
    for row in traced.ranks:
        for event in row.lanes.exported(row.rank, row.shift_s):
            yield separator + event
            separator = b",\n"
    yield b"\n]}\n"
