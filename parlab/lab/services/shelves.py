"""Tags and the archive of experiments."""

import re
from collections.abc import Iterable

from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Experiment, Run, Tag

from . import storable

MAX_TAGS = 20
_TAG = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}\Z")


def tag_name(text: str) -> str:
    """Normalize the name of a tag; raises ValueError if it is invalid."""
    name = storable.text(text).strip().lower()
    if not _TAG.match(name):
        raise ValueError(
            f"invalid tag {name[:50]!r}; use one word of up to 40 letters, digits, dots, underscores and hyphens"
        )
    return name


@transaction.atomic
def experiments_tag(*, experiments: Iterable[Experiment], name: str) -> int:
    """Add a tag to experiments; returns how many did not have it. Raises ValueError for an invalid tag."""
    name = tag_name(name)
    ids = [experiment.pk for experiment in experiments]
    tags = Tag.objects.filter(experiment__in=ids).values_list("experiment_id", "name")
    existing: dict[int, set[str]] = {pk: set() for pk in ids}
    for experiment_id, tag in tags:
        existing[experiment_id].add(tag)
    full = [pk for pk, names in existing.items() if name not in names and len(names) >= MAX_TAGS]
    if full:
        raise ValueError(f"{len(full)} of the experiments already have {MAX_TAGS} tags; remove a tag first")
    new = [Tag(experiment_id=pk, name=name) for pk, names in existing.items() if name not in names]
    Tag.objects.bulk_create(new, ignore_conflicts=True)
    return len(new)


@transaction.atomic
def experiments_untag(*, experiments: Iterable[Experiment], name: str) -> int:
    """Remove a tag from experiments; returns how many had it."""
    matches = Tag.objects.filter(experiment__in=[experiment.pk for experiment in experiments], name=tag_name(name))
    return matches.delete()[0]


@transaction.atomic
def experiments_archive(*, experiments: Iterable[Experiment]) -> tuple[list[int], list[str]]:
    """Archive experiments; returns the ids of those archived, and the names of those with active runs."""
    by_id = {experiment.pk: experiment for experiment in experiments}
    busy = set(Run.objects.active().filter(experiment__in=by_id).values_list("experiment_id", flat=True))
    ids = [pk for pk, experiment in by_id.items() if pk not in busy and experiment.archived_at is None]
    Experiment.objects.filter(pk__in=ids, archived_at=None).update(archived_at=timezone.now())
    return ids, [by_id[pk].name for pk in sorted(busy)]


@transaction.atomic
def experiments_restore(*, experiments: Iterable[Experiment]) -> list[int]:
    """Restore experiments from the archive; returns the ids of those that were archived."""
    ids = [experiment.pk for experiment in experiments if experiment.archived_at is not None]
    Experiment.objects.filter(pk__in=ids).update(archived_at=None)
    return ids
