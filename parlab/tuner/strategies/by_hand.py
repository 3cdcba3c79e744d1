"""What people do without a tuner, as the comparison of a study."""

from __future__ import annotations

from parlab.tuner.space import Fit, Launch, Space

from .steps import Steps


def by_hand(space: Space) -> Steps:
    """Grow the micro batch in the first tuning space without accumulation, until one runs out of memory.

    The source of this habit is the hand tuning that DeepSpeed's autotuner is compared with in its own results.
    """
    first = list(space.in_tuning_space(space.tuning_spaces[0]))
    least = min(candidate.accumulation for candidate in first)
    ascending = sorted((c for c in first if c.accumulation == least), key=lambda candidate: candidate.micro_batch_size)
    for candidate in ascending:
        if candidate.fit == Fit.NO:
            return "larger micro batches cannot fit"
        observation = yield Launch(candidate.key, f"by hand: micro batch {candidate.micro_batch_size}")
        if observation.state == "oom":
            return f"micro batch {candidate.micro_batch_size} ran out of memory"
    return "the largest micro batch of the space was tried"
