"""Traces that runs record: from pieces in batches to the waterfall of the run."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parlab.ingest.batches.run_files import traces_take
from parlab.ingest.batches.services import batch_apply
from parlab.lab.models import Attempt, RankTrace
from parlab.lab.selectors.analysis.waterfalls import traced_step
from runners.wire.protocol import Batch, FilePiece
from tests.traces.generator import Plan, document, file_of

pytestmark = pytest.mark.django_db
PACKED = gzip.compress(file_of(document(Plan(), 0)).getvalue())


@pytest.fixture
def attempt(make_attempt: Callable[..., Attempt], settings: Any, tmp_path: Path) -> Attempt:
    settings.ARTIFACTS_DIR = tmp_path
    return make_attempt()


def piece(offset: int, end: int, *, rank: int = 0, **fields: Any) -> FilePiece:
    data = base64.b64encode(PACKED[offset:end]).decode()
    values = {"name": f"trace-rank{rank}.json.gz", "rank": rank, "offset": offset, "size": len(PACKED), "data": data}
    return FilePiece(**values | fields)


def batch(of: Attempt, start: int, *pieces: FilePiece) -> Batch:
    return Batch(
        run=of.run_id, attempt=of.number, node="n1", sequence=start, next_sequence=start + 10, files=list(pieces)
    )


def test_a_trace_in_pieces_is_analysed_once_it_is_complete(
    attempt: Attempt, django_capture_on_commit_callbacks: Any
) -> None:
    half = len(PACKED) // 2
    with django_capture_on_commit_callbacks(execute=True):
        assert batch_apply(batch=batch(attempt, 0, piece(0, half))) == 10
    assert traces_take() == 0
    with django_capture_on_commit_callbacks(execute=True):
        batch_apply(batch=batch(attempt, 0, piece(0, half)))  # again: it was not acknowledged
        batch_apply(batch=batch(attempt, 10, piece(half, len(PACKED))))
    assert traces_take() == 1
    stored = RankTrace.objects.get(run=attempt.run)
    assert (stored.rank, stored.created_by) == (0, None)
    traced = traced_step(attempt.run)
    assert traced is not None
    step_us = Plan().step_us  # half of the kernels are matrix products
    assert traced.products + traced.others == pytest.approx(1000 / step_us, rel=0.02)
    assert traced.products == pytest.approx(traced.others, rel=0.02)
    assert traced.host == pytest.approx(80 / step_us, rel=0.05)
    assert traces_take() == 0


def test_what_is_no_trace_of_a_rank_is_left_out(attempt: Attempt, settings: Any) -> None:
    settings.UPLOAD_LIMIT_MIB = 1
    odd = [piece(0, 9, name="notes.txt"), piece(0, 9, rank=77), piece(0, 9, size=2 << 20), piece(0, 9, rank=1)]
    odd[-1] = odd[-1].model_copy(update={"rank": 0})
    batch_apply(batch=batch(attempt, 0, *odd))
    batch_apply(batch=batch(attempt, 10, piece(0, 9, size=3), piece(0, 9, data="!")))
    assert not list((settings.ARTIFACTS_DIR / "traces").rglob("*.part"))


def test_a_file_that_cannot_be_read_is_deleted(attempt: Attempt, settings: Any) -> None:
    incoming = settings.ARTIFACTS_DIR / "traces" / "incoming"
    incoming.mkdir(parents=True)
    (incoming / f"{attempt.run_id}-{attempt.number}-0").write_bytes(b"{}")
    (incoming / f"{attempt.run_id}-{attempt.number + 5}-0").write_bytes(PACKED)
    assert traces_take() == 0
    assert not list(incoming.iterdir())
