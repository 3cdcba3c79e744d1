"""The attempts of a chain, which are one training."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from parlab.lab.models import Attempt, Run


def earlier_attempts(attempt: Attempt) -> list[Attempt]:
    """Return the attempts that the current attempt of a chain goes on from, in their order; none for any other."""
    run = attempt.run
    if not run.is_chain or attempt.number == 1 or attempt.number != run.attempt_number:
        return []
    return list(run.attempts.filter(number__lt=attempt.number).order_by("number"))


def chains_of(runs: Sequence[Run], attempts: Collection[tuple[int, int, int]]) -> dict[int, list[int]]:
    """Return the earlier attempts of the current attempt of each chain; `attempts` are (run, number, id)."""
    current = {run.pk: run.attempt_number for run in runs if run.is_chain and run.attempt_number > 1}
    ids = {(run, number): pk for run, number, pk in attempts if run in current}
    return {
        ids[run, last]: [pk for (other, number), pk in sorted(ids.items()) if other == run and number < last]
        for run, last in current.items()
        if (run, last) in ids
    }
