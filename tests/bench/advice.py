"""Advice replayed over published sweeps: neighbours that differ in one decision, in place of the changed run."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from parlab.advice.rules import SMALLEST_GAIN
from parlab.advice.score import CLEAR, Measurement, Replay, records, replay
from parlab.planner.published import load
from parlab.planner.rows import read
from tests.bench.result import Result, Scale, Unavailable

VALIDATION = Path(__file__).resolve().parents[3] / "shared" / "validation"


@lru_cache(maxsize=1)
def _replayed() -> Replay:
    """Replay all published measurements with a time; a sweep is a publication on one cluster with one model."""
    measurements = []
    for file in sorted(VALIDATION.glob("*.json")):
        for entry in load(file.read_text()):
            try:
                row = read(entry)
            except ValueError:
                continue
            if row.measured.iteration_s:
                job = row.job
                sweep = f"{row.group}: {job.model}, batch {job.global_batch_size} on {row.cluster.gpus}"
                measurements.append(Measurement(sweep, job, row.cluster, row.measured.iteration_s))
    if not measurements:
        raise Unavailable(f"the published measurements are missing; expected in {VALIDATION}")
    return replay(measurements)


def advice_sign_right_pct(scale: Scale) -> Result:
    """Measure how often the predicted sign is right where the measured gain or loss is above 5 %."""
    rows = records(_replayed().outcomes)
    for row in rows:
        right = "-" if row.right_pct is None else f"{row.right_pct:.1f} %"
        print(f"{row.kind:<12} {row.tried:6} tried, {row.clear:6} clear, {right:>8} right, error {row.mean_error:.3f}")
    whole = rows[-1]
    advised = [outcome for outcome in _replayed().outcomes if outcome.is_certain and outcome.predicted >= SMALLEST_GAIN]
    for row in records(advised)[-1:]:
        print(f"{'advised':<12} {row.tried:6} tried, {row.clear:6} clear, {row.right_pct or 0.0:.1f} % right")
    return Result(whole.right_pct or 0.0, "%", f"{whole.clear} changes above {CLEAR:.0%}", 1.0, 1)


def advice_top3_wrong(scale: Scale) -> Result:
    """Measure the largest number of wrong suggestions among the first three of any sweep."""
    wrong = _replayed().wrong_in_top
    worst = max(wrong.values())
    many = sum(count > 1 for count in wrong.values())
    return Result(worst, "wrong", f"{many} of {len(wrong)} sweeps with more than one", 1.0, 1)
