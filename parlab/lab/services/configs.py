from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from parlab.lab.models import Config, Experiment
from parlab.lab.services.access.rights import guard
from runners.config import ConfigError, Point, Problem, complete, digest, expand, sweep_problems, sweep_value_problems

from . import storable

_PROBLEMS_SHOWN = 20


class Superseded(ValueError):
    """The version is not the one that was seen: somebody has saved another one meanwhile."""

    def __init__(self, latest: Config) -> None:
        self.latest = latest
        super().__init__(
            f"{latest.created_by} has saved v{latest.version} of {latest.experiment} since you opened it; look at it"
            f" first: its digest is now {latest.digest[:12]}"
        )


def config_check(
    *, data: Mapping[str, Any], sweep: Mapping[str, Any], runnable: bool = True
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Complete a configuration and its sweep with defaults; raises ConfigError with all problems.

    Each value of the sweep must be valid by itself, and at least one point. Published runs may have layouts that no
    engine supports: `runnable=False` checks each field, but not how the fields fit together.
    """
    if storable.json(sweep) != sweep:
        raise ConfigError([Problem("sweep", sweep, "a value of the sweep is not plain JSON; use numbers and strings")])
    data = complete(data)
    problems = sweep_problems(sweep) or sweep_value_problems(sweep)
    if problems:
        raise ConfigError(problems)
    if runnable:
        _refuse_all_invalid(expand(data, sweep))
    return data, {axis: list(values) for axis, values in sweep.items()}


def _refuse_all_invalid(points: list[Point]) -> None:
    if any(point.config for point in points):
        return
    by_message = {problem.message: problem for point in points for problem in point.problems}
    problems = list(by_message.values())[:_PROBLEMS_SHOWN]
    if len(points) > 1:
        problems.insert(0, Problem("sweep", len(points), f"none of the {len(points)} points can run: {problems[0]}"))
    raise ConfigError(problems)


@transaction.atomic
def config_save(
    *,
    experiment: Experiment,
    data: Mapping[str, Any],
    sweep: Mapping[str, Any],
    note: str | None = None,
    user: User,
    based_on: str | None = None,
    runnable: bool = True,
    as_next: bool = False,
) -> Config:
    """Save a configuration: in the latest version if no run uses it, otherwise (or with `as_next`) as the next one.

    `based_on` is the digest of the latest version as the editor saw it, empty if there was none; None does not ask. A
    note of None keeps the existing note. Raises Superseded if another version was saved since, and ConfigError; see
    `config_check`.
    """
    full_data, full_sweep = config_check(data=data, sweep=sweep, runnable=runnable)
    content_digest = digest({"data": full_data, "sweep": full_sweep})
    lock_experiment(experiment)
    latest = experiment.configs.order_by("-version").first()
    if latest is not None and latest.digest == content_digest:
        if note is not None and note != latest.note:
            latest.note = note
            latest.save(update_fields=["note"])
        return latest
    if based_on is not None and latest is not None and latest.digest != based_on:
        raise Superseded(latest)
    if latest is None or latest.is_used or as_next:
        return Config.objects.create(
            experiment=experiment,
            version=1 if latest is None else latest.version + 1,
            data=full_data,
            sweep=full_sweep,
            digest=content_digest,
            note=note or "",
            created_by=user,
        )
    latest.data, latest.sweep, latest.digest = full_data, full_sweep, content_digest
    latest.note = latest.note if note is None else note
    latest.save(update_fields=["data", "sweep", "digest", "note"])
    return latest


def config_copy(*, config: Config, experiment: Experiment, user: User) -> Config:
    """Copy a config as version 1 of another experiment, without validation: older configs may be invalid today."""
    return Config.objects.create(
        experiment=experiment,
        version=1,
        data=config.data,
        sweep=config.sweep,
        digest=config.digest,
        note=f"Copied from {config}"[:300],
        created_by=user,
    )


def lock_experiment(experiment: Experiment) -> None:
    """Serialize saving and launching within an experiment until the end of the transaction.

    Raises PermissionDenied for a person who only reads its project.
    """
    guard(experiment)
    Experiment.objects.select_for_update(no_key=True).get(pk=experiment.pk)
