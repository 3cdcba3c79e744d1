"""Traces of a run: file -> analysis and lanes of a rank, stored in place of earlier ones."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from django.contrib.auth.models import User

from parlab.ingest.confined import Unreadable, confined
from parlab.ingest.files.received import BLOCK, display_name
from parlab.lab.models import RankTrace, Run
from parlab.lab.services import stored_files
from parlab.lab.services.access.quotas import QuotaExceeded, owner_of, quota_check
from parlab.lab.services.access.rights import project_of
from parlab.traces.chunks import BadTrace
from parlab.traces.lanes import StoredLanes
from parlab.traces.stored import Analysis, rank_of

MAX_RANKS = 4_096


def trace_import(*, run: Run, name: str, file: IO[bytes], user: User | None) -> RankTrace:
    """Analyse and store the trace of a rank; it replaces an earlier one of that rank. Raises BadTrace.

    `user` is None for a trace that the run itself has recorded.
    """
    name = display_name(name)
    sha256, size = _digest(file)
    try:
        quota_check(owner=owner_of(run), project=project_of(run), added=size)
    except QuotaExceeded as problem:
        raise BadTrace(str(problem)) from problem
    folder = stored_files.root() / stored_files.TRACES
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lanes = stored_files.root() / lanes_name(sha256)
    lanes.parent.mkdir(exist_ok=True, mode=0o700)
    analysis = _read(file, folder, lanes)
    stored_files.folder_store(lanes_name(sha256))
    rank = rank_of(analysis, name)
    if rank is None:
        taken = set(run.traces.values_list("rank", flat=True))
        rank = next(number for number in range(len(taken) + 1) if number not in taken)
        analysis.problems.append(f"the trace and its file name state no rank; it is stored as rank {rank}")
    if not 0 <= rank < MAX_RANKS:
        lanes_delete([sha256])
        raise BadTrace(f"rank {rank} of {name} is out of range; use 0 to {MAX_RANKS - 1}")
    earlier = set(run.traces.filter(rank=rank).values_list("sha256", flat=True))
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
    lanes_delete(earlier)
    return stored


def _read(file: IO[bytes], folder: Path, lanes: Path) -> Analysis:
    """Read a trace in a child, since its file may be hostile."""
    with NamedTemporaryFile(dir=folder) as copy:
        shutil.copyfileobj(file, copy, BLOCK)
        copy.flush()
        try:
            plain = confined("parlab.traces.imported:read_into", copy.name, str(folder), str(lanes))
        except Unreadable as problem:
            raise BadTrace(str(problem)) from problem
    return Analysis.model_validate(plain)


def lanes_name(sha256: str) -> str:
    """Return the name of the folder with the lanes of a trace, by the digest of its file."""
    return f"{stored_files.TRACES}/{sha256[:2]}/{sha256}"


def lanes_of(sha256: str) -> StoredLanes | None:
    """Return the lanes of a trace by the digest of its file; None where they are missing on the disk."""
    try:
        return StoredLanes(stored_files.folder(lanes_name(sha256)))
    except FileNotFoundError:
        return None


def traces_delete(*, run: Run) -> int:
    """Delete all traces of a run; returns how many there were."""
    digests = set(run.traces.values_list("sha256", flat=True))
    count, _ = run.traces.all().delete()
    lanes_delete(digests)
    return count


def lanes_delete(digests: Collection[str]) -> None:
    """Delete the lanes of traces that no run has any more."""
    for sha256 in set(digests) - set(RankTrace.objects.filter(sha256__in=digests).values_list("sha256", flat=True)):
        stored_files.folder_remove(lanes_name(sha256))


def analyses_of(run: Run) -> dict[int, Analysis]:
    return {trace.rank: Analysis.model_validate(trace.analysis) for trace in run.traces.order_by("rank")}


def _digest(file: IO[bytes]) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    while block := file.read(BLOCK):
        digest.update(block)
        size += len(block)
    file.seek(0)
    return digest.hexdigest(), size
