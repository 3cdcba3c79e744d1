from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils.text import slugify

from parlab.lab.models import Experiment, Run, Snapshot

from .configs import config_copy, lock_experiment
from .pictures import files_forget

_NAME_LENGTH = 120
_TRIES = 5


@transaction.atomic
def experiment_create(*, name: str, question: str = "", notes: str = "", owner: User, source: str = "") -> Experiment:
    """Create an experiment; raises ValueError if the name is taken."""
    for _ in range(_TRIES):
        if Experiment.objects.filter(name=name).exists():
            break
        try:
            with transaction.atomic():
                return Experiment.objects.create(
                    name=name, slug=_free_slug(name), question=question, notes=notes, owner=owner, source=source
                )
        except IntegrityError:
            continue  # another request took the name or slug concurrently
    raise ValueError(f"name {name!r} is taken; choose another or clone that experiment")


@transaction.atomic
def experiment_clone(*, experiment: Experiment, user: User) -> Experiment:
    """Copy an experiment's question and latest config as version 1, without its runs."""
    lock_experiment(experiment)  # a second click creates a second copy under another name
    clone = experiment_create(name=_free_copy_name(experiment.name), question=experiment.question, owner=user)
    latest = experiment.configs.order_by("-version").first()
    if latest is not None:
        config_copy(config=latest, experiment=clone, user=user)
    return clone


@transaction.atomic
def experiment_delete(*, experiment: Experiment) -> None:
    """Delete an experiment with everything in it, and the stored files of pictures that are used nowhere else.

    Reports about it and their published versions remain. Raises ValueError if one of its runs is active.
    """
    lock_experiment(experiment)
    experiment_is_at_rest(experiment=experiment)
    pictures = experiment.snapshots.filter(kind=Snapshot.Kind.IMAGE)
    names = [sha for sha in pictures.values_list("content__sha256", flat=True) if sha]
    experiment.delete()
    files_forget(names=names)


def experiment_is_at_rest(*, experiment: Experiment) -> None:
    """Raise ValueError if a run of an experiment is active."""
    active = Run.everything.active().filter(experiment=experiment).first()
    if active is not None:
        raise ValueError(f"{active} is {active.state}; cancel it first")


def _free_slug(name: str) -> str:
    base = slugify(name)[: _NAME_LENGTH - 8].strip("-") or "experiment"
    taken = set(Experiment.objects.filter(slug__startswith=base).values_list("slug", flat=True))
    slug, count = base, 1
    while slug in taken:
        count += 1
        slug = f"{base}-{count}"
    return slug


def _free_copy_name(name: str) -> str:
    stem = name[: _NAME_LENGTH - 14]
    taken = set(Experiment.objects.filter(name__startswith=stem).values_list("name", flat=True))
    copy, count = f"{stem} (copy)", 1
    while copy in taken:
        count += 1
        copy = f"{stem} (copy {count})"
    return copy
