"""Imported traces of a run: file -> analysis of a rank, stored in place of an earlier one."""

from __future__ import annotations

import hashlib
from typing import IO

from django.contrib.auth.models import User

from parlab.ingest.received import BLOCK, display_name
from parlab.lab.models import RankTrace, Run
from parlab.traces.chunks import BadTrace
from parlab.traces.imported import read_any
from parlab.traces.stored import Analysis, analysis_of, rank_of

MAX_RANKS = 4_096


def trace_import(*, run: Run, name: str, file: IO[bytes], user: User) -> RankTrace:
    """Analyse and store the trace of a rank; it replaces an earlier one of that rank. Raises BadTrace."""
    name = display_name(name)
    sha256, size = _digest(file)
    analysis = analysis_of(read_any(file))
    rank = rank_of(analysis, name)
    if rank is None:
        taken = set(run.traces.values_list("rank", flat=True))
        rank = next(number for number in range(len(taken) + 1) if number not in taken)
        analysis.problems.append(f"the trace and its file name state no rank; it is stored as rank {rank}")
    if not 0 <= rank < MAX_RANKS:
        raise BadTrace(f"rank {rank} of {name} is out of range; use 0 to {MAX_RANKS - 1}")
    stored, _ = RankTrace.objects.update_or_create(
        run=run,
        rank=rank,
        defaults={
            "name": name,
            "sha256": sha256,
            "size": size,
            "analysis": analysis.model_dump(mode="json"),
            "created_by": user,
        },
    )
    return stored


def analyses_of(run: Run) -> dict[int, Analysis]:
    """Return the analyses of the traced ranks of a run, by rank."""
    return {trace.rank: Analysis.model_validate(trace.analysis) for trace in run.traces.order_by("rank")}


def _digest(file: IO[bytes]) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    while block := file.read(BLOCK):
        digest.update(block)
        size += len(block)
    file.seek(0)
    return digest.hexdigest(), size
