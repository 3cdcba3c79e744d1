"""Projects, their members and their pools; moving experiments between them."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils.text import slugify

from parlab.lab.models import (
    Dashboard,
    Experiment,
    Membership,
    Project,
    ProjectPool,
    Report,
    Role,
    SavedView,
    ServiceAccount,
)
from parlab.lab.services import storable
from parlab.lab.services.configs import lock_experiment

from .rights import may_change, may_work, refusal

_NAME, _SLUG = 80, 40


def project_create(*, name: str, visibility: str = Project.Visibility.PRIVATE, user: User) -> Project:
    """Create a project with its creator as maintainer; raises ValueError with a remedy."""
    name = _name(name)
    slug = slugify(name)[:_SLUG].strip("-")
    if not slug:
        raise ValueError(f"name {name!r} has no letters or digits that an address can show; add some")
    try:
        with transaction.atomic():
            project = Project.objects.create(name=name, slug=slug, visibility=_visibility(visibility), created_by=user)
            Membership.objects.create(project=project, user=user, role=Role.MAINTAINER)
    except IntegrityError:
        raise ValueError(f"name {name!r} is taken, or too similar to another; choose another") from None
    return project


def project_change(*, project: Project, name: str | None = None, visibility: str | None = None) -> Project:
    """Rename a project, or change who sees it; its slug stays."""
    if name is not None:
        project.name = _name(name)
        if Project.objects.filter(name=project.name).exclude(pk=project.pk).exists():
            raise ValueError(f"name {project.name!r} is taken; choose another")
    if visibility is not None:
        project.visibility = _visibility(visibility)
    project.save(update_fields=["name", "visibility"])
    return project


def member_set(*, project: Project, user: User, role: str) -> Membership:
    """Give a person a role in a project; raises ValueError for an unknown role, or without a maintainer left."""
    if role not in Role.values:
        raise ValueError(f"role {role[:20]!r} is unknown; use {', '.join(Role.values)}")
    with transaction.atomic():
        Project.objects.select_for_update(no_key=True).get(pk=project.pk)
        _keep_a_maintainer(project, user, role)
        service = ServiceAccount.objects.filter(user=user).first()
        if service is not None and service.project_id != project.pk:
            raise ValueError(f"{user} is a service account of another project; create one in {project}")
        return Membership.objects.update_or_create(
            project=project, user=user, defaults={"role": role, "is_from_groups": False}
        )[0]


def member_remove(*, project: Project, user: User) -> bool:
    """Take a person's role in a project; returns whether they had one. Raises ValueError without a maintainer left."""
    with transaction.atomic():
        Project.objects.select_for_update(no_key=True).get(pk=project.pk)
        _keep_a_maintainer(project, user, "")
        return bool(Membership.objects.filter(project=project, user=user).delete()[0])


def pools_set(*, project: Project, pools: list[str]) -> list[str]:
    """Reserve pools of nodes for a project, and free all others that it had; raises ValueError for one of another."""
    pools = sorted({" ".join(pool.split())[:63] for pool in pools if pool.strip()})
    taken = ProjectPool.objects.filter(pool__in=pools).exclude(project=project).first()
    if taken is not None:
        raise ValueError(f"pool {taken.pool!r} belongs to another project; choose another")
    with transaction.atomic():
        ProjectPool.objects.filter(project=project).exclude(pool__in=pools).delete()
        rows = [ProjectPool(project=project, pool=pool) for pool in pools]
        ProjectPool.objects.bulk_create(rows, ignore_conflicts=True)
    return pools


def in_open_pools() -> Q:
    """Match runs whose pool is open to their project."""
    condition = Q()
    for row in ProjectPool.objects.all():
        condition &= ~Q(resolved__cluster__pool=row.pool) | Q(experiment__project=row.project_id)
    return condition


def closed_pools(project_id: int) -> set[str]:
    """Return the pools that other projects have reserved."""
    return set(ProjectPool.objects.exclude(project=project_id).values_list("pool", flat=True))


@transaction.atomic
def experiment_move(*, experiment: Experiment, project: Project, user: User) -> Experiment:
    """Move an experiment with its reports, dashboards and views to another project; its address stays.

    Raises PermissionDenied without the right to, ValueError if its name is taken there.
    """
    lock_experiment(experiment)
    experiment.refresh_from_db()
    if experiment.project_id == project.pk:
        return experiment
    if not may_change(user, experiment):
        raise PermissionDenied(refusal(user, experiment))
    target = Experiment(project=project)
    if not may_work(user, target):
        raise PermissionDenied(f"You only read project {project}; ask one of its maintainers for the role operator.")
    if Experiment.objects.filter(project=project, name=experiment.name).exists():
        raise ValueError(f"name {experiment.name!r} is taken in project {project}; rename one of the two first")
    experiment.project = project
    experiment.save(update_fields=["project", "updated_at"])
    for model in (Report, Dashboard):
        model._base_manager.filter(experiment=experiment).update(project=project)
    _views_move(experiment, project)
    _watches_move(experiment, project)
    return experiment


def _views_move(experiment: Experiment, project: Project) -> None:
    path = experiment.get_absolute_url()
    SavedView._base_manager.filter(path__startswith=path).update(project=project)


def _watches_move(experiment: Experiment, project: Project) -> None:
    for watch in _watches_of(experiment):
        same = Q(name=watch.name) | Q(key=watch.key)
        if type(watch)._base_manager.filter(same, project=project).exists():
            raise ValueError(f"watch {watch} exists in project {project}, too; delete or rename one of the two first")
        watch.project = project
        watch.save(update_fields=["project"])


def _watches_of(experiment: Experiment) -> list[Any]:
    return [watch for config in experiment.configs.all() for watch in config.watches.all()]


def _name(name: str) -> str:
    name = storable.text(" ".join(name.split()))[:_NAME]
    if not name:
        raise ValueError("name is empty; enter the name of the project")
    return name


def _visibility(value: str) -> str:
    if value not in Project.Visibility.values:
        raise ValueError(f"visibility {value[:20]!r} is unknown; use {', '.join(Project.Visibility.values)}")
    return value


def _keep_a_maintainer(project: Project, user: User, role: str) -> None:
    others = Membership.objects.filter(project=project, role=Role.MAINTAINER, user__service_account=None)
    others = others.exclude(user=user)
    was = Membership.objects.filter(project=project, role=Role.MAINTAINER, user=user, user__service_account=None)
    if was.exists() and role != Role.MAINTAINER and not others.exists():
        raise ValueError(f"{user} is the only maintainer of {project}; make another person one first")
