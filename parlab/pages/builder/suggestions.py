"""Values that the planner predicts to be faster than all points of a sweep, or to fit where none does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from parlab.charts.format import SPACE
from parlab.lab.services.runs import launchable
from parlab.pages.forms.sweep_preview import PointRow
from parlab.pages.rows.predictions import Expected, Pools
from runners.config import Point, RunConfig, check, with_values

from .axes import value_text
from .fields import builder_fields

SHOWN = 3
_LEAST_GAIN = 0.02
"""Smaller gains are below the uncertainty of any prediction."""


class Suggestion(NamedTuple):
    """A value to add to a sweep."""

    path: str
    text: str
    sentence: str


def suggestions(rows: Sequence[PointRow], pools: Pools) -> list[Suggestion]:
    """Return values beside the fastest predicted point that are faster, best first; without a fit, those that fit."""
    predicted = [(row.config, row.expected) for row in rows if row.config and row.expected and row.expected.step_time_s]
    fitting = [(config, expected) for config, expected in predicted if expected.fits]
    if not predicted:
        return []
    start, its_expected = min(fitting or predicted, key=lambda pair: _seconds(pair[1]) if fitting else _bytes(pair[1]))
    present = {(path, value_text(builder_fields()[path], value)) for row in rows for path, value in row.values.items()}
    candidates = []
    for path, value in _neighbours(start):
        text = value_text(builder_fields()[path], value)
        expected = None if (path, text) in present else _predicted(start, path, value, pools)
        if expected is None or not expected.fits:
            continue
        gain = _seconds(its_expected) / _seconds(expected) - 1
        if not fitting or gain >= _LEAST_GAIN:
            sentence = _sentence(path, text, gain if fitting else None)
            candidates.append((_seconds(expected), Suggestion(path, text, sentence)))
    return [suggestion for _, suggestion in sorted(candidates)[:SHOWN]]


def _sentence(path: str, text: str, gain: float | None) -> str:
    advantage = "fits" if gain is None else f"fits and is {100 * gain:.0f}{SPACE}% faster"
    return f"{builder_fields()[path].label} {text} {advantage}"


def _neighbours(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Generate one change of a field at a time that leaves the training the same."""
    train, parallel = config.train, config.parallel
    for size in (2 * train.micro_batch_size, 4 * train.micro_batch_size, train.micro_batch_size // 2):
        if size >= 1:
            yield "train.micro_batch_size", size
    for recompute in ("none", "selective", "full"):
        if recompute != train.recompute:
            yield "train.recompute", recompute
    if config.training_engine.is_pipeline and parallel.pipeline_parallel_size > 1:
        for schedule in builder_fields()["parallel.schedule"].choices:
            if schedule != parallel.schedule:
                yield "parallel.schedule", schedule
    if config.training_engine.has_zero_stages and parallel.data_parallel_size > 1:
        for stage in range(4):
            if stage != parallel.zero_stage:
                yield "parallel.zero_stage", stage


def _predicted(config: RunConfig, path: str, value: Any, pools: Pools) -> Expected | None:
    changed, problems = check(with_values(config.model_dump(mode="json"), {path: value}))
    if changed is None:
        return None
    point = launchable(Point({path: value}, changed, problems))
    expected = pools.expected(point.config) if point.config else None
    return expected if expected and expected.step_time_s else None


def _seconds(expected: Expected | None) -> float:
    return (expected.step_time_s if expected else None) or float("inf")


def _bytes(expected: Expected | None) -> float:
    return (expected.memory_bytes if expected else None) or float("inf")
