"""Restarts within one launch: the lines of torchrun's agent, torchft and NVRx about ranks that left and came back.

Pure: lines with their times in, marks out.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from parlab.formats.grammar.prefixes import strip_prefix
from parlab.formats.grammar.units import unix_time

Event = Literal["failure", "leave", "meet", "met", "load", "loaded", "commit"]
"""failure: noticed; leave: the ranks are being ended; meet, met: the rendezvous; load, loaded: the checkpoint of
another replica; commit: a step of torchft."""
MAX_MARKS = 10_000


class Mark(NamedTuple):
    """A line about the ranks of a launch."""

    time: float
    """Unix seconds."""
    event: Event
    source: str
    """torchrun, torchft or NVRx."""
    text: str = ""
    ranks: int | None = None
    """Ranks or replicas from here on, if the line states them."""
    step: int | None = None


SIGN = re.compile(
    r"worker group|Rendezvous|world_sizes?=|exitcode: -?\d+\) local_rank|torchft|should_commit=|reconfiguring for"
    r" quorum|lighthouse quorum|participants healthy|\bfn_ex: |\bterm_ex: |\brestart_ex: ",
    re.IGNORECASE,
)
"""What a line must contain to be looked at."""

_RULES: tuple[tuple[re.Pattern[str], Event, str], ...] = (
    (re.compile(r"Worker group (?:FAILED|UNHEALTHY)\. \d+/\d+ attempts left"), "failure", "torchrun"),
    (re.compile(r"failed \(exitcode: -?\d+\) local_rank: \d+"), "failure", "torchrun"),
    (re.compile(r"Detected \d+ new nodes from group_rank"), "failure", "torchrun"),
    (re.compile(r"\] Stopping worker group"), "leave", "torchrun"),
    (re.compile(r"\] Rendezvous'ing worker group"), "meet", "torchrun"),
    (re.compile(r"\] Starting worker group"), "met", "torchrun"),
    (re.compile(r"reconfiguring for quorum_id="), "meet", "torchft"),
    (re.compile(r"healing required, fetching checkpoint"), "load", "torchft"),
    (re.compile(r"\bLoaded state dict\b"), "loaded", "torchft"),
    (re.compile(r"got exception in (?:future|all ?reduce|pg configure|recovery)"), "failure", "torchft"),
    (re.compile(r"should_commit=False"), "failure", "torchft"),
    (re.compile(r"should_commit=True"), "commit", "torchft"),
    (re.compile(r"\b(?:fn_ex|term_ex): "), "failure", "NVRx"),
    (re.compile(r"\brestart_ex: "), "meet", "NVRx"),
)
_WORLD = re.compile(r"\bglobal_world_sizes=\[(\d{1,7})")
_HEALTHY = re.compile(r"\[(\d{1,6})/\d{1,6} participants healthy\]")
# torchft's manager lists all replicas before it meets them; it does so for each step, also if they are the same.
_QUORUM, _MEMBER = "got lighthouse quorum ", "QuorumMember {"
_STEP = re.compile(r" - step (\d{1,9})\]")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d{1,9}|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)")
# glog's prefix, which torch uses: level, month, day, time, thread.
_GLOG = re.compile(r"\b[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6}) ")


def marks(lines: Iterable[tuple[float | None, str]]) -> list[Mark]:
    """Return the marks in lines, each with the time at which it was printed, or None: then the line's own counts.

    Lines without any time have that of the line before.
    """
    found, now, replicas = list[Mark](), 0.0, None
    for time, line in lines:
        if not SIGN.search(line):
            continue
        now = time if time else _own_time(line, now) or now
        if _QUORUM in line:
            replicas = line.count(_MEMBER) or None
            continue
        for mark in _marks_of(line, now, replicas):
            if _is_world(mark) and found and found[-1].ranks is None:
                found[-1] = found[-1]._replace(ranks=mark.ranks)
            elif len(found) < MAX_MARKS:
                found.append(mark)
    return found


def _is_world(mark: Mark) -> bool:
    return mark.text == "world"


def _marks_of(line: str, now: float, replicas: int | None) -> Iterator[Mark]:
    step = _STEP.search(line)
    for pattern, event, source in _RULES:
        if pattern.search(line):
            text = strip_prefix(line)[2].strip()
            text = text[max(0, text.find("rank=")) if source == "NVRx" else 0 :][:200]  # behind the name of its logger
            ranks = replicas if (event, source) == ("meet", "torchft") else None
            yield Mark(now, event, source, text, ranks, int(step[1]) if step else None)
            return
    if world := _WORLD.search(line) or _HEALTHY.search(line):
        yield Mark(now, "met", "torchrun" if "world_sizes" in line else "torchft", "world", int(world[1]))


def _own_time(line: str, before: float) -> float | None:
    """Return the time that a line states; one without a year has that of the line before."""
    head = line[:160]
    if stamp := _STAMP.search(head):
        return unix_time(stamp[1].replace(",", "."))
    if glog := _GLOG.search(head):
        month, day, hour, minute, second, micro = (int(part) for part in glog.groups())
        year = datetime.fromtimestamp(before, UTC).year if before else 2000
        try:
            return datetime(year, month, day, hour, minute, second, micro, UTC).timestamp()
        except ValueError:
            return None
    return None


class Restart(NamedTuple):
    """A restart within a launch: Unix seconds of what its lines state, None for what they do not."""

    source: str
    reason: str
    noticed_s: float
    left_s: float | None
    met_s: float | None
    loaded_s: float | None
    committed_s: float | None
    """End of the first step afterwards, where the lines state steps."""
    ranks: tuple[int, int] | None


def restarts(listed: list[Mark], steps: Sequence[float] = ()) -> list[Restart]:
    """Return the restarts in the marks of a launch: each begins when a failure or a new member is noticed.

    The first rendezvous of a launch is its start and no restart. `steps` are the ends of steps in order: NVRx prints
    nothing once its ranks have met, so that only a step tells one failure from the next.
    """
    found, ranks, is_started = list[Restart](), None, False
    place = 0
    while place < len(listed):
        mark = listed[place]
        if mark.ranks is not None and not is_started:
            ranks = mark.ranks
        is_begin = mark.event == "failure" or (mark.event == "meet" and is_started)
        if not is_begin:
            is_started = is_started or mark.event in ("meet", "met", "commit")
            place += 1
            continue
        end = _end_of(listed, place, steps)
        group = listed[place:end]
        if any(each.event in ("meet", "load") for each in group):
            after = next((each.ranks for each in reversed(group) if each.ranks is not None), None)
            found.append(_restart(group, (ranks, after) if ranks and after else None))
            ranks = after or ranks
        is_started, place = True, max(end, place + 1)
    return found


def _end_of(listed: list[Mark], begin: int, steps: Sequence[float]) -> int:
    """Return the place after the last mark of a restart: its first committed step, or the mark before the next one."""
    has_met, meets_at = False, float("inf")
    for place in range(begin + 1, len(listed)):
        mark = listed[place]
        if mark.event == "commit":
            return place + 1
        has_met = has_met or mark.event in ("met", "loaded")
        meets_at = min(meets_at, mark.time) if mark.event == "meet" else meets_at
        if mark.event == "failure" and (has_met or bisect_left(steps, mark.time) > bisect_left(steps, meets_at)):
            return place
    return len(listed)


def _restart(group: list[Mark], ranks: tuple[int, int] | None) -> Restart:
    def last(*events: Event) -> float | None:
        return max((mark.time for mark in group if mark.event in events), default=None)

    def first(*events: Event) -> float | None:
        return min((mark.time for mark in group if mark.event in events), default=None)

    head = group[0]
    return Restart(
        head.source,
        head.text,
        head.time,
        first("meet"),
        last("met") or first("load"),
        last("loaded"),
        first("commit"),
        ranks,
    )
