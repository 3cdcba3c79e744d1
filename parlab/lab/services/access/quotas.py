"""How much each owner of runs and each project may keep on the server: artifacts, traces and imported files.

Whose what is, is decided in `owner_of` and in the three rows of `_KEPT` alone.
"""

from __future__ import annotations

from typing import NamedTuple

from django.conf import settings
from django.core.cache import cache
from django.db.models import Count, Model, Sum

from parlab.lab.models import Artifact, RankTrace, Run, Source
from parlab.lab.models.access.viewer import viewing

_KEPT: tuple[tuple[type[Model], str], ...] = ((Artifact, "tracked__run__"), (RankTrace, "run__"), (Source, ""))
"""What counts, and the path to what has its owner and its experiment."""
_REMEMBERED_S = 60


class QuotaExceeded(ValueError):
    """The owner or the project keeps as much as the limit allows."""


def owner_of(run: Run) -> int:
    """Return whose quota a file of a run counts for."""
    return run.created_by_id


class Kept(NamedTuple):
    """What an owner or a project keeps."""

    bytes: int
    files: int


class Quota(NamedTuple):
    """A kind of limit: for whom, the name of its settings, and the field of a run or source that names the holder."""

    who: str
    setting: str
    field: str


OF_USER = Quota("you keep", "STORAGE_LIMIT", "created_by")
OF_PROJECT = Quota("the project keeps", "PROJECT_STORAGE_LIMIT", "experiment__project")


@viewing(None)
def kept_by(holder: int, quota: Quota = OF_USER) -> Kept:
    """Return how much an owner or a project keeps, also where a token does not reach."""
    rows = [
        model._default_manager.filter(**{path + quota.field: holder}).aggregate(bytes=Sum("size"), files=Count("pk"))
        for model, path in _KEPT
    ]
    return Kept(sum(row["bytes"] or 0 for row in rows), sum(row["files"] for row in rows))


def quota_check(*, owner: int, project: int, added: int) -> None:
    """Raise QuotaExceeded if an owner or a project keeps more than its limits with one more file of so many bytes."""
    holder_check(quota=OF_USER, holder=owner, added=added)
    holder_check(quota=OF_PROJECT, holder=project, added=added)


def holder_check(*, quota: Quota, holder: int, added: int) -> None:
    """Check one of the two; the sums are remembered for a minute, together with what is added meanwhile."""
    key = f"kept-{quota.setting}-{holder}"
    kept = cache.get(key)
    if kept is None or _excess(quota, kept, added):
        kept = kept_by(holder, quota)
    cache.set(key, Kept(kept.bytes + added, kept.files + 1), _REMEMBERED_S)
    if excess := _excess(quota, kept, added):
        cache.delete(key)
        amount, setting = excess
        raise QuotaExceeded(
            f"{quota.who} {amount}; delete artifacts, traces or imports that you no longer need, or ask an"
            f" administrator to raise PARLAB_{setting}"
        )


def _excess(quota: Quota, kept: Kept, added: int) -> tuple[str, str] | None:
    """Return how much is kept of a limit that would be exceeded, and its setting."""
    size, number = f"{quota.setting}_GIB", f"{quota.setting}_FILES"
    most, most_files = int(getattr(settings, size) * 2**30), getattr(settings, number)
    if 0 < most < kept.bytes + added:
        return f"{kept.bytes >> 20:,} MiB of at most {most >> 20:,} MiB", size
    if 0 < most_files < kept.files + 1:
        return f"{kept.files:,} files of at most {most_files:,}", number
    return None
