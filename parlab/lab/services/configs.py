from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from parlab.lab.models import Config, Experiment
from runners.config import ConfigError, Point, Problem, complete, digest, expand, sweep_problems, sweep_value_problems

from . import storable

_PROBLEMS_SHOWN = 20


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
    based_on: Config | None = None,
    runnable: bool = True,
    as_next: bool = False,
) -> Config:
    """Save a configuration: in the latest version if no run uses it, otherwise (or with `as_next`) as the next one.

    `based_on` is the version that was edited; if another user has changed it since, both edits are kept as two
    versions. A note of None keeps the existing note. Raises ConfigError; see `config_check`.
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
    if latest is None or latest.is_used or as_next or _changed_since(latest, based_on):
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
    """Serialize saving and launching within an experiment until the end of the transaction."""
    Experiment.objects.select_for_update(no_key=True).get(pk=experiment.pk)


def _changed_since(latest: Config, based_on: Config | None) -> bool:
    return based_on is not None and (based_on.pk != latest.pk or based_on.digest != latest.digest)
