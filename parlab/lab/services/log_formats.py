"""Log formats that the team taught parlab: saved as versions, deleted without losing files that were read with them."""

from __future__ import annotations

import re

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from parlab.formats.learnt.learnt import Learnt
from parlab.lab.models import LogFormat
from parlab.lab.models.access.viewer import home_project_id

MAX_NAME = 60
_NAME = re.compile(r"[A-Za-z0-9][\w .+-]{0,59}", re.ASCII)


def log_format_save(*, definition: Learnt, user: User) -> LogFormat:
    """Save a definition as the next version of the format of its name; an unchanged one stays the same version.

    Raises ValueError with the field and the remedy.
    """
    name = " ".join(definition.name.split())
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"name {definition.name[:80]!r} is not valid; use 1 to {MAX_NAME} letters, digits, spaces, dots and dashes,"
            " beginning with a letter or digit"
        )
    data = definition.model_copy(update={"name": name}).model_dump(mode="json")
    try:
        with transaction.atomic():
            versions = LogFormat.objects.select_for_update(no_key=True).filter(name=name, project=home_project_id())
            last = versions.order_by("-version").first()
            if last is not None and last.definition == data and not last.is_deleted:
                return last
            return LogFormat.objects.create(
                name=name, version=last.version + 1 if last else 1, definition=data, created_by=user
            )
    except IntegrityError as problem:
        raise ValueError(f"name {name!r} was saved by someone else at the same time; reload and try again") from problem


@transaction.atomic
def log_format_delete(*, name: str) -> int:
    """Delete all versions of a format; returns how many. Versions that files were read with are only hidden."""
    versions = LogFormat.objects.filter(name=name, is_deleted=False)
    count = versions.count()
    versions.filter(sources=None).delete()
    versions.update(is_deleted=True)
    return count
