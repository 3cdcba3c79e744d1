"""Order among many experiments: tags, and the archive."""

import re
from collections.abc import Iterable

from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Experiment, Run, Tag

from . import storable

MAX_TAGS = 20
_TAG = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}\Z")


def tag_name(text: str) -> str:
    """Bring a tag into its one form; raises ValueError where it has none."""
    name = storable.text(text).strip().lower()
    if not _TAG.match(name):
        raise ValueError(
            f"tag {name[:50]!r} is not one word; use up to 40 letters, digits, dots and dashes, such as v100"
        )
    return name


@transaction.atomic
def experiments_tag(*, experiments: Iterable[Experiment], name: str) -> int:
    """Put a tag on experiments; returns how many had it not yet. Raises ValueError for what is no tag."""
    name = tag_name(name)
    ids = [experiment.pk for experiment in experiments]
    tags = Tag.objects.filter(experiment__in=ids).values_list("experiment_id", "name")
    held: dict[int, set[str]] = {pk: set() for pk in ids}
    for experiment_id, tag in tags:
        held[experiment_id].add(tag)
    full = [pk for pk, names in held.items() if name not in names and len(names) >= MAX_TAGS]
    if full:
        raise ValueError(f"{len(full)} of them have {MAX_TAGS} tags already; remove one first")
    new = [Tag(experiment_id=pk, name=name) for pk, names in held.items() if name not in names]
    Tag.objects.bulk_create(new, ignore_conflicts=True)
    return len(new)


@transaction.atomic
def experiments_untag(*, experiments: Iterable[Experiment], name: str) -> int:
    """Take a tag off experiments; returns how many had it."""
    found = Tag.objects.filter(experiment__in=[experiment.pk for experiment in experiments], name=tag_name(name))
    return found.delete()[0]


@transaction.atomic
def experiments_archive(*, experiments: Iterable[Experiment]) -> tuple[list[int], list[str]]:
    """Put experiments out of the way; returns the ids of those that were, and the names of those whose runs go on."""
    found = {experiment.pk: experiment for experiment in experiments}
    busy = set(Run.objects.active().filter(experiment__in=found).values_list("experiment_id", flat=True))
    ids = [pk for pk, experiment in found.items() if pk not in busy and experiment.archived_at is None]
    Experiment.objects.filter(pk__in=ids, archived_at=None).update(archived_at=timezone.now())
    return ids, [found[pk].name for pk in sorted(busy)]


@transaction.atomic
def experiments_restore(*, experiments: Iterable[Experiment]) -> list[int]:
    """Take experiments out of the archive; returns the ids of those that were in it."""
    ids = [experiment.pk for experiment in experiments if experiment.archived_at is not None]
    Experiment.objects.filter(pk__in=ids).update(archived_at=None)
    return ids
