"""What one user may keep, over every road, and parts of uploads that nobody completes."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache

from parlab.ingest.files.imports import Refused, upload_import
from parlab.ingest.summaries.traces import trace_import
from parlab.lab.models import Attempt, Experiment, RankTrace, TrackedRun
from parlab.lab.models.access.viewer import viewer_of, viewing
from parlab.lab.services.access.projects import project_create
from parlab.lab.services.access.quotas import kept_by
from parlab.lab.services.experiments import experiment_create
from parlab.traces.chunks import BadTrace
from parlab.tracking import artifacts
from parlab.tracking.artifacts import BadArtifact
from parlab.tracking.runs import tracked_run_start

MIB = 1 << 20


@pytest.fixture
def tracked(experiment: Experiment, user: User, settings: Any, tmp_path: Path) -> TrackedRun:
    cache.clear()
    settings.ARTIFACTS_DIR, settings.STORAGE_LIMIT_GIB = tmp_path, 3 / 1024
    return tracked_run_start(experiment=experiment, user=user)


def stored(tracked: TrackedRun, name: str, mib: float) -> None:
    artifacts.artifact_store(tracked=tracked, path=name, blocks=[bytes(int(mib * MIB))])


def test_an_owner_at_the_limit_is_refused_on_every_road_until_something_is_deleted(
    tracked: TrackedRun, user: User, make_attempt: Callable[..., Attempt]
) -> None:
    stored(tracked, "first", 2)
    RankTrace.objects.create(run=make_attempt().run, rank=7, name="t", sha256="0" * 64, size=MIB // 2, analysis={})
    cache.clear()
    assert kept_by(user.pk) == (2.5 * MIB, 2)
    with pytest.raises(BadArtifact, match="you keep 2 MiB of at most 3 MiB; delete artifacts"):
        stored(tracked, "second", 1)
    assert not list((artifacts._root() / "drafts").iterdir())
    with pytest.raises(Refused, match="PARLAB_STORAGE_LIMIT_GIB"):
        upload_import(experiment=None, name="log", stream=io.BytesIO(b"x" * MIB), user=user)
    with pytest.raises(BadTrace, match="PARLAB_STORAGE_LIMIT_GIB"):
        trace_import(run=make_attempt().run, name="trace", file=io.BytesIO(bytes(MIB)), user=user)
    artifacts.artifacts_delete(tracked=tracked, path="first")
    stored(tracked, "second", 1)


def test_what_is_added_within_a_minute_counts(tracked: TrackedRun) -> None:
    for number in range(6):
        stored(tracked, f"file-{number}", 0.5)
    with pytest.raises(BadArtifact, match="at most 3 MiB"):
        stored(tracked, "file-6", 0.5)


def test_the_number_of_files_is_limited_too(tracked: TrackedRun, settings: Any) -> None:
    settings.STORAGE_LIMIT_FILES = 3
    for number in range(3):
        stored(tracked, f"file-{number}", 0)
    with pytest.raises(BadArtifact, match=r"you keep 3 files of at most 3; .*PARLAB_STORAGE_LIMIT_FILES"):
        stored(tracked, "file-3", 0)
    artifacts.artifacts_delete(tracked=tracked, path="file-0")
    stored(tracked, "file-3", 0)


def test_parts_that_are_not_completed_count_and_are_removed_in_the_end(tracked: TrackedRun) -> None:
    abandoned = artifacts.upload_create(tracked=tracked)
    for number in (1, 2):
        artifacts.part_store(upload_id=abandoned, number=number, blocks=[bytes(2 * MIB)])
    with pytest.raises(BadArtifact, match="at most 3 MiB"):
        artifacts.part_store(upload_id=abandoned, number=3, blocks=[b"more"])
    with pytest.raises(BadArtifact, match="at most 3 MiB"):
        artifacts.upload_create(tracked=tracked)
    assert artifacts.uploads_prune() == 0
    old = time.time() - artifacts.ABANDONED_S - 60
    for path in (artifacts._root() / "parts").rglob("*"):
        os.utime(path, (old, old))
    assert artifacts.uploads_prune() == 1
    with pytest.raises(BadArtifact, match="Unknown upload"):
        artifacts.part_store(upload_id=abandoned, number=3, blocks=[b"more"])
    assert artifacts.upload_create(tracked=tracked)


def test_a_token_of_one_project_counts_what_its_owner_keeps_in_all(tracked: TrackedRun, user: User) -> None:
    stored(tracked, "first", 2)
    other = project_create(name="Vision", user=user)
    with viewing(viewer_of(user, other.pk)):
        assert kept_by(user.pk) == (2 * MIB, 1)
        elsewhere = tracked_run_start(experiment=experiment_create(name="There", owner=user, project=other), user=user)
        cache.clear()
        with pytest.raises(BadArtifact, match="you keep 2 MiB of at most 3 MiB"):
            stored(elsewhere, "second", 2)


def test_a_project_has_a_limit_of_its_own_on_every_road(
    tracked: TrackedRun, user: User, settings: Any, make_attempt: Callable[..., Attempt]
) -> None:
    settings.STORAGE_LIMIT_GIB, settings.PROJECT_STORAGE_LIMIT_GIB = 0, 3 / 1024
    colleague = User.objects.create_user("colleague")
    mine, theirs = tracked, tracked_run_start(experiment=tracked.run.experiment, user=colleague)
    stored(mine, "first", 1.5)
    stored(theirs, "first", 1.5)
    expected = "the project keeps 3 MiB of at most 3 MiB; .*PARLAB_PROJECT_STORAGE_LIMIT_GIB"
    with pytest.raises(BadArtifact, match=expected):
        stored(mine, "second", 1)
    with pytest.raises(Refused, match=expected):
        upload_import(experiment=None, name="log", stream=io.BytesIO(b"x" * MIB), user=user)
    with pytest.raises(BadTrace, match=expected):
        trace_import(run=make_attempt().run, name="trace", file=io.BytesIO(bytes(MIB)), user=user)
    other = experiment_create(name="There", owner=user, project=project_create(name="Vision", user=user))
    stored(tracked_run_start(experiment=other, user=user), "second", 1)
    artifacts.artifacts_delete(tracked=theirs, path="first")
    upload = artifacts.upload_create(tracked=mine)
    artifacts.part_store(upload_id=upload, number=1, blocks=[bytes(2 * MIB)])
    with pytest.raises(BadArtifact, match="the project keeps 1 MiB of at most 3 MiB"):
        artifacts.upload_create(tracked=theirs)
