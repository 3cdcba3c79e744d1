"""Memory of nodes and GPUs that grows while a run trains, from its samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.advice.growth import growth
from parlab.series.columns import Columns

NODE, GPU = "memory_bytes", "gpu_mem_bytes"


def memory_growth(series: Mapping[str, Mapping[int, Columns]]) -> dict[str, Any]:
    """Return `memory_growth` of the summary: {rank: rate and size}, nodes as ranks -1, -2, ...; empty without any."""
    rows: dict[str, dict[str, float]] = {}
    for metric in (NODE, GPU):
        for rank, columns in series.get(metric, {}).items():
            rate = growth(columns.times, columns.values) if (rank < 0) == (metric == NODE) else None
            if rate is not None:
                rows[str(rank)] = {"bytes_per_s": rate.bytes_per_s, "bytes": rate.bytes_now}
    return {"memory_growth": rows} if rows else {}
