"""Pictures in the gallery of an experiment, and the jobs that render them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from hashlib import sha256
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from parlab.lab.models import Experiment, PictureJob, ReportFile, ReportVersion, Run, Snapshot, StoredFile
from parlab.lab.models.access.viewer import current_viewer, viewing
from runners.config import digest

from . import storable

SILENT_AFTER = timedelta(minutes=3)
"""A worker updates its job after each picture; a job without an update for this long has lost its worker."""
MAX_TRIES = 3
WAITED = timedelta(seconds=15)


def file_store(*, data: bytes, media_type: str, width: int = 0, height: int = 0) -> StoredFile:
    """Store bytes under their SHA-256; identical bytes are stored once."""
    stored, _ = StoredFile.objects.get_or_create(
        sha256=sha256(data).hexdigest(),
        defaults={"media_type": media_type, "size": len(data), "width": width, "height": height, "data": data},
    )
    return stored


@transaction.atomic
def picture_add(
    *,
    experiment: Experiment,
    file: StoredFile,
    caption: str,
    facts: Mapping[str, Any],
    user: User,
    run: Run | None = None,
) -> Snapshot:
    """Add a picture to the gallery; the same picture with the same caption is stored once."""
    content = storable.json(
        {
            **facts,
            "sha256": file.sha256,
            "media_type": file.media_type,
            "width": file.width,
            "height": file.height,
            "caption": " ".join(caption.split())[:300],
        }
    )
    name = digest(content)
    existing = Snapshot.objects.filter(experiment=experiment, run=run, kind=Snapshot.Kind.IMAGE, digest=name).first()
    if existing is not None:
        return existing
    snapshot = Snapshot(
        experiment=experiment,
        run=run,
        attempt_number=run.attempt_number if run else 1,
        kind=Snapshot.Kind.IMAGE,
        digest=name,
        content=content,
        created_by=user,
    )
    snapshot.save(force_insert=True)
    return snapshot


@transaction.atomic
def picture_delete(*, snapshot: Snapshot) -> None:
    """Delete a picture from the gallery, and its file unless another picture or a published report uses it.

    Raises ValueError for other snapshots: configurations, results, and pictures of imported documents.
    """
    sha = snapshot.content.get("sha256")
    if snapshot.kind != Snapshot.Kind.IMAGE or not snapshot.content.get("width"):
        raise ValueError("only rendered or uploaded pictures can be deleted")
    snapshot.delete()
    files_forget(names=[sha])


def is_file_visible(stored: StoredFile) -> bool:
    """Return whether a gallery or a published report that the person who asks sees has a file."""
    viewer = current_viewer()
    if viewer is None or (viewer.limits is None and viewer.experiments is None):
        return True
    in_gallery = Snapshot.objects.filter(kind=Snapshot.Kind.IMAGE, content__sha256=stored.sha256)
    versions = ReportVersion.objects.values("pk")
    return in_gallery.exists() or ReportFile.objects.filter(file=stored, version__in=versions).exists()


@viewing(None)
def files_forget(*, names: Iterable[str]) -> None:
    """Delete stored files that no gallery and no published report uses any more."""
    for sha in set(names):
        in_gallery = Snapshot.objects.filter(kind=Snapshot.Kind.IMAGE, content__sha256=sha).exists()
        if not in_gallery and not ReportFile.objects.filter(file__sha256=sha).exists():
            StoredFile.objects.filter(sha256=sha).delete()


@transaction.atomic
def pictures_request(*, user: User, run: Run | None = None, version: ReportVersion | None = None) -> PictureJob:
    """Request the pictures of a run or a version; a second request returns the open job."""
    subject = Q(run=run) if run is not None else Q(version=version)
    if run is not None:
        Run.objects.select_for_update(no_key=True).get(pk=run.pk)
    open_job = PictureJob.objects.filter(subject, state__in=_OPEN).first()
    return open_job or PictureJob.objects.create(run=run, version=version, created_by=user)


_OPEN = (PictureJob.State.WAITING, PictureJob.State.DRAWING)


def _unclaimed() -> Q:
    """Match waiting jobs, and those whose worker stopped sending updates."""
    silent = Q(state=PictureJob.State.DRAWING, changed_at__lt=timezone.now() - SILENT_AFTER)
    return Q(state=PictureJob.State.WAITING) | silent


def picture_job_claim(*, job_id: int) -> PictureJob | None:
    """Claim a job in one conditional UPDATE; None if another worker has it, or if it has ended."""
    claimed = PictureJob.objects.filter(_unclaimed(), pk=job_id, tries__lt=MAX_TRIES).update(
        state=PictureJob.State.DRAWING, tries=F("tries") + 1, done=0, changed_at=timezone.now()
    )
    if not claimed:
        problem = (
            f"the job was started {MAX_TRIES} times and never ended. Ask an administrator to check the worker's log."
        )
        PictureJob.objects.filter(_unclaimed(), pk=job_id, tries__gte=MAX_TRIES).update(
            state=PictureJob.State.FAILED, problem=problem, changed_at=timezone.now()
        )
        return None
    jobs = PictureJob.objects.select_related("version__report", "run__experiment", "run__config", "created_by")
    return jobs.get(pk=job_id)


def picture_job_note(*, job: PictureJob, done: int, total: int) -> None:
    """Update the progress of a job."""
    PictureJob.objects.filter(pk=job.pk).update(done=done, total=total, changed_at=timezone.now())


def picture_job_end(*, job: PictureJob, problem: str = "") -> None:
    """End a job: done, or failed with a problem that tells the user what to do."""
    state = PictureJob.State.FAILED if problem else PictureJob.State.DONE
    PictureJob.objects.filter(pk=job.pk).update(state=state, problem=problem, changed_at=timezone.now())


def picture_jobs_stalled() -> QuerySet[PictureJob]:
    """Return the open jobs that no worker has claimed or updated in time."""
    return PictureJob.objects.filter(_unclaimed(), changed_at__lt=timezone.now() - WAITED)
