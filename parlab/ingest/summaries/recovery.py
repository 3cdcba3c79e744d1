"""Recovery of a run: its interruptions, between attempts and within them, and its goodput by hour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
from django.core.cache import cache
from numpy.typing import NDArray

from parlab.advice.recovery import Hour, Interruption, by_hour, interruption
from parlab.formats import elastic
from parlab.lab.models import Attempt, Member, Run
from parlab.series import log, store
from parlab.series.columns import Columns
from runners.config import engine_of

MAX_ATTEMPTS = 100
MAX_INTERRUPTIONS = 200
SCAN_BYTES = 256 << 20
"""Bytes of a log that are searched for restarts within an attempt."""
KEEP_S = 24 * 3600
RANKS = "elastic_ranks"
"""Series with the number of ranks from then on: the client reports it where torchrun starts ranks again."""
_NOTHING = Columns(np.empty(0, np.int64), np.empty(0), np.empty(0))
_PER_STEP = ("loss", "tokens_per_s", "samples_per_s")
"""Series with a point for each step, in place of step times that a log does not state."""
_STEP, _LOADS = "step_time_s", ("checkpoint/load_s", "timer/load-checkpoint")


class RunRecovery(NamedTuple):
    """Interruptions of a run, and its hours."""

    interruptions: list[Interruption]
    hours: list[Hour]


class _Steps(NamedTuple):
    """The steps of an attempt by their ends, of its first rank."""

    numbers: NDArray[np.int64]
    begins: NDArray[np.float64]
    ends: NDArray[np.float64]
    loads: NDArray[np.float64]
    """When checkpoints had been loaded."""

    @property
    def is_empty(self) -> bool:
        return len(self.numbers) == 0


def run_recovery(run: Run) -> RunRecovery:
    """Return the interruptions of a run that are over, and its hours; kept until something of it changes."""
    attempts = list(run.attempts.with_members().order_by("number"))
    if run.origin == Run.Origin.MEASURED:
        attempts = [attempt for attempt in attempts if attempt.started_at is not None or attempt.last_step is not None]
    attempts = attempts[-MAX_ATTEMPTS:]
    stamp = max((attempt.numbers_at for attempt in attempts), default=run.numbers_at)
    key = f"parlab.recovery.{run.pk}.{run.attempt_number}.{run.state}.{stamp.timestamp()}"
    kept: RunRecovery | None = cache.get(key)
    if kept is None:
        kept = _recovery(run, attempts)
        cache.set(key, kept, KEEP_S)
    return kept


def _recovery(run: Run, attempts: Sequence[Attempt]) -> RunRecovery:
    steps = {attempt.pk: _steps_of(attempt) for attempt in attempts}
    found: list[Interruption] = []
    highest = -1
    for place, attempt in enumerate(attempts):
        own = steps[attempt.pk]
        if place:
            found.append(_between(attempts[place - 1], attempt, steps[attempts[place - 1].pk], own, highest))
        found += _within(run, attempt, own)
        highest = max(highest, int(own.numbers.max()) if not own.is_empty else -1)
    return RunRecovery(found[-MAX_INTERRUPTIONS:], _hours(attempts, steps))


def _steps_of(attempt: Attempt) -> _Steps:
    """Return the steps of the first rank, which passes the same barriers as the others."""
    series = store.read_many([attempt.pk], [_STEP, *_PER_STEP, *_LOADS])
    metric = next((name for name in (_STEP, *_PER_STEP) if any(key[1] == name for key in series)), _STEP)
    ranks = sorted(rank for _, name, rank in series if name == metric and rank >= 0)
    loads = [columns.times for (_, name, rank), columns in series.items() if name in _LOADS and rank >= 0]
    loaded = np.concatenate(loads) if loads else np.empty(0)
    if not ranks:
        return _Steps(np.empty(0, np.int64), np.empty(0), np.empty(0), loaded)
    columns = series[attempt.pk, metric, ranks[0]]
    columns = columns.take(np.argsort(columns.times, kind="stable"))
    lengths = np.where(np.isfinite(columns.values) & (columns.values > 0), columns.values, 0.0)
    before = np.concatenate([[-np.inf], columns.times[:-1]])
    # A log without step times has at least their ends.
    begins = np.maximum(columns.times - lengths, before) if metric == _STEP else np.maximum(before, columns.times[0])
    return _Steps(columns.steps, begins, columns.times, loaded)


# --- between attempts ------------------------------------------------------------------------------------------------


def _between(before: Attempt, after: Attempt, own: _Steps, later: _Steps, highest: int) -> Interruption:
    ended = _seconds(before.ended_at)
    last = float(own.ends[-1]) if not own.is_empty else ended
    begin = last if last is not None else _seconds(after.started_at) or 0.0
    noticed = min((at for member in before.members.all() if (at := _seconds(member.noticed_at))), default=None)
    ends = {"detect": noticed if noticed is not None else ended}
    if noticed is not None:
        ends["drain"] = ended
    beginning = log.log_beginning(after.pk)
    ends |= {
        "queue": _placed(list(after.members.all())),
        "start": beginning.first_line or _seconds(after.started_at),
        "rendezvous": beginning.started,
    }
    return _with_steps(
        f"Attempt {before.number} to {after.number}",
        before.reason,
        begin,
        ends,
        later,
        highest,
        _seconds(after.ended_at),
    )


def _with_steps(
    name: str,
    reason: str,
    begin: float,
    ends: dict[str, float | None],
    later: _Steps,
    highest: int,
    ended: float | None,
    ranks: tuple[int, int] | None = None,
) -> Interruption:
    """Add what the steps afterwards tell: the load, the first step, and those that were made again."""
    if later.is_empty:
        ends |= {"load": None, "first_step": ended}
        return interruption(name, begin, ends, reason=reason, ranks=ranks)
    first = float(later.ends[0])
    loaded = later.loads[later.loads <= first]
    repeated = later.ends[later.numbers <= highest]
    ends |= {
        "load": float(loaded.max()) if len(loaded) else ends.get("load"),
        "first_step": first,
        "repeated": float(repeated.max()) if len(repeated) else first,
    }
    return interruption(name, begin, ends, reason=reason, ranks=ranks, repeated_steps=len(repeated))


def _placed(members: Sequence[Member]) -> float | None:
    """Return when an attempt had its nodes: assigned by parlab, or given by Slurm."""
    moments = [
        member.prepared_at if member.node is not None and member.node.is_queue else member.assigned_at
        for member in members
    ]
    return max((at for moment in moments if (at := _seconds(moment))), default=None)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


# --- within an attempt -----------------------------------------------------------------------------------------------


def _within(run: Run, attempt: Attempt, own: _Steps) -> Iterator[Interruption]:
    """Yield the restarts within an attempt: where its lines tell of them, or its steps go back."""
    if not _may_restart(run):
        return
    marks = elastic.marks(_lines(attempt))
    listed = elastic.restarts(marks, own.ends.tolist())
    sizes = _sizes(attempt)
    for number, restart in enumerate(listed, 1):
        yield _from_lines(number, restart, own, sizes)
    turns = [place for place in _turns(own, sizes) if not _is_listed(own, place, listed)]
    for number, place in enumerate(turns, len(listed) + 1):
        yield _from_steps(f"Restart {number}", own, place, marks, sizes)


def _sizes(attempt: Attempt) -> Columns:
    """Return the number of ranks that a script has reported, each time with when it began to train with them."""
    series = store.read_many([attempt.pk], [RANKS])
    ranks = sorted(rank for _, _, rank in series)
    columns = series[attempt.pk, RANKS, ranks[0]] if ranks else _NOTHING
    return columns.take(np.argsort(columns.times, kind="stable"))


def _turns(own: _Steps, sizes: Columns) -> list[int]:
    """Return the places of the last steps before a restart: steps begin again, or the number of ranks was reported."""
    again = set(np.flatnonzero(np.diff(own.numbers) <= 0).tolist())
    reported = {int(place) - 1 for place in np.searchsorted(own.ends, sizes.times[1:])}
    return sorted(place for place in again | reported if 0 <= place < len(own.ends) - 1)


def _is_listed(own: _Steps, place: int, listed: Sequence[elastic.Restart]) -> bool:
    """Return whether the lines of a restart are between a step and the next one."""
    begin, end = float(own.ends[place]), float(own.ends[place + 1])
    return any(begin <= restart.noticed_s + 1.0 and restart.noticed_s <= end for restart in listed)


def _from_steps(name: str, own: _Steps, place: int, marks: Sequence[elastic.Mark], sizes: Columns) -> Interruption:
    begin, end = float(own.ends[place]), float(own.ends[place + 1])
    failures = [mark for mark in marks if mark.event == "failure" and begin <= mark.time <= end]
    ends: dict[str, float | None] = dict.fromkeys(("detect", "drain", "start", "rendezvous"))
    ends["detect"] = failures[0].time if failures else None
    later = _change(sizes, begin, end)
    ranks = _ranks_at(sizes, later)
    ends["start"] = float(sizes.times[later]) if later else None
    reason = failures[0].text if failures else "the ranks began again"
    return _after(name, reason, begin, ends, own, place + 1, ranks)


def _change(sizes: Columns, begin: float, end: float) -> int:
    """Return the place at which another number of ranks was reported in a time; 0 if none was."""
    later = int(np.searchsorted(sizes.times, begin))
    return later if 0 < later < len(sizes) and sizes.times[later] <= end else 0


def _ranks_at(sizes: Columns, place: int) -> tuple[int, int] | None:
    """Return the number of ranks before and from a place on."""
    return (int(sizes.values[place - 1]), int(sizes.values[place])) if place else None


def _may_restart(run: Run) -> bool:
    """Whether the launch of a run may have brought ranks back by itself: parlab's own launchers do not."""
    return run.origin != Run.Origin.MEASURED or engine_of(run.resolved).is_external


def _lines(attempt: Attempt) -> Iterator[tuple[float | None, str]]:
    scanned = 0
    for piece in log.log_pieces(attempt.pk, log.node_ranks(attempt.pk)):
        scanned += len(piece.text)
        for line in piece.text.decode("utf-8", "replace").splitlines():
            yield piece.time or None, line
        if scanned > SCAN_BYTES:
            return


def _from_lines(number: int, restart: elastic.Restart, own: _Steps, sizes: Columns) -> Interruption:
    before = own.ends[own.ends <= restart.noticed_s]
    begin = float(before[-1]) if len(before) else restart.noticed_s
    # The agents of torchrun meet before they start the ranks; replicas of torchft and NVRx come back, then meet.
    is_agent = restart.source == "torchrun"
    ends: dict[str, float | None] = {
        "detect": restart.noticed_s,
        "drain": restart.left_s if is_agent else None,
        **({} if is_agent else {"start": restart.left_s}),
        "rendezvous": restart.met_s,
        "load": restart.loaded_s,
    }
    name = f"Restart {number} ({restart.source})"
    later = int(np.searchsorted(own.ends, max(restart.met_s or 0.0, restart.loaded_s or 0.0, restart.noticed_s)))
    until = float(own.ends[later]) if later < len(own.ends) else float("inf")
    ranks = restart.ranks or _ranks_at(sizes, _change(sizes, begin, until))
    if later < len(own.ends):
        return _after(name, restart.reason, begin, ends, own, later, ranks)
    ends["first_step"] = restart.committed_s
    return interruption(name, begin, ends, reason=restart.reason, ranks=ranks)


def _after(
    name: str,
    reason: str,
    begin: float,
    ends: dict[str, float | None],
    own: _Steps,
    place: int,
    ranks: tuple[int, int] | None = None,
) -> Interruption:
    """Return an interruption after which the step at a place of the same attempt was the first one."""
    following = np.flatnonzero(np.diff(own.numbers[place:]) <= 0)
    end = place + int(following[0]) + 1 if len(following) else len(own.numbers)
    later = _Steps(own.numbers[place:end], own.begins[place:end], own.ends[place:end], own.loads[own.loads > begin])
    highest = int(own.numbers[:place].max()) if place else -1
    return _with_steps(name, reason, begin, ends, later, highest, None, ranks)


# --- hours -----------------------------------------------------------------------------------------------------------


def _hours(attempts: Sequence[Attempt], steps: dict[int, _Steps]) -> list[Hour]:
    own = [steps[attempt.pk] for attempt in attempts if not steps[attempt.pk].is_empty]
    if not own:
        return []
    starts = [at for attempt in attempts if (at := _seconds(attempt.started_at))]
    ends = [at for attempt in attempts if (at := _seconds(attempt.ended_at))]
    begin = min([*starts, *(float(each.begins[0]) for each in own)])
    end = max([*ends, *(float(each.ends[-1]) for each in own)])
    lasting = []
    for place, each in enumerate(own):
        limit = min((int(later.numbers.min()) for later in own[place + 1 :]), default=None)
        kept = _last_of_number(each) & (each.numbers < limit if limit is not None else True)
        lasting.append((each.begins[kept].tolist(), each.ends[kept].tolist()))
    return by_hour(begin, end, lasting)


def _last_of_number(steps: _Steps) -> NDArray[np.bool_]:
    """Return which steps no later one of the same attempt repeats."""
    smallest_later = np.minimum.accumulate(steps.numbers[::-1])[::-1]
    following = np.append(smallest_later[1:], np.iinfo(np.int64).max)
    kept: NDArray[np.bool_] = steps.numbers < following
    return kept
