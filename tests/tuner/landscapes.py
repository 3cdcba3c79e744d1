"""Made-up spaces with a known truth, shaped like ZeRO stages by micro batch by accumulation."""

from __future__ import annotations

import math
from collections.abc import Callable

from parlab.tuner.space import Candidate, Observation, Space

SIZES = (1, 2, 4, 8, 16, 32)
LIMIT = 1e9


def grid(*, planned_error: Callable[[int, int, int], float] = lambda *_: 1.0, memory: bool = False) -> Space:
    """48 settings; the plan is the truth times `planned_error`(stage, size, accumulation)."""
    candidates = []
    for stage in range(4):
        for size in SIZES:
            for accumulation in (1, 2):
                seconds = truth(stage, size, accumulation)
                candidates.append(
                    Candidate(
                        key=key(stage, size, accumulation),
                        samples=size * accumulation,
                        tuning_space=f"z{stage}",
                        micro_batch_size=size,
                        accumulation=accumulation,
                        features=(math.log2(size), math.log2(accumulation), *(float(stage == k) for k in range(4))),
                        predicted_s=seconds * planned_error(stage, size, accumulation),
                        predicted_bytes=needed(stage, size) if memory else None,
                        memory_limit_bytes=LIMIT if memory else None,
                    )
                )
    return Space(candidates)


def key(stage: int, size: int, accumulation: int) -> str:
    return f"z{stage}_gas{accumulation}_tmbspg{size}"


def truth(stage: int, size: int, accumulation: int) -> float:
    """Seconds of an iteration: a fixed cost by stage, one per pass, one per sample that grows when caches burst."""
    return 0.02 * (1 + stage) + accumulation * (0.01 + 0.01 * size * (1.3 if size > 16 else 1))


def needed(stage: int, size: int) -> float:
    return 4e8 / (1 + stage) + 4e7 * size


def measure(space: Space, *, limit: float = math.inf, noise: float = 0.003) -> dict[str, Observation]:
    measured = {}
    for candidate in space.candidates:
        stage, size, accumulation = int(candidate.tuning_space[1]), candidate.micro_batch_size, candidate.accumulation
        if needed(stage, size) > limit:
            measured[candidate.key] = Observation(candidate.key, "oom")
        else:
            seconds = truth(stage, size, accumulation)
            measured[candidate.key] = Observation(candidate.key, "finished", seconds, noise)
    return measured
