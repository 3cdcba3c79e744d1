"""Rows of the tables about traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from parlab.charts.format import DASH, quantity, significant
from parlab.charts.runs.traces import RankBar
from parlab.lab.models import Run
from parlab.traces.collectives import Meeting
from parlab.traces.stored import Analysis, contradictions, node_lateness

MAX_ROWS = 30


class TraceTables(NamedTuple):
    """What the page shows of all ranks, as texts."""

    ranks: list[list[str]]
    kernels: list[list[str]]
    classes: list[list[str]]
    collectives: list[list[str]]
    skews: list[list[str]]
    nodes: list[list[str]]
    periods: list[list[str]]
    path: list[list[str]]
    offsets: str
    kernel_rank: int


def bars(analyses: Mapping[int, Analysis], met: Meeting) -> list[RankBar]:
    """Return the mean step of each rank; the wait for the last rank is taken out of its exposed communication."""
    waits = {row.rank: row.waits_s for row in met.ranks}
    drawn = []
    for rank, analysis in analyses.items():
        step = analysis.per_step()
        waiting = min(step.exposed_s, waits.get(rank, 0.0) / max(1, len(analysis.steps)))
        parts = {
            "compute": step.compute_s,
            "waiting": waiting,
            "exposed": step.exposed_s - waiting,
            "copies": step.exposed_copy_s,
            "host": step.idle_host_s,
            "kernel": step.idle_kernel_s,
        }
        drawn.append(RankBar(rank, parts))
    return drawn


def problems_of(run: Run, analyses: Mapping[int, Analysis], met: Meeting) -> list[str]:
    """Return what is wrong with the traces, those of single ranks with their rank."""
    attempt = run.current_attempt() if run.origin == Run.Origin.MEASURED else None
    ran = None
    if attempt is not None and attempt.started_at and attempt.ended_at:
        ran = (attempt.started_at.timestamp(), attempt.ended_at.timestamp())
    own = [f"rank {rank}: {text}" for rank, analysis in analyses.items() for text in analysis.problems]
    return [*contradictions(analyses, int(run.gpus) if run.gpus else None, ran), *met.problems, *own]


def trace_tables(analyses: Mapping[int, Analysis], met: Meeting) -> TraceTables:
    """Return the tables of the page. The kernels are those of the rank that computes longest."""
    rank = max(analyses, key=lambda number: analyses[number].per_step().compute_s)
    busiest = analyses[rank]
    whole = sum(seconds for _, seconds in busiest.classes) or 1.0
    offsets = [
        f"rank {number} {quantity(offset, 's')}" for number, offset in met.offsets_s.items() if abs(offset) > 1e-4
    ]
    return TraceTables(
        [_rank_row(bar, analyses[bar.rank]) for bar in bars(analyses, met)],
        [
            [row.name[:160], row.group, str(row.calls), quantity(row.total_s, "s"), quantity(row.mean_s, "s"),
             f"{significant(100 * row.share)} %"]
            for row in busiest.kernels[:MAX_ROWS]
        ],
        [[name, quantity(took_s, "s"), f"{significant(100 * took_s / whole)} %"] for name, took_s in busiest.classes],
        [
            [f"{item.name} {item.sequence}", str(item.ranks), quantity(item.bytes, "B") if item.bytes else DASH,
             quantity(item.end_s - item.begin_s, "s"), quantity(item.skew_s, "s"), str(item.late_rank),
             quantity(item.bus_bytes_s, "B/s") if item.bus_bytes_s else DASH]
            for item in met.collectives[:MAX_ROWS]
        ],
        [
            [str(row.rank), str(row.late), quantity(row.late_by_s, "s"), quantity(row.waits_s, "s"),
             f"{significant(100 * met.path_share.get(row.rank, 0.0))} %"]
            for row in sorted(met.ranks, key=lambda row: -row.late_by_s)[:MAX_ROWS]
        ],
        [
            [row.node, str(row.ranks), str(row.late), quantity(row.late_by_s, "s"), f"{significant(100 * row.share)} %"]
            for row in node_lateness(analyses, met)[:MAX_ROWS]
        ],
        [
            [quantity(row.begin_s, "s"), quantity(row.end_s - row.begin_s, "s"), str(row.collectives), str(row.rank),
             str(row.late), quantity(row.late_by_s, "s")]
            for row in met.periods
        ],
        [
            [str(part.rank), quantity(part.begin_s, "s"), quantity(part.end_s - part.begin_s, "s"), part.until]
            for part in met.path[:MAX_ROWS]
        ],
        ", ".join(offsets[:8]),
        rank,
    )  # fmt: skip


def _rank_row(bar: RankBar, analysis: Analysis) -> list[str]:
    total = bar.total_s or 1.0
    shares = [f"{significant(100 * bar.parts[name] / total)} %" for name in bar.parts]
    step = analysis.per_step()
    hidden = 100 * (1 - step.exposed_s / step.communication_s) if step.communication_s else None
    memory = analysis.memory_peak_bytes
    return [
        str(bar.rank),
        analysis.host or DASH,
        str(len(analysis.steps)),
        quantity(bar.total_s, "s"),
        *shares,
        DASH if hidden is None else f"{significant(hidden)} %",
        DASH if memory is None else quantity(memory, "B"),
    ]
