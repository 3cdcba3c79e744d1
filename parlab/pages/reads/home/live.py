"""Active runs as cards: how far they are, how they train, whether a rank is slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from django.db.models import F

from parlab.charts.format import DASH, SPACE, duration, quantity, significant
from parlab.charts.svg import Look, Svg, progress_bar, ring, sparkline
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.analysis.identities import identities
from parlab.lab.selectors.analysis.stragglers import slowest_rank, slowest_stage
from parlab.lab.selectors.analysis.utilisation import share_pct
from parlab.lab.selectors.home import ActiveRun
from parlab.series import store
from parlab.series.columns import Columns
from runners.config import engine_of
from runners.wire.protocol import RunState

MAX_CARDS = 6
_POINTS = 120
_LOSS, _STEP_TIME = "loss", "step_time_s"
_STEP_LOOK = Look(7)
EVEN = 0.1
"""A rank that works this share longer than the others is named."""


class Live(NamedTuple):
    """A card of a running run."""

    run: Run
    name: str
    left: str
    """`31 s left`, `trial 3`, `starting`."""
    done: str
    """`98 / 150`."""
    bar: Svg | str
    loss: str
    loss_line: Svg | str
    step_time: str
    step_line: Svg | str
    mfu: str
    mfu_ring: Svg
    speed: str
    speed_unit: str
    slowest: str
    """`r1`; `even` if no rank is slower; empty if unknown."""
    slower: str
    """`+77 %`."""


def live_cards(active: Sequence[ActiveRun]) -> list[Live]:
    """Return the cards of the runs that are running, the first ones of many."""
    running = [item for item in active if item.run.state == RunState.RUNNING][:MAX_CARDS]
    runs = [item.run for item in running]
    attempts = Attempt.objects.filter(run__in=runs, number=F("run__attempt_number"))
    by_run = {attempt.run_id: attempt for attempt in attempts}
    names = _names(runs)
    series = store.read_many([attempt.pk for attempt in by_run.values()], [_LOSS, _STEP_TIME]) if by_run else {}
    return [_card(item, by_run.get(item.run.pk), names[item.run.pk], series) for item in running]


def _names(runs: Sequence[Run]) -> dict[int, str]:
    """Return what tells each run apart within its experiment."""
    names: dict[int, str] = {}
    for experiment in {run.experiment_id for run in runs}:
        siblings = Run.objects.filter(experiment=experiment, hidden_at=None).defer("summary", "launch")
        known = identities(list(siblings.order_by("number")[:200]))
        names |= {run.pk: known[run.pk].name for run in runs if run.pk in known}
    return {run.pk: names.get(run.pk) or f"#{run.number}" for run in runs}


def _card(item: ActiveRun, attempt: Attempt | None, name: str, series: Mapping[Any, Columns]) -> Live:
    run, step = item.run, item.step or 0
    own = _own(series, attempt)
    loss, times = _first_rank(own, _LOSS), _slowest(own)
    middle = float(np.median(times)) if times else None
    of = run.iterations if engine_of(run.resolved).has_steps else None
    summary = (attempt.summary if attempt is not None else None) or run.summary
    mfu = share_pct(summary, "mfu")
    slowest, slower = _slowest_text(run)
    return Live(
        run=run,
        name=name,
        left=_left(item, middle, has_end=bool(of)),
        done=_done(step, of),
        bar=progress_bar(step / of, f"{step} of {of} steps") if of else "",
        loss=_change(loss),
        loss_line=_line(loss, "Loss"),
        step_time="" if middle is None else quantity(middle, "s"),
        step_line=_line(times, "Step time", height=32, look=_STEP_LOOK, is_filled=False),
        mfu=DASH if mfu is None else f"{significant(mfu)}{SPACE}%",
        mfu_ring=ring(None if mfu is None else mfu / 100, "MFU"),
        speed=significant(_speed(run, summary, middle)),
        speed_unit="Samples/s",
        slowest=slowest,
        slower=slower,
    )


def _own(series: Mapping[Any, Columns], attempt: Attempt | None) -> dict[Any, Columns]:
    return {key: value for key, value in series.items() if attempt is not None and key[0] == attempt.pk}


def _change(values: Sequence[float]) -> str:
    return f"{significant(values[0], 4)} → {significant(values[-1], 4)}" if values else ""


def _line(values: Sequence[float], label: str, **more: Any) -> Svg | str:
    """Draw a series; a single point is no line."""
    return sparkline(values, label, **more) if len(values) > 1 else ""


def _speed(run: Run, summary: Mapping[str, Any], step_s: float | None) -> float | None:
    """Return the throughput of a run; of one that is not summarized yet, from its batch and median step time."""
    known = run.samples_per_s or summary.get("samples_per_s")
    batch = run.resolved.get("train", {}).get("global_batch_size")
    return known or (batch / step_s if isinstance(batch, int) and step_s else None)


def _slowest_text(run: Run) -> tuple[str, str]:
    """Return the rank that works longer than the others, and how much longer; `even` if none does."""
    slow = (slowest_rank(run) or slowest_stage(run)) if run.summary else None
    if slow is None:
        return DASH, ""
    return (f"r{slow.rank}", f"+{100 * slow.excess:.0f}{SPACE}%") if slow.excess > EVEN else ("even", "")


def _done(step: int, of: int | None) -> str:
    if of:
        return f"{step:,} / {of:,}"
    return f"{step:,}" if step else ""


def _left(item: ActiveRun, step_s: float | None, *, has_end: bool) -> str:
    if not item.step:
        return "starting"
    if not has_end:
        return f"trial {item.step:,}"
    if item.remaining_s is not None:
        return f"{duration(item.remaining_s, coarse=True)} left"
    if step_s is not None and item.run.iterations:
        return f"{duration(step_s * max(0, item.run.iterations - item.step), coarse=True)} left"
    return f"step {item.step:,}"


def _thinned(values: np.ndarray[Any, Any]) -> list[float]:
    """Return at most _POINTS values, evenly spaced, with the last one."""
    if len(values) <= _POINTS:
        return [float(value) for value in values]
    places = np.linspace(0, len(values) - 1, _POINTS).astype(int)
    return [float(values[place]) for place in places]


def _first_rank(series: Mapping[Any, Columns], metric: str) -> list[float]:
    ranks = sorted(key for key in series if key[1] == metric)
    return _thinned(series[ranks[0]].values) if ranks else []


def _slowest(series: Mapping[Any, Columns]) -> list[float]:
    """Return the step times of the slowest rank at each step."""
    columns = [value for key, value in series.items() if key[1] == _STEP_TIME and len(value)]
    if not columns:
        return []
    steps = min(len(column) for column in columns)
    return _thinned(np.max([column.values[:steps] for column in columns], axis=0)) if steps else []
