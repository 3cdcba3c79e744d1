"""The answer to the question of an experiment: the first kind of answer that its question and its runs allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from parlab.charts.points import RunPoint
from parlab.lab.models import Experiment, Run
from parlab.lab.selectors.analysis.identities import Identity, identities
from parlab.lab.selectors.analysis.surroundings import TITLES, Surroundings, differing
from parlab.lab.selectors.analysis.sweep import run_points
from runners.wire.protocol import RunState

from .answer import Action, Answer, Case, Short
from .comparing import costs, fastest, versus
from .special import (
    bandwidths,
    largest,
    largest_stated,
    memory_fits,
    scaling,
    slow_networks,
    slowest_node,
    variation,
    where_time_goes,
)
from .standings import standings
from .words import capital

KINDS: tuple[Callable[[Case], Answer | None], ...] = (
    largest,
    largest_stated,
    bandwidths,
    where_time_goes,
    scaling,
    slowest_node,
    memory_fits,
    slow_networks,
    variation,
    versus,
    costs,
    fastest,
)
"""The kinds of answers, in the order in which they are tried."""


def case_of(
    experiment: Experiment,
    runs: Sequence[Run],
    known: Mapping[int, Identity] | None = None,
    points: Callable[[], Sequence[RunPoint]] | None = None,
) -> Case:
    """Return what an answer is made from: all visible runs of an experiment, with `resolved`, `point` and `summary`.

    `known` are the identities of these runs, where they were read already; `points` returns them as points of figures.
    """
    known = identities(runs) if known is None else known
    return Case(experiment, runs, known, standings(runs, known), points or partial(run_points, runs))


def answer_of(case: Case, surroundings: Mapping[int, Surroundings] | None = None) -> Answer:
    """Return the answer to the question of a case.

    With `surroundings`, which say by run id where runs ran, the answer names in what the places of the runs differ.
    """
    runs = case.runs
    answer = next((found for kind in KINDS if runs and (found := kind(case)) is not None), None)
    return _with_progress(_with_places(answer, runs, surroundings or {}), runs)


def _with_places(answer: Answer | None, runs: Sequence[Run], surroundings: Mapping[int, Surroundings]) -> Answer | None:
    """Name in what the places of finished runs differ: such runs are not compared like with like."""
    parts = differing(surroundings, [run.pk for run in runs if run.state == RunState.FINISHED])
    if answer is None or not parts:
        return answer
    named = " and ".join(TITLES[part] for part in parts)
    return answer._replace(rest=(*answer.rest, f"The runs differ in {named}."))


def _with_progress(answer: Answer | None, runs: Sequence[Run]) -> Answer:
    """Complete an answer with the runs that are on their way, or say why there is none."""
    active = [run for run in runs if not run.is_final]
    done = f"{len(runs) - len(active)} of {len(runs)} runs are done."
    if answer is None:
        return _pending(done) if active else _unanswered(runs)
    if not active:
        return answer
    return answer._replace(rest=(*answer.rest, done), is_final=False, action=None)


def _pending(done: str) -> Answer:
    return Answer(f"No answer yet: {done}", Short("", "Running"), tone="plain", is_final=False)


def _unanswered(runs: Sequence[Run]) -> Answer:
    """Say why there is no answer: nothing has run, runs failed, or none states a speed."""
    if not runs:
        action = Action("Launch", "launch")
        return Answer("No answer yet: nothing has run.", Short("", "Not run yet"), tone="plain", action=action)
    for state, what in _WHY.items():
        if run := next((run for run in runs if run.state == state), None):
            reason = (run.reason or "no reason was reported").rstrip(".")
            text = f"No answer: run {run.number} {what}: {reason}."
            return Answer(text, Short("", capital(what)), tone="bad", action=Action("See the run", "run", run))
    return Answer("No answer: no run states how fast it is.", Short("", "No speed is stated"), tone="plain")


_WHY = {
    RunState.FAILED: "failed",
    RunState.LOST: "was lost",
    RunState.OOM: "ran out of memory",
    RunState.CANCELLED: "was cancelled",
    RunState.CHECKPOINTED: "ended with a checkpoint",
    RunState.TIME_LIMIT: "reached its time limit",
    RunState.PREEMPTED: "was preempted",
}
