"""Where runs of W&B's clients belong: entity and project -> experiment, run ID -> run."""

from __future__ import annotations

from typing import TypeVar

from django.contrib.auth.models import User

from parlab.lab.models import Experiment, Project, WandbArtifact, WandbRun
from parlab.lab.models.access.viewer import current_viewer, viewer_of
from parlab.lab.services.access.rights import may_change, may_work, refusal
from parlab.lab.services.experiments import experiment_create

from .protocol import Call, Missing, WandbError

Thing = TypeVar("Thing", WandbRun, WandbArtifact)
UNNAMED = "uncategorized"
"""The project of a script that names none, as in W&B."""


def home_entity(user: User) -> str:
    """Return the entity of a sender: the project of the token; in the shared one the person, as with W&B."""
    viewer = current_viewer() or viewer_of(user)
    project = Project.objects.get(pk=viewer.home_id)
    return user.get_username() if project.is_shared else project.slug


def find_experiment(entity: str, project: str) -> Experiment | None:
    """Return the experiment that entity and project name.

    A token reaches one project, so there the entity only labels; for a person in a browser it is the project.
    """
    named, viewer = Experiment.objects.filter(name=project or UNNAMED), current_viewer()
    if viewer is None or viewer.project_id is not None:
        return named.first()
    return named.filter(project__slug=entity).first() or named.order_by("-project__is_shared", "pk").first()


def _require_own_project(entity: str, user: User) -> None:
    """Raise WandbError if an entity is another project of the user than that of the token: runs would go astray."""
    viewer = current_viewer()
    if not entity or viewer is None or viewer.project_id is None:
        return
    other = Project.objects.filter(slug=entity).exclude(pk=viewer.project_id).first()
    if other is not None and other.pk in viewer_of(user).roles:
        own = Project.objects.get(pk=viewer.project_id)
        raise WandbError(f"the token reaches project {own.slug}, not {entity}; create a token of {entity}", 403)


def experiment_of(entity: str, project: str, user: User, *, is_new: bool = False) -> Experiment:
    """Return the experiment that entity and project name; `is_new` creates it.

    Raises WandbError for one that is archived or does not exist.
    """
    if is_new:
        _require_own_project(entity, user)
    name = project or UNNAMED
    experiment = find_experiment(entity, project)
    if experiment is None and is_new:
        try:
            experiment = experiment_create(name=name, owner=user)
        except ValueError:
            experiment = Experiment.objects.get(name=name)  # another rank created it at the same moment
    if experiment is None:
        raise Missing("project", f"{entity or user.get_username()}/{name}")
    if is_new and not may_work(user, experiment):
        raise WandbError(refusal(user, experiment), 403)
    if is_new and experiment.archived_at is not None:
        raise WandbError(f"experiment {name!r} is archived; restore it or use another project", 409)
    return experiment


def own(call: Call, thing: Thing) -> Thing:
    """Return a run or an artifact that the sender may change. Raises WandbError."""
    if not may_change(call.user, thing):
        raise WandbError(refusal(call.user, thing), 403)
    return thing


def experiment_named(call: Call) -> Experiment:
    """Return the experiment that a request names. Raises WandbError."""
    entity, project = call.text("entity", "entityName"), call.text("project", "projectName")
    return experiment_of(entity, project, call.user)


def run_named(call: Call, *names: str) -> WandbRun:
    """Return the run that a request names, by its ID or, from clients that only have that, its name."""
    experiment = experiment_named(call)
    run_id = call.text(*(names or ("run", "name", "runName", "runId")))
    run = find_run(experiment, run_id)
    if run is None:
        raise Missing("run", run_id)
    return run


def find_run(experiment: Experiment, run_id: str) -> WandbRun | None:
    """Return the run with this ID in an experiment; None if there is none, or it is deleted."""
    rows = WandbRun.objects.select_related("tracked__run__experiment")
    return rows.filter(experiment=experiment, run_id=run_id, tracked__deleted_at=None).first()


def run_by_key(key: str) -> WandbRun:
    """Return a run by the ID that the server gave it. Raises WandbError."""
    rows = WandbRun.objects.select_related("tracked__run__experiment")
    run = rows.filter(tracked__uuid=key[:64], tracked__deleted_at=None).first()
    if run is None:
        raise Missing("run", key)
    return run
