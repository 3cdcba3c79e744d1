"""Who asks, and which rows they see: one rule for all models that belong to a project.

While a request is answered, a `Viewer` is set (`viewing`), and the managers of these models return only what it sees.
Tasks and commands have none and see everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeVar

from django.db import models
from django.db.models import FilteredRelation, Q

from .project import Project, ProjectPool, Role, shared_project_id

__all__ = [
    "SeenProject", "Viewer", "Visible", "VisibleManager", "VisibleQuerySet", "condition", "current_viewer",
    "home_project_id",
    "is_shown", "shared_project_id", "viewer_become", "viewer_of", "viewer_set", "viewing",
]  # fmt: skip

M = TypeVar("M", bound=models.Model)

RANK = {role: rank for rank, role in enumerate(Role, 1)}


class SeenProject(NamedTuple):
    """A project that a person sees."""

    slug: str
    name: str
    is_chosen: bool


class _Known(NamedTuple):
    """A project, and the role that the person was given in it."""

    pk: int
    slug: str
    name: str
    is_shared: bool
    visibility: str
    given: str | None


class Viewer:
    """A person, or a token of theirs, with the projects that they see. Everything is read once, when first needed."""

    def __init__(self, find_user: Callable[[], Any], project_id: int | None = None, experiments: Any = None) -> None:
        self._find_user = find_user
        self.project_id = project_id
        """The project of a token: it reaches no other."""
        self.chosen_id: int | None = None
        """The project that a person has chosen in the rail; new things belong to it."""
        self.narrowed_to: int | None = None
        """The project that lists are limited to."""
        self.experiments: frozenset[int] | None = experiments
        """The only experiments that a public link shows."""
        self.find_subject: Callable[[], int | None] = lambda: None
        """Returns the project of what the address of the request names."""

    @cached_property
    def user(self) -> Any:
        return self._find_user()

    @cached_property
    def _projects(self) -> list[_Known]:
        return self._projects_read()

    def _projects_read(self) -> list[_Known]:
        mine = FilteredRelation("memberships", condition=Q(memberships__user=self.user.pk))
        rows = Project.objects.annotate(mine=mine).order_by("pk")
        known = [
            _Known(*row) for row in rows.values_list("pk", "slug", "name", "is_shared", "visibility", "mine__role")
        ]
        if any(each.is_shared for each in known):
            return known
        shared_project_id()  # it does not exist before its first use
        return self._projects_read()

    @cached_property
    def sees_all(self) -> bool:
        """Whether the person is an administrator, who works in all projects."""
        user = self.user
        return bool(user.is_authenticated and user.is_active and (user.is_superuser or _administers(user)))

    @cached_property
    def roles(self) -> dict[int, Role]:
        """The role in each project that the person sees, for the token only in its own."""
        if not self.user.is_authenticated:
            return {}
        roles = {known.pk: self._role(known) for known in self._projects}
        return {key: role for key, role in roles.items() if role and self.project_id in (None, key)}

    @cached_property
    def memberships(self) -> dict[int, Role]:
        """The roles that were given to the person, by project."""
        return {known.pk: Role(known.given) for known in self._projects if known.given}

    def _role(self, known: _Known) -> Role | None:
        if self.sees_all:
            return Role.MAINTAINER
        if known.given:
            return Role(known.given)
        if known.visibility != Project.Visibility.INTERNAL:
            return None
        works = known.is_shared and any(".view_" not in name for name in self.user.get_all_permissions())
        return Role.OPERATOR if works else Role.VIEWER

    @cached_property
    def visible(self) -> frozenset[int] | None:
        """The ids of the projects that the person sees; None: all that exist."""
        if self.project_id is None and self.user.is_superuser:
            return None
        # What everybody reads needs no look at permissions.
        read = {each.pk for each in self._projects if each.given or each.visibility == Project.Visibility.INTERNAL}
        is_all = self.user.is_authenticated and self.project_id is None and len(read) == len(self._projects)
        if is_all or len(self.roles) == len(self._projects):
            return None
        return frozenset(self.roles)

    @property
    def limits(self) -> frozenset[int] | None:
        """The ids of the projects that lists show; None: all that exist."""
        return self.visible if self.narrowed_to is None else frozenset({self.narrowed_to})

    @cached_property
    def home_id(self) -> int:
        """The project that new things belong to."""
        if self.project_id is not None:
            return self.project_id
        if self.chosen_id is not None and self.chosen_id in self.roles:
            return self.chosen_id
        shared = next((known.pk for known in self._projects if known.is_shared), None) or shared_project_id()
        works_in = [key for key, role in self.roles.items() if RANK[role] >= RANK[Role.OPERATOR]]
        return shared if shared in works_in or not works_in else works_in[0]

    @cached_property
    def subject_id(self) -> int:
        """The project that the request is about: of what its address names, else the one of new things."""
        found = self.find_subject()
        return self.home_id if found is None else found

    @property
    def seen(self) -> list[SeenProject]:
        """The projects that the person sees, as the rail offers them."""
        shown = (known for known in self._projects if known.pk in self.roles)
        return [SeenProject(known.slug, known.name, known.pk == self.chosen_id) for known in shown]

    def has_role(self, role: Role, project_id: int) -> bool:
        if self.sees_all and self.project_id is None:
            return True  # without a query for all projects, which polls would repeat
        mine = self.roles.get(project_id)
        return mine is not None and RANK[mine] >= RANK[role]

    @property
    def key(self) -> str:
        """What two viewers who see the same have in common."""
        if self.experiments is not None:
            return f"link {sorted(self.experiments)}"
        return "all" if self.limits is None else ",".join(map(str, sorted(self.limits)))


def _administers(user: Any) -> bool:
    # Not has_perm, which asks for the role in the project of the request.
    return "lab.change_project" in user.get_all_permissions()


_current: ContextVar[Viewer | None] = ContextVar("viewer", default=None)


def current_viewer() -> Viewer | None:
    """Return who asks; None in tasks and commands, which see everything."""
    return _current.get()


def viewer_set(viewer: Viewer | None) -> None:
    """Set who asks from here on: for a middleware whose answer may be read in another context."""
    _current.set(viewer)


def viewer_become(user: Any, project_id: int | None) -> None:
    """Take a user who was authenticated within a view as the one who asks, with the project of their token."""
    before, viewer = _current.get(), Viewer(lambda: user, project_id)
    if before is not None:
        viewer.find_subject = before.find_subject
    _current.set(viewer)


@contextmanager
def viewing(viewer: Viewer | None) -> Iterator[None]:
    """Set who asks; None: what follows concerns everybody, such as a file that several projects use."""
    before = _current.get()
    _current.set(viewer)
    try:
        yield
    finally:
        _current.set(before)


def viewer_of(user: Any, project_id: int | None = None) -> Viewer:
    return Viewer(lambda: user, project_id)


def home_project_id() -> int:
    """Return the project that new things belong to: of the token, as chosen in the rail, or the shared one."""
    viewer = _current.get()
    return shared_project_id() if viewer is None else viewer.home_id


def is_shown(project_id: int) -> bool:
    """Return whether the person who asks sees a project: for names that a row of no project mentions."""
    viewer = _current.get()
    return viewer is None or viewer.limits is None or project_id in viewer.limits


def condition(model: type[models.Model], viewer: Viewer | None) -> Q | None:
    """Return which rows of a model a viewer sees; None for all. `model.PROJECT` is the path to its project."""
    if viewer is None:
        return None
    path: str = model.PROJECT  # type: ignore[attr-defined]
    if viewer.experiments is not None:
        return _of_link(model, path, viewer.experiments)
    if viewer.limits is None:
        return None
    if path == "pool":
        closed = ProjectPool.objects.exclude(project__in=viewer.limits)
        return ~Q(pool__in=closed.values("pool"))
    holder = path.rpartition("project")[0]
    if holder in ("", "watch__", "report__"):
        return Q(**{f"{path}__in": viewer.limits})
    # A subquery and no join: such rows can be locked, updated and combined like all others.
    of_experiment = holder.removesuffix("__")
    seen: models.QuerySet[Any] = (
        models.QuerySet(_experiment_of(model, of_experiment)).filter(project__in=viewer.limits).values("pk")
    )
    of_seen = Q(**{f"{of_experiment}__in": seen})
    return of_seen | Q(**{of_experiment: None}) if _may_lack(model, of_experiment) else of_seen


def _of_link(model: type[models.Model], path: str, experiments: frozenset[int]) -> Q:
    if model._meta.model_name == "experiment":
        return Q(pk__in=experiments)
    holder = path.rpartition("project")[0].removesuffix("__")
    return Q(**{f"{holder}__in": experiments}) if holder.endswith("experiment") else Q(pk__in=())


def _experiment_of(model: type[models.Model], path: str) -> type[models.Model]:
    found: Any = model
    for part in path.split("__"):
        found = found._meta.get_field(part).related_model
    return found  # type: ignore[no-any-return]


def _may_lack(model: type[models.Model], path: str) -> bool:
    found: Any = model
    for part in path.split("__"):
        field = found._meta.get_field(part)
        if field.null:
            return True
        found = field.related_model
    return False


class VisibleQuerySet(models.QuerySet[M]):
    """Rows of a model with `PROJECT`, the path to the project that they belong to."""

    def seen_by(self, viewer: Viewer | None) -> Self:
        rule = condition(self.model, viewer)
        return self if rule is None else self.filter(rule)


class VisibleManager(models.Manager[M]):
    """Returns what the person who asks sees; give it the QuerySet of a model by `from_queryset`."""

    def get_queryset(self) -> Any:
        return super().get_queryset().seen_by(_current.get())  # type: ignore[attr-defined]


Visible = VisibleManager.from_queryset(VisibleQuerySet)
