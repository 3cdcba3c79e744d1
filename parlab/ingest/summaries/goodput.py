"""Goodput and energy of a run, from its attempts and their series."""

from __future__ import annotations

from statistics import mean
from typing import NamedTuple

import numpy as np

from parlab.advice.goodput import Goodput, Tries, goodput
from parlab.ingest.summaries.checkpoints import BLOCKED_S
from parlab.lab.models import Attempt, Run
from parlab.series import store
from parlab.series.columns import Columns
from runners.wire.protocol import RunState

MAX_ATTEMPTS = 100
_FAILED = (RunState.FAILED, RunState.OOM, RunState.LOST, RunState.PREEMPTED)
_CHECKPOINT = "timer/save-checkpoint"
"""What checkpoints take away from steps."""
_STEP, _POWER, _CPU_POWER = "step_time_s", "power_watts", "cpu_power_watts"


class Energy(NamedTuple):
    """What the devices of the current attempt drew, from their counters."""

    watts: dict[int, float]
    """Rank -> mean power of its GPU."""
    node_watts: dict[int, float]
    """Node -> mean power of its processors and their memory, with all that runs on it."""
    joules: float
    """Of both."""
    joules_per_token: float | None


class RunGoodput(NamedTuple):
    goodput: Goodput | None
    reason: str
    checkpoint_s: float | None
    """Median time that a checkpoint takes away from the training; None if nothing measures it."""
    energy: Energy | None


def run_goodput(run: Run) -> RunGoodput:
    """Return the goodput of a run that started here; attempts that are active are left out."""
    if run.origin != Run.Origin.MEASURED:
        return RunGoodput(None, "only runs that parlab starts have attempts", None, None)
    attempts = list(run.attempts.exclude(started_at=None).exclude(ended_at=None).order_by("number")[:MAX_ATTEMPTS])
    if not attempts:
        return RunGoodput(None, "no attempt of the run has started and ended", None, None)
    series = store.read_many([attempt.pk for attempt in attempts], [_STEP, _CHECKPOINT, BLOCKED_S, _POWER, _CPU_POWER])
    tries, waits_from = [], run.queued_at
    for attempt in attempts:
        assert attempt.started_at is not None
        assert attempt.ended_at is not None
        waited_s = (attempt.started_at - waits_from).total_seconds()
        tries.append(_tries(attempt, waited_s, series))
        waits_from = attempt.ended_at
    last = attempts[-1]
    saved = _of_metric(series, last.pk, _CHECKPOINT) or _of_metric(series, last.pk, BLOCKED_S)
    costs = np.concatenate([columns.values for columns in saved.values()]) if saved else np.empty(0)
    checkpoint_s = float(np.median(costs[costs > 0])) if (costs > 0).any() else None
    return RunGoodput(goodput(tries), "", checkpoint_s, _energy(run, last, series))


Series = dict[tuple[int, str, int], Columns]


def _of_metric(series: Series, attempt: int, metric: str) -> dict[int, Columns]:
    return {
        rank: columns
        for (number, name, rank), columns in series.items()
        if (number, name) == (attempt, metric) and rank >= 0
    }


def _tries(attempt: Attempt, waited_s: float, series: Series) -> Tries:
    """Return an attempt with the steps of its first rank, which passes the same barriers as the others."""
    assert attempt.started_at is not None
    assert attempt.ended_at is not None
    by_rank = _of_metric(series, attempt.pk, _STEP)
    saved = _of_metric(series, attempt.pk, _CHECKPOINT)
    nothing = Columns(np.empty(0, np.int64), np.empty(0), np.empty(0))
    steps = by_rank[min(by_rank)] if by_rank else nothing
    steps = steps.take(np.argsort(steps.times, kind="stable"))
    inside_s, all_s = _sum(saved), _sum(_of_metric(series, attempt.pk, BLOCKED_S))
    return Tries(
        waited_s,
        attempt.started_at.timestamp(),
        attempt.ended_at.timestamp(),
        attempt.state in _FAILED,
        steps.steps,
        steps.times,
        np.where(np.isfinite(steps.values) & (steps.values > 0), steps.values, 0.0),
        inside_s,
        max(0.0, all_s - inside_s),
    )


def _sum(by_rank: dict[int, Columns]) -> float:
    """Return the sum of the values of the first rank."""
    values = by_rank[min(by_rank)].values if by_rank else np.empty(0)
    return float(values[np.isfinite(values)].sum())


def _energy(run: Run, attempt: Attempt, series: Series) -> Energy | None:
    """Return the energy of an attempt; None without counters."""
    watts = _mean_values(_of_metric(series, attempt.pk, _POWER))
    node_watts = _mean_values(
        {
            -1 - rank: columns
            for (number, name, rank), columns in series.items()
            if (number, name) == (attempt.pk, _CPU_POWER) and rank < 0
        }
    )
    if not (watts or node_watts) or attempt.started_at is None or attempt.ended_at is None:
        return None
    total = sum(watts.values()) + sum(node_watts.values())
    tokens = run.summary.get("tokens_per_s")
    length_s = (attempt.ended_at - attempt.started_at).total_seconds()
    per_token = total / tokens if isinstance(tokens, int | float) and tokens > 0 else None
    return Energy(watts, node_watts, total * length_s, per_token)


def _mean_values(power: dict[int, Columns]) -> dict[int, float]:
    return {place: mean(columns.values.tolist()) for place, columns in sorted(power.items()) if len(columns)}
