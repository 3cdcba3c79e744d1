"""What engines print, for tests."""

from __future__ import annotations

import json
from typing import Any


def event(name: str = "step", *, rank: int = 0, t: float = 1_700_000_000.25, **fields: Any) -> bytes:
    """One event line."""
    return (
        json.dumps({"parlab": 1, "t": t, "rank": rank, "event": name, **fields}, separators=(",", ":")).encode() + b"\n"
    )


def step(number: int, *, rank: int = 0, warmup: bool = False, step_time_s: float = 0.5, **fields: Any) -> bytes:
    """One step event of one rank."""
    return event(rank=rank, t=1_700_000_000 + number, step=number, warmup=warmup, step_time_s=step_time_s, **fields)


def training(steps: int, ranks: int = 2, warmup: int = 1) -> bytes:
    """Output of a small training: log lines, step events of all ranks, telemetry."""
    lines = [event("start", rank=rank, engine="pipeline", world_size=ranks) for rank in range(ranks)]
    for number in range(1, steps + 1):
        for rank in range(ranks):
            loss = {"loss": 10 - number / 8} if rank == ranks - 1 else {}
            timers = {"forward-compute": 0.1 + rank / 8, "backward-compute": 0.25}
            lines.append(
                step(
                    number,
                    rank=rank,
                    warmup=number <= warmup,
                    step_time_s=2.0 if number <= warmup else 0.5 + rank / 4,
                    memory_peak_bytes=1000 + rank,
                    timers_s=timers,
                    **loss,
                )
            )
            passes = [["forward-compute", k, k / 8, k / 8 + 0.1] for k in range(2)]
            lines.append(event("operations", rank=rank, step=number, part=0, operations=passes))
            lines.append(event("operations", rank=rank, step=number, part=1, operations=[["optimizer", -1, 0.3, 0.4]]))
        lines.append(b"iteration %d done\n" % number)
        lines.append(event("telemetry", rank=-1, memory_bytes=5_000 + number, cpu_pct=99.5))
    return b"".join(lines)
