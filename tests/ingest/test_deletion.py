"""Deletion of an experiment with the output of its runs, in pieces between which others write."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from django.db import connection

from parlab.ingest.batches import deletion
from parlab.lab.models import Attempt, Experiment
from parlab.series import removal, store
from parlab.series.columns import Columns
from parlab.series.models import SeriesChunk, SeriesLevel

pytestmark = pytest.mark.database

CHUNKS = 7


def filled(attempt: Attempt) -> Attempt:
    points = CHUNKS * store.CHUNK_POINTS
    column = np.arange(points)
    store.append(attempt.pk, {("loss", 0): Columns(column, column.astype(np.float64), column.astype(np.float64))})
    return attempt


@pytest.mark.django_db(transaction=True)
def test_output_is_deleted_in_transactions_between_which_others_write(
    make_attempt: Callable[..., Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = filled(make_attempt(state="finished"))
    left: list[int] = []

    def pause(_seconds: float) -> None:
        assert not connection.in_atomic_block
        left.append(SeriesChunk.objects.count())

    monkeypatch.setattr("parlab.series.removal.time.sleep", pause)
    monkeypatch.setattr(removal, "ROWS", 2)
    deletion.experiment_delete(experiment=attempt.run.experiment)
    assert left[:3] == [5, 3, 1]
    assert [model.objects.count() for model in (Experiment, SeriesChunk, SeriesLevel)] == [0, 0, 0]


@pytest.mark.django_db
def test_an_experiment_with_an_active_run_keeps_its_output(make_attempt: Callable[..., Attempt]) -> None:
    attempt = filled(make_attempt(state="running"))
    with pytest.raises(ValueError, match="is running; cancel it first"):
        deletion.experiment_delete(experiment=attempt.run.experiment)
    assert SeriesChunk.objects.count() == CHUNKS
