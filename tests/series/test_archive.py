"""Raw points leave the database and come back; figures look the same meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from parlab.ingest import tasks
from parlab.lab.models import Attempt
from parlab.series import archive, store
from parlab.series.columns import Columns
from parlab.series.models import SeriesArchive, SeriesChunk

pytestmark = pytest.mark.database

COUNT = 300_000
KEY = ("loss", 0)
RANGES = [(None, None), (1_000, 1_500), (5_000, 260_000), (262_000, 299_999), (290_000, None), (None, 70_000)]


@pytest.fixture
def columns() -> Columns:
    steps = np.arange(COUNT)
    values = np.sin(steps / 1_000.0)
    values[123_456] = np.nan
    return Columns(steps, 1.7e9 + steps / 4.0, values)


@pytest.fixture(params=["at once", "as it was printed"])
def attempt(make_attempt: Callable[..., Attempt], columns: Columns, request: pytest.FixtureRequest) -> Attempt:
    """An attempt that ended long ago, with a long series and a short one."""
    attempt = make_attempt(state="finished")
    Attempt.objects.filter(pk=attempt.pk).update(ended_at=timezone.now() - timedelta(days=100))
    live = COUNT if request.param == "at once" else COUNT - 2_000
    store.append(attempt.pk, {KEY: columns.take(slice(0, live)), ("short", 0): columns.take(slice(0, 100))})
    for first in range(live, COUNT, 40):
        store.append(attempt.pk, {KEY: columns.take(slice(first, first + 40))})
    return attempt


def readings(attempt: Attempt) -> list[Any]:
    """Read the series as figures, exports and pages of ranks do."""
    read: list[Columns] = []
    for first, last in RANGES:
        read.append(store.read(attempt.pk, *KEY[:1], rank=0, first_step=first, last_step=last))
        read.append(store.read(attempt.pk, *KEY[:1], rank=0, max_points=500, first_step=first, last_step=last))
    steps = [
        series["loss"][0].tolist()
        for _, series in store.each_rank(attempt.pk, ["loss"], [0], first_step=100, last_step=200)
    ]
    arrays = [
        (each.steps.tolist(), each.times.tolist(), np.nan_to_num(each.values, nan=-9.0).tolist()) for each in read
    ]
    return [arrays, steps, store.extent(attempt.pk, ["loss"], [0]), store.metrics(attempt.pk)]


@pytest.mark.django_db
def test_archived_points_are_read_as_before_and_come_back(attempt: Attempt, tmp_path: Path) -> None:
    before = readings(attempt)
    row = archive.archive(attempt.pk, f"file://{tmp_path}")
    assert row is not None
    assert row.points == COUNT // 4_096 * 4_096
    left = SeriesChunk.objects.filter(metric="loss").order_by("position")
    assert [chunk.position for chunk in left][:1] == [row.points]
    assert sum(chunk.count for chunk in left) == COUNT - row.points
    assert readings(attempt) == before
    with pytest.raises(ValueError, match="archived already"):
        archive.archive(attempt.pk, f"file://{tmp_path}")
    assert archive.restore(attempt.pk) == row.points
    assert not SeriesArchive.objects.exists()
    assert readings(attempt) == before
    more = Columns(np.array([COUNT]), np.array([1.0]), np.array([2.0]))
    store.append(attempt.pk, {KEY: more})
    assert len(store.read(attempt.pk, "loss", rank=0)) == COUNT + 1


@pytest.mark.django_db
def test_a_damaged_archive_is_reported_and_the_pyramid_stands_in(attempt: Attempt, tmp_path: Path) -> None:
    archive.archive(attempt.pk, f"file://{tmp_path}")
    (path,) = tmp_path.glob("*/*.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(archive.Damaged, match="SHA-256 differs"):
        store.read(attempt.pk, "loss", rank=0)
    path.unlink()
    with pytest.raises(archive.Damaged, match="is missing"):
        archive.restore(attempt.pk)
    zoomed = store.read(attempt.pk, "loss", rank=0, max_points=500, first_step=1_000, last_step=1_500)
    assert 1_000 <= zoomed.steps[0] <= zoomed.steps[-1] <= 1_500
    assert len(store.read(attempt.pk, "loss", rank=0, max_points=500)) == 500


@pytest.mark.django_db
def test_what_is_removed_stays_visible_in_the_pyramid(attempt: Attempt, columns: Columns) -> None:
    whole = store.read(attempt.pk, "loss", rank=0, max_points=500)
    row = archive.archive(attempt.pk, "")
    assert row is not None
    assert row.url == ""
    assert store.read(attempt.pk, "loss", rank=0, max_points=500).values.tolist() == pytest.approx(
        whole.values.tolist(), nan_ok=True
    )
    part = store.read_parts([attempt.pk], ["loss"], 500, first_step=1_000, last_step=1_500)[attempt.pk, "loss", 0]
    assert not part.is_whole
    assert set(part.columns.values) <= set(columns.values)
    assert len(store.read(attempt.pk, "short", rank=0)) == 100
    with pytest.raises(ValueError, match="only reingest rebuilds them"):
        archive.restore(attempt.pk)


@pytest.mark.django_db
def test_old_runs_are_archived_by_rule_and_by_command(
    attempt: Attempt, tmp_path: Path, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.RAW_DAYS, settings.ARCHIVE_URL = 0.0, f"file://{tmp_path}"
    tasks.retain()
    settings.RAW_DAYS = 200.0
    tasks.retain()
    assert not SeriesArchive.objects.exists()
    settings.RAW_DAYS = 90.0
    tasks.retain()
    assert SeriesArchive.objects.get().url.startswith(f"file://{tmp_path}")
    name = f"{attempt.run.experiment.slug}/{attempt.run.number}"
    call_command("series", "restore", name)
    call_command("series", "archive", "--days", "90")
    assert not SeriesArchive.objects.exists()
    call_command("series", "archive", "--days", "90", "--to", f"file://{tmp_path}", "--yes")
    shown = capsys.readouterr().out
    assert "1 attempts; repeat with --yes to archive their raw points" in shown
    assert f"{COUNT // 4_096 * 4_096:,} points of 1 attempts" in shown
    with pytest.raises(CommandError, match="--days is missing"):
        call_command("series", "remove")
    with pytest.raises(CommandError, match="no run 'x/1'"):
        call_command("series", "restore", "x/1")
