from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.utils import timezone

from parlab.lab.models import Attempt, Config, Run
from parlab.watch.models import Result, Watch
from runners.wire.protocol import RunState


def repeats(count: int, *, level: float = 0.1, noise: float = 0.01, seed: int = 1) -> list[float]:
    draw = np.random.default_rng(seed)
    return [float(value) for value in level * np.exp(draw.normal(0.0, noise, count))]


@pytest.fixture
def watched(make_config: Callable[..., Config]) -> Config:
    return make_config()


@pytest.fixture
def make_results(watched: Config, make_attempt: Callable[..., Attempt]) -> Callable[[Sequence[float]], list[Attempt]]:
    """End attempts of one run of the configuration, a minute apart: make_results([0.1, 0.1], driver="580")."""
    end = timezone.now() - timedelta(days=2)

    def make(values: Sequence[float], **environment: Any) -> list[Attempt]:
        run = watched.runs.first() or make_attempt(config=watched, state="finished").run
        first = run.attempts.exclude(summary={}).count()
        attempts = []
        for at, value in enumerate(values):
            number = first + at + 1
            attempt, _ = Attempt.objects.update_or_create(
                run=run,
                number=number,
                defaults={
                    "state": RunState.FINISHED,
                    "summary": {"step_time_s": {"median": value}, "samples_per_s": 4 / value},
                    "environment": {"driver": "570", **environment},
                    "ended_at": end + timedelta(minutes=number),
                },
            )
            attempts.append(attempt)
        Run.objects.filter(pk=run.pk).update(attempt_number=attempts[-1].number, summary=attempts[-1].summary)
        return attempts

    return make


def history(watch: Watch, values: Sequence[float], *, measure: str = "step_time", **fields: Any) -> list[Result]:
    """Store results of a watch without runs, a minute apart."""
    count = watch.results.count()
    start = timezone.now() - timedelta(days=3)
    return Result.objects.bulk_create(
        [
            Result(
                watch=watch,
                line=f"{count + at}",
                at=start + timedelta(minutes=count + at),
                values={measure: value},
                **fields,
            )
            for at, value in enumerate(values)
        ]
    )
