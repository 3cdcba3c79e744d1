"""Manual tuning, for the comparison of a study."""

from __future__ import annotations

from parlab.tuner.space import Fit, Launch, Space

from .steps import Steps


def by_hand(space: Space) -> Steps:
    """Increase the micro batch in the first tuning space, without accumulation, until one runs out of memory.

    This is the manual tuning in the published results of DeepSpeed's autotuner.
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
