"""Choose a few short runs that calibrate the planner on a cluster best: they differ in what the constants stand for."""

from __future__ import annotations

from collections.abc import Sequence
from math import dist, log2

from parlab.planner.job.workload import Job
from parlab.planner.prediction.fitting import CONFIDENT
from parlab.planner.prediction.prediction import Prediction

USUAL = 5
"""Short runs that a plan proposes."""
UNSEEN_ERROR, CALIBRATED_ERROR = 0.103, 0.057
"""Median error of the time on a publication to which nothing was fitted, before and after so many short runs: the
sheets of Hagemann et al. 2023, each calibrated on its own (`make bench-planner`)."""
_RECOMPUTES = ("none", "selective", "operations", "full")


def chosen(predictions: Sequence[Prediction], count: int = USUAL) -> list[int]:
    """Return the indices of up to `count` jobs to run, the fastest first.

    Each next one is the farthest from those before in tensor and pipeline parallel size, micro batch and recomputation;
    of equally far ones the fastest. Jobs that may run out of memory are left out, if others remain.
    """
    sure = [i for i, prediction in enumerate(predictions) if prediction.fits_probability >= CONFIDENT]
    candidates = sorted(sure or range(len(predictions)), key=lambda i: predictions[i].iteration_s)
    places = {i: _place(predictions[i].job) for i in candidates}
    runs = candidates[:1]
    while len(runs) < min(count, len(candidates)):
        rest = [i for i in candidates if i not in runs]
        runs.append(max(rest, key=lambda i: min(dist(places[i], places[run]) for run in runs)))
    return runs


def _place(job: Job) -> tuple[float, ...]:
    """Return the position of a job; a doubling of a size and a step of recomputation count as 1."""
    sizes = (job.tensor_parallel, job.pipeline_parallel, job.micro_batch_size)
    return (*map(log2, sizes), float(_RECOMPUTES.index(job.recompute)))
