"""Reports: saved by revision, published as immutable versions, shared by revocable links."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import F, Max, Q
from django.utils import timezone

from parlab.lab.models import Experiment, Project, Report, ReportFile, ReportVersion
from parlab.lab.models.access.viewer import home_project_id
from parlab.lab.services.access.rights import guard
from runners.config import digest

from . import storable
from .experiments import free_slug
from .pictures import files_forget

EDITOR_AWAY_AFTER = timedelta(seconds=40)
"""The editor's page sends a request every 15 s; without one for this long, it counts as closed."""
_TITLE, _SLUG = 200, 100
_TRIES = 5


class Stale(Exception):
    """Another user saved in the meantime; `report` is the current state."""

    def __init__(self, report: Report) -> None:
        super().__init__(f"{report.saved_by} saved this report at {report.saved_at:%H:%M:%S}")
        self.report = report


def report_create(*, title: str, text: str, experiment: Experiment | None, user: User) -> Report:
    """Create a report; raises ValueError without a title."""
    title = _title(title)
    if experiment is not None:
        guard(experiment)
    project = experiment.project if experiment else Project.objects.get(pk=home_project_id())
    for _ in range(_TRIES):
        try:
            with transaction.atomic():
                return Report.objects.create(
                    project=project,
                    title=title,
                    slug=free_slug(Report, title, project, length=_SLUG),
                    text=_report_text(text),
                    experiment=experiment,
                    owner=user,
                    saved_by=user,
                )
        except IntegrityError:
            continue  # another request took the slug concurrently
    raise ValueError(f"could not create a unique address for title {title!r}; try again or choose another title")


def report_save(*, report: Report, title: str, text: str, revision: int, user: User) -> Report:
    """Save an edit of `revision`; raises Stale if another user saved in the meantime, ValueError without a title.

    One conditional UPDATE: of two concurrent saves, one succeeds and the other raises Stale.
    """
    changed = Report.objects.filter(pk=report.pk, revision=revision).update(
        title=_title(title),
        text=_report_text(text),
        revision=F("revision") + 1,
        saved_by=user,
        saved_at=timezone.now(),
    )
    current = Report.objects.select_related("saved_by", "experiment").get(pk=report.pk)
    if not changed:
        raise Stale(current)
    return current


def report_add(*, report: Report, text: str, user: User) -> Report:
    """Add a paragraph at the end of a report, whoever saves it in the meantime."""
    for _ in range(_TRIES):
        joined = f"{report.text.rstrip()}\n\n{text.strip()}\n".lstrip()
        try:
            return report_save(report=report, title=report.title, text=joined, revision=report.revision, user=user)
        except Stale as stale:
            report = stale.report
    raise ValueError(f"others save report {report.title!r} again and again; try again in a minute")


def report_editing(*, report: Report, user: User) -> User | None:
    """Record that a user has the editor open; return another user who already has it open, if any.

    The first user remains the editor until their page stops sending requests.
    """
    now = timezone.now()
    free = Q(editor=None) | Q(editor=user) | Q(editor_seen_at__lt=now - EDITOR_AWAY_AFTER)
    if Report.objects.filter(free, pk=report.pk).update(editor=user, editor_seen_at=now):
        return None
    return Report.objects.select_related("editor").get(pk=report.pk).editor


@transaction.atomic
def report_publish(*, report: Report, content: Mapping[str, Any], revision: int, user: User) -> ReportVersion:
    """Publish a report as its next version; unchanged content returns the latest version.

    `content` was created from the text of `revision`; raises Stale if the text has changed since.
    """
    locked = Report.objects.select_for_update(of=("self",)).select_related("saved_by").get(pk=report.pk)
    if locked.revision != revision:
        raise Stale(locked)
    frozen = storable.json(content)
    name = digest({"title": locked.title, "text": locked.text, "content": frozen})
    latest = locked.versions.order_by("-number").first()
    if latest is not None and latest.digest == name:
        return latest
    last: int = locked.versions.aggregate(last=Max("number"))["last"] or 0
    version = ReportVersion(
        report=locked,
        number=last + 1,
        title=locked.title,
        text=locked.text,
        content=frozen,
        digest=name,
        published_by=user,
    )
    version.save(force_insert=True)
    return version


def report_delete(*, report: Report) -> None:
    """Delete a report with all its published versions and links."""
    names = list(ReportFile.objects.filter(version__report=report).values_list("file__sha256", flat=True).distinct())
    with transaction.atomic():
        report.delete()
        files_forget(names=names)


def _title(title: str) -> str:
    title = storable.text(" ".join(title.split()))[:_TITLE]
    if not title:
        raise ValueError("title is empty; enter a title for the report")
    return title


def _report_text(text: str) -> str:
    return storable.text(text.replace("\r\n", "\n"))
