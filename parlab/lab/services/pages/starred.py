"""The experiments that a person starred: they stand first in that person's list."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction

from parlab.lab.models import Experiment, Preference

NAME = "starred.experiments"
MOST = 500
"""Stars that are kept; the oldest go first."""


def starred_experiments(user: User) -> frozenset[int]:
    """Return the ids of the experiments that a person starred."""
    kept = Preference.objects.filter(user=user, name=NAME).values_list("value", flat=True).first()
    return frozenset(kept) if isinstance(kept, list) else frozenset()


@transaction.atomic
def experiment_star(*, user: User, experiment: Experiment) -> bool:
    """Star an experiment for a person, or remove the star; returns whether it has one now."""
    Preference.objects.get_or_create(user=user, name=NAME, defaults={"value": []})
    preference = Preference.objects.select_for_update().get(user=user, name=NAME)
    others = [pk for pk in preference.value if pk != experiment.pk]
    is_starred = len(others) == len(preference.value)
    preference.value = [*others, experiment.pk][-MOST:] if is_starred else others
    preference.save(update_fields=["value"])
    return is_starred
