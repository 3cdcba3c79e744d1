"""Publish: read what a text asks for at one moment, freeze it, and let a worker draw its pictures."""

from __future__ import annotations

from functools import partial

from django.contrib.auth.models import User
from django.db import transaction

from parlab.lab import services as lab
from parlab.lab.models import Report, ReportFile, ReportVersion, StoredFile
from parlab.reports.blocks import PictureBlock
from parlab.reports.document import read

from .resolve import Figures, resolve
from .tasks import send


@transaction.atomic
def publish(*, report: Report, revision: int, figures: Figures, user: User) -> ReportVersion:
    """Freeze a report as its next version.

    Raises lab.Stale where its text is not that of `revision` any more, ValueError for a text that cannot be shown.
    """
    if report.revision != revision:
        raise lab.Stale(report)
    content = resolve(read(report.text), report=report, figures=figures)
    version = lab.report_publish(report=report, content=content.model_dump(mode="json"), revision=revision, user=user)
    shown = {block.sha256 for block in content.blocks.values() if isinstance(block, PictureBlock)}
    # Held by the version: whoever deletes the picture from its gallery leaves it here.
    held = [
        ReportFile(version=version, name=f"picture-{stored.sha256}", file=stored)
        for stored in StoredFile.objects.filter(sha256__in=shown).defer("data")
    ]
    ReportFile.objects.bulk_create(held, ignore_conflicts=True)
    if not version.jobs.exists():
        job = lab.pictures_request(user=user, version=version)
        transaction.on_commit(partial(send, job.pk))
    return version
