"""The lanes of the traced ranks of a run on one clock, as the trace view draws them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from parlab.ingest.traces import lanes_of
from parlab.lab.models import RankTrace, Run
from parlab.traces.collectives import Meeting
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


class Traced(NamedTuple):
    """The traced ranks of a run with stored lanes."""

    ranks: list[TracedRank]
    missing: list[int]
    """Ranks whose lanes are not stored."""
    analyses: dict[int, Analysis]
    shifts: dict[int, float]

    @property
    def begin_s(self) -> float:
        return min((row.lanes.begin_s + row.shift_s for row in self.ranks), default=0.0)

    @property
    def end_s(self) -> float:
        return max((row.lanes.end_s + row.shift_s for row in self.ranks), default=0.0)


def traced_ranks(run: Run) -> Traced:
    """Return the traced ranks of a run; times begin with the first event of all, on the clock of the first rank."""
    rows = list(RankTrace.objects.filter(run=run).order_by("rank")[:MAX_RANKS])
    analyses = {row.rank: Analysis.model_validate(row.analysis) for row in rows}
    met = meeting_of(analyses)
    shifts = _shifts(analyses, met)
    ranks, missing = [], []
    for row in rows:
        lanes = lanes_of(row)
        if lanes is None:
            missing.append(row.rank)
        else:
            ranks.append(TracedRank(row.rank, analyses[row.rank].host, lanes, shifts[row.rank]))
    first_s = min((row.lanes.begin_s + row.shift_s for row in ranks), default=0.0)
    shifts = {rank: shift - first_s for rank, shift in shifts.items()}
    return Traced([row._replace(shift_s=shifts[row.rank]) for row in ranks], missing, analyses, shifts)


def _shifts(analyses: dict[int, Analysis], met: Meeting) -> dict[int, float]:
    if not analyses:
        return {}
    origin_s = analyses[min(analyses)].origin_s
    return {rank: analysis.origin_s - origin_s - met.offsets_s.get(rank, 0.0) for rank, analysis in analyses.items()}


def outline(traced: Traced) -> dict[str, Any]:
    """Return ranks, lanes, names and steps: all that does not depend on the window."""
    steps = [
        {"rank": row.rank, "step": step.step, "begin": step.begin_s + row.shift_s, "end": step.end_s + row.shift_s}
        for row in traced.ranks
        for step in traced.analyses[row.rank].steps
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
    if len(traced.ranks) < 2:
        return []
    by_key: dict[tuple[str, str, int], dict[int, tuple[float, float]]] = {}
    for row in traced.ranks:
        for message in traced.analyses[row.rank].messages:
            times = by_key.setdefault((message.group, message.name, message.sequence), {})
            times[row.rank] = (message.begin_s + row.shift_s, message.end_s + row.shift_s)
    shared = [
        (key, times)
        for key, times in by_key.items()
        if len(times) > 1 and any(end >= begin_s and begin <= end_s for begin, end in times.values())
    ]
    shared.sort(key=lambda item: min(begin - end for begin, end in item[1].values()))
    return [
        {
            "name": f"{name} {sequence}",
            "late": max(times, key=lambda rank: times[rank][0]),
            "skew": max(begin for begin, _ in times.values()) - min(begin for begin, _ in times.values()),
            "times": [[rank, begin - begin_s, end - begin_s] for rank, (begin, end) in times.items()],
        }
        for (_, name, sequence), times in shared[:MAX_LINKS]
    ]


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
