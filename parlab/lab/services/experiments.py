from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils.text import slugify

from parlab.lab.models import Experiment, Project, Report, Run, Snapshot
from parlab.lab.models.access.viewer import home_project_id

from .configs import config_copy, lock_experiment
from .pictures import files_forget

_NAME_LENGTH = 120
_TRIES = 5


@transaction.atomic
def experiment_create(
    *, name: str, question: str = "", notes: str = "", owner: User, source: str = "", project: Project | None = None
) -> Experiment:
    """Create an experiment, in the project of new things if none is named; raises ValueError if the name is taken."""
    project = project or Project.objects.get(pk=home_project_id())
    for _ in range(_TRIES):
        if Experiment.objects.filter(name=name, project=project).exists():
            break
        try:
            with transaction.atomic():
                return Experiment.objects.create(
                    project=project,
                    name=name,
                    slug=free_slug(Experiment, name, project),
                    question=question,
                    notes=notes,
                    owner=owner,
                    source=source,
                )
        except IntegrityError:
            continue  # another request took the name or slug concurrently
    raise ValueError(f"name {name!r} is taken; choose another or clone that experiment")


@transaction.atomic
def experiment_clone(*, experiment: Experiment, user: User) -> Experiment:
    """Copy an experiment's question and latest config as version 1, without its runs."""
    lock_experiment(experiment)  # a second click creates a second copy under another name
    project = experiment.project
    name = _free_copy_name(experiment.name, project)
    clone = experiment_create(name=name, question=experiment.question, owner=user, project=project)
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


def named_experiment(name: str) -> Experiment | None:
    """Find an experiment that a script names: of the project of new things before those of others that it sees."""
    found = list(Experiment.objects.filter(name=name).order_by("pk")[:1_000])
    home = home_project_id() if len(found) > 1 else None
    return min(found, key=lambda experiment: experiment.project_id != home, default=None)


def free_slug(model: type[Experiment] | type[Report], name: str, project: Project, *, length: int = 112) -> str:
    """Return the address of a new row: that of its name, outside of the shared project behind that of the project.

    The address of no row contains two dashes of its own, so two projects never have the same one.
    """
    base = slugify(name)[:length].strip("-") or str(model._meta.verbose_name)
    base = base if project.is_shared else f"{project.slug}--{base[: length - 2 - len(project.slug)]}".rstrip("-")
    taken = set(model._base_manager.filter(slug__startswith=base).values_list("slug", flat=True))
    taken |= {"new"} if model is Report else set()
    slug, count = base, 1
    while slug in taken:
        count += 1
        slug = f"{base}-{count}"
    return slug


def _free_copy_name(name: str, project: Project) -> str:
    stem = name[: _NAME_LENGTH - 14]
    taken = set(Experiment.objects.filter(name__startswith=stem, project=project).values_list("name", flat=True))
    copy, count = f"{stem} (copy)", 1
    while copy in taken:
        count += 1
        copy = f"{stem} (copy {count})"
    return copy
