"""How much each owner of runs may keep on the server: artifacts, traces and imported files.

Who owns what is decided in `owner_of` and in the three rows of `_KEPT` alone.
"""

from __future__ import annotations

from django.conf import settings
from django.core.cache import cache
from django.db.models import Model, Sum

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


def kept_bytes(owner: int) -> int:
    """Return how many bytes an owner keeps."""
    rows = (model._default_manager.filter(**{path: owner}).aggregate(total=Sum("size")) for model, path in _KEPT)
    return sum(row["total"] or 0 for row in rows)


def quota_check(*, owner: int, added: int) -> None:
    """Raise QuotaExceeded if an owner keeps more than `PARLAB_STORAGE_LIMIT_GIB` with these bytes.

    The sum is remembered for a minute, together with what is added meanwhile.
    """
    limit = int(settings.STORAGE_LIMIT_GIB * 2**30)
    if not limit:
        return
    key = f"kept-bytes-{owner}"
    kept = cache.get(key)
    if kept is None or kept + added > limit:
        kept = kept_bytes(owner)
    cache.set(key, kept + added, _REMEMBERED_S)
    if kept + added > limit:
        cache.delete(key)
        raise QuotaExceeded(
            f"you keep {kept >> 20:,} MiB of at most {limit >> 20:,} MiB; delete artifacts, traces or imports that you"
            " no longer need, or ask an administrator to raise PARLAB_STORAGE_LIMIT_GIB"
        )
