"""Pictures of an experiment's gallery, and the jobs of those who draw them."""

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
from runners.config import digest

from . import storable

SILENT_AFTER = timedelta(minutes=3)
"""A worker says how far it is at each picture; one that was silent for so long was killed."""
MAX_TRIES = 3
WAITED = timedelta(seconds=15)


def file_store(*, data: bytes, media_type: str, width: int = 0, height: int = 0) -> StoredFile:
    """Keep bytes under their name; what is there already is not kept twice."""
    found, _ = StoredFile.objects.get_or_create(
        sha256=sha256(data).hexdigest(),
        defaults={"media_type": media_type, "size": len(data), "width": width, "height": height, "data": data},
    )
    return found


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
    """Put a picture into the gallery; the same picture with the same words is there once."""
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
    known = Snapshot.objects.filter(experiment=experiment, run=run, kind=Snapshot.Kind.IMAGE, digest=name).first()
    if known is not None:
        return known
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
    """Take a picture out of the gallery; its bytes go too, unless another picture or a published report has them.

    Raises ValueError for what is no picture of its own: configuration, results, or what an imported page refers to.
    """
    sha = snapshot.content.get("sha256")
    if snapshot.kind != Snapshot.Kind.IMAGE or not snapshot.content.get("width"):
        raise ValueError("only pictures that were drawn or uploaded can be deleted")
    snapshot.delete()
    files_forget(names=[sha])


def files_forget(*, names: Iterable[str]) -> None:
    """Delete stored files that neither a gallery nor a published report shows any more."""
    for sha in set(names):
        shown = Snapshot.objects.filter(kind=Snapshot.Kind.IMAGE, content__sha256=sha).exists()
        if not shown and not ReportFile.objects.filter(file__sha256=sha).exists():
            StoredFile.objects.filter(sha256=sha).delete()


@transaction.atomic
def pictures_ask(*, user: User, run: Run | None = None, version: ReportVersion | None = None) -> PictureJob:
    """Ask for the pictures of a run or a version; a second click joins the job that is open."""
    what = Q(run=run) if run is not None else Q(version=version)
    if run is not None:
        Run.objects.select_for_update(no_key=True).get(pk=run.pk)
    known = PictureJob.objects.filter(what, state__in=_OPEN).first()
    return known or PictureJob.objects.create(run=run, version=version, created_by=user)


_OPEN = (PictureJob.State.WAITING, PictureJob.State.DRAWING)


def _free() -> Q:
    """Jobs that no living worker has: waiting ones, and those whose worker fell silent."""
    silent = Q(state=PictureJob.State.DRAWING, changed_at__lt=timezone.now() - SILENT_AFTER)
    return Q(state=PictureJob.State.WAITING) | silent


def picture_job_claim(*, job_id: int) -> PictureJob | None:
    """Take a job, in one conditional UPDATE; None where another worker has it, or it is done or given up."""
    taken = PictureJob.objects.filter(_free(), pk=job_id, tries__lt=MAX_TRIES).update(
        state=PictureJob.State.DRAWING, tries=F("tries") + 1, done=0, changed_at=timezone.now()
    )
    if not taken:
        given_up = "it was begun three times and never ended. Ask an administrator to look at the worker's log."
        PictureJob.objects.filter(_free(), pk=job_id, tries__gte=MAX_TRIES).update(
            state=PictureJob.State.FAILED, problem=given_up, changed_at=timezone.now()
        )
        return None
    jobs = PictureJob.objects.select_related("version__report", "run__experiment", "run__config", "created_by")
    return jobs.get(pk=job_id)


def picture_job_note(*, job: PictureJob, done: int, total: int) -> None:
    """Say how far a job is."""
    PictureJob.objects.filter(pk=job.pk).update(done=done, total=total, changed_at=timezone.now())


def picture_job_end(*, job: PictureJob, problem: str = "") -> None:
    """End a job, well or with what a person can do about it."""
    state = PictureJob.State.FAILED if problem else PictureJob.State.DONE
    PictureJob.objects.filter(pk=job.pk).update(state=state, problem=problem, changed_at=timezone.now())


def picture_jobs_forgotten() -> QuerySet[PictureJob]:
    """List the jobs that a worker should have begun, or ended, by now."""
    return PictureJob.objects.filter(_free(), changed_at__lt=timezone.now() - WAITED)
