"""Publish a report: resolve its directives, freeze the content, and request its pictures; find a published version."""

from __future__ import annotations

from functools import partial

from django.contrib.auth.models import User
from django.db import transaction
from django.shortcuts import get_object_or_404

from parlab.lab.models import Report, ReportFile, ReportVersion, StoredFile
from parlab.lab.services.pictures import pictures_request
from parlab.lab.services.reports import Stale, report_publish
from parlab.reports.blocks import PictureBlock
from parlab.reports.document import read

from .resolve import resolve, unknown_names
from .tasks import send


def find_version(slug: str, number: int) -> ReportVersion:
    versions = ReportVersion.objects.select_related("report", "report__owner", "published_by")
    return get_object_or_404(versions, report__slug=slug, number=number)


@transaction.atomic
def publish(*, report: Report, revision: int, user: User) -> ReportVersion:
    """Freeze a report as its next version.

    Raises lab.Stale if the text has changed since `revision`, and ValueError for a text that cannot be rendered or that
    names what does not exist.
    """
    if report.revision != revision:
        raise Stale(report)
    document = read(report.text)
    content = resolve(document, report=report)
    if unknown := unknown_names(document, content):
        more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise ValueError(f"{unknown[0]}{more}; correct the text, then publish")
    version = report_publish(report=report, content=content.model_dump(mode="json"), revision=revision, user=user)
    digests = {block.sha256 for block in content.blocks.values() if isinstance(block, PictureBlock)}
    # The version keeps its pictures when they are deleted from the gallery.
    files = [
        ReportFile(version=version, name=f"picture-{stored.sha256}", file=stored)
        for stored in StoredFile.objects.filter(sha256__in=digests).defer("data")
    ]
    ReportFile.objects.bulk_create(files, ignore_conflicts=True)
    if not version.jobs.exists():
        job = pictures_request(user=user, version=version)
        transaction.on_commit(partial(send, job.pk))
    return version
