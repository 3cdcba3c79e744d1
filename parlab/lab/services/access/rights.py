"""Who may change what: one rule for pages, API, MLflow's addresses, streams and commands.

In a project a viewer reads, an operator launches, edits, and changes and deletes their own, a maintainer also what
others own. Administrators are maintainers of all projects.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.core.exceptions import PermissionDenied
from django.db import models

from parlab.lab.models.access.project import Project, Role
from parlab.lab.models.access.viewer import Viewer, current_viewer, viewer_of

from .groups import OURS, WORK, WRITING

OWNERS = ("owner_id", "created_by_id", "author_id", "run.created_by_id", "tracked.run.created_by_id")
"""Where a row names its owner, the first that it has."""
_KEPT_FOR_ADMINISTRATORS = (
    "node",
    "nodekey",
    "device",
    "project",
    "membership",
    "projectpool",
    "apitoken",
    "serviceaccount",
)


def viewer_for(user: Any) -> Viewer:
    """Return the viewer of the request if the user sends it: with the project of its token, and read once."""
    viewer = current_viewer()
    return viewer if viewer is not None and viewer.user == user else viewer_of(user)


def project_of(thing: models.Model) -> int:
    """Return the id of the project that a row belongs to, along the path of its model."""
    path: str = thing.PROJECT  # type: ignore[attr-defined]
    value: Any = thing
    for name in f"{path}_id".split("__"):
        value = getattr(value, name)
    return int(value)


def owner_of(thing: models.Model) -> int | None:
    """Return the id of the user who owns a row; None if nobody does."""
    for path in OWNERS:
        value: Any = thing
        for name in path.split("."):
            value = getattr(value, name, None)
        if value is not None:
            return int(value)
    return None


def may_work(user: Any, thing: models.Model) -> bool:
    """Return whether a user may add to a row and edit what the members share, such as an experiment's notes."""
    return viewer_for(user).has_role(Role.OPERATOR, project_of(thing))


def may_change(user: Any, thing: models.Model) -> bool:
    """Return whether a user may change or delete a row: an operator their own, a maintainer any."""
    viewer, project = viewer_for(user), project_of(thing)
    if viewer.has_role(Role.MAINTAINER, project):
        return True
    return viewer.has_role(Role.OPERATOR, project) and owner_of(thing) == user.pk


def may_manage(user: Any, project: Project) -> bool:
    """Return whether a user may change a project and its members."""
    return viewer_for(user).has_role(Role.MAINTAINER, project.pk)


def refusal(user: Any, thing: models.Model) -> str:
    """Return why a user may not change a row, and who may."""
    role = viewer_for(user).roles.get(project_of(thing), Role.VIEWER)
    if role == Role.VIEWER:
        return "You only read this project; ask one of its maintainers for the role operator."
    return f"{thing} belongs to another person; ask its owner or a maintainer of the project."


def require_change(user: Any, *things: models.Model) -> None:
    """Raise PermissionDenied for the first row that a user may not change."""
    for thing in things:
        if not may_change(user, thing):
            raise PermissionDenied(refusal(user, thing))


def require_work(user: Any, *things: models.Model) -> None:
    """Raise PermissionDenied for the first row of a project that a user only reads."""
    for thing in things:
        if not may_work(user, thing):
            raise PermissionDenied(refusal(user, thing))


def guard(thing: models.Model) -> None:
    """Raise PermissionDenied if the person who asks only reads the project of a row; tasks act for the server."""
    viewer = current_viewer()
    if viewer is not None and not viewer.has_role(Role.OPERATOR, project_of(thing)):
        raise PermissionDenied(refusal(viewer.user, thing))


def guard_change(thing: models.Model) -> None:
    """Raise PermissionDenied if the person who asks may not change a row; tasks act for the server."""
    viewer = current_viewer()
    if viewer is not None:
        require_change(viewer.user, thing)


class ProjectRoles(ModelBackend):
    """Permissions by the role in the project that a request is about: a role gives them, and a viewer has none.

    All other permissions come from the groups of the account, by Django's own backend.
    """

    def authenticate(self, *_args: Any, **_kwargs: Any) -> None:
        """Leave logins to Django's own backend."""

    def has_perm(self, user_obj: Any, perm: str, obj: Any = None) -> bool:
        viewer = current_viewer()
        if viewer is None or not user_obj.is_authenticated or viewer.user != user_obj:
            return False
        app, _, codename = perm.partition(".")
        verb, _, model = codename.partition("_")
        if app not in OURS or verb == "view" or model in _KEPT_FOR_ADMINISTRATORS or viewer.sees_all:
            return False
        project = viewer.subject_id
        if not viewer.has_role(Role.OPERATOR, project):
            raise PermissionDenied
        return project in viewer.memberships and _gives(viewer.roles[project], verb, model)


def _gives(role: Role, verb: str, model: str) -> bool:
    if role == Role.MAINTAINER:
        return True
    return model in WORK or (verb == "add" and model in WRITING)
