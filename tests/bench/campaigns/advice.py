"""Advice replayed over published sweeps: neighbours that differ in one decision, in place of the changed run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import permutations
from pathlib import Path

from parlab.advice.nodes import FEWER, MORE, is_worth
from parlab.advice.rules import SMALLEST_GAIN
from parlab.advice.score import CLEAR, Measurement, Replay, records, replay
from parlab.planner import predict_job
from parlab.planner.publications.published import load
from parlab.planner.publications.rows import read
from tests.bench.result import Result, Scale, Unavailable

LEAST_SAVED_H = 0.15
"""Share of the GPU hours that half of the GPUs have to save to count as right."""
VALIDATION = Path(__file__).resolve().parents[4] / "shared" / "validation"


@lru_cache(maxsize=1)
def _measurements() -> list[Measurement]:
    """Read all published measurements with a time; a sweep is a publication on one cluster with one model."""
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
    return measurements


@lru_cache(maxsize=1)
def _replayed() -> Replay:
    return replay(_measurements())


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
    return Result(whole.right_pct or 0.0, f"{whole.clear} changes above {CLEAR:.0%}", 1)


def advice_top3_wrong(scale: Scale) -> Result:
    """Measure the largest number of wrong suggestions among the first three of any sweep."""
    wrong = _replayed().wrong_in_top
    worst = max(wrong.values())
    many = sum(count > 1 for count in wrong.values())
    return Result(worst, f"{many} of {len(wrong)} sweeps with more than one", 1)


def advice_nodes_right_pct(scale: Scale) -> Result:
    """Measure how often advised numbers of GPUs keep what they promise.

    Twice the GPUs shorten the step by more than 5 %; half of them save at least 15 % of the GPU hours.
    """
    pairs = list(_node_pairs())
    right, errors = 0, []
    for kind, predicted, realised in pairs:
        right += realised > CLEAR if kind == MORE else (1 - realised) / 2 <= 1 - LEAST_SAVED_H
        errors.append(abs(predicted - realised))
    for kind in (MORE, FEWER):
        own = sorted(error for (each, *_), error in zip(pairs, errors, strict=True) if each == kind)
        print(f"{kind}: {len(own)} advised, 80 % of the errors below {own[int(0.8 * len(own))]:.3f} of the step")
    return Result(100 * right / len(pairs), f"{len(pairs)} advised changes of the number of GPUs", 1)


def _node_pairs() -> Iterator[tuple[str, float, float]]:
    """Yield (kind, predicted gain, realised gain) of advised steps between two measurements of a publication."""
    by_work: dict[object, list[Measurement]] = {}
    for row in _measurements():
        work = replace(row.job, data_parallel=1, micro_batch_size=1)
        where = replace(row.cluster, gpus=1, gpus_per_node=1)
        by_work.setdefault((row.sweep.partition(":")[0], work, where), []).append(row)
    for rows in by_work.values():
        for first, second in permutations(rows, 2):
            gpus = second.cluster.gpus / first.cluster.gpus
            kind = _KINDS.get((gpus, second.job.data_parallel / first.job.data_parallel))
            if kind is None:
                continue
            steps = [predict_job(row.job, row.cluster).iteration_s for row in (first, second)]
            gain = 1 - steps[1] / steps[0]
            if is_worth(kind, gain):
                yield kind, gain, 1 - second.iteration_s / first.iteration_s


_KINDS = {(2.0, 2.0): MORE, (0.5, 0.5): FEWER}
"""Ratio of GPUs and of replicas -> kind of advice; most of the publications vary the GPUs of one node."""
