"""How much each owner of runs may keep on the server: artifacts, traces and imported files.

Who owns what is decided in `owner_of` and in the three rows of `_KEPT` alone.
"""

from __future__ import annotations

from typing import NamedTuple

from django.conf import settings
from django.core.cache import cache
from django.db.models import Count, Model, Sum

from parlab.lab.models import Artifact, RankTrace, Run, Source

_KEPT: tuple[tuple[type[Model], str], ...] = (
    (Artifact, "tracked__run__created_by"),
    (RankTrace, "run__created_by"),
    (Source, "created_by"),
)
"""What counts, and the path to its owner."""
_REMEMBERED_S = 60


class QuotaExceeded(ValueError):
    """The owner keeps as much as the limit allows."""


def owner_of(run: Run) -> int:
    """Return whose quota a file of a run counts for."""
    return run.created_by_id


class Kept(NamedTuple):
    """What an owner keeps."""

    bytes: int
    files: int


def kept_by(owner: int) -> Kept:
    """Return how much an owner keeps."""
    rows = [
        model._default_manager.filter(**{path: owner}).aggregate(bytes=Sum("size"), files=Count("pk"))
        for model, path in _KEPT
    ]
    return Kept(sum(row["bytes"] or 0 for row in rows), sum(row["files"] for row in rows))


def quota_check(*, owner: int, added: int) -> None:
    """Raise QuotaExceeded if an owner keeps more than the limits with one more file of so many bytes.

    The sums are remembered for a minute, together with what is added meanwhile.
    """
    key = f"kept-{owner}"
    kept = cache.get(key)
    if kept is None or _excess(kept, added):
        kept = kept_by(owner)
    cache.set(key, Kept(kept.bytes + added, kept.files + 1), _REMEMBERED_S)
    if excess := _excess(kept, added):
        cache.delete(key)
        amount, setting = excess
        raise QuotaExceeded(
            f"you keep {amount}; delete artifacts, traces or imports that you no longer need, or ask an administrator"
            f" to raise {setting}"
        )


def _excess(kept: Kept, added: int) -> tuple[str, str] | None:
    """Return how much is kept of a limit that would be exceeded, and its setting."""
    most, most_files = int(settings.STORAGE_LIMIT_GIB * 2**30), settings.STORAGE_LIMIT_FILES
    if 0 < most < kept.bytes + added:
        return f"{kept.bytes >> 20:,} MiB of at most {most >> 20:,} MiB", "PARLAB_STORAGE_LIMIT_GIB"
    if 0 < most_files < kept.files + 1:
        return f"{kept.files:,} files of at most {most_files:,}", "PARLAB_STORAGE_LIMIT_FILES"
    return None
