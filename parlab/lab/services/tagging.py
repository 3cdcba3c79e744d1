"""Tags of experiments."""

import re
from collections.abc import Iterable

from django.db import transaction

from parlab.lab.models import Experiment, Tag

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
