"""Repeats of a run: which runs have the same settings."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from parlab.lab.models import Run
from parlab.lab.selectors.records import run_settings
from runners.config import digest

_SEEDS = ("seed", "random_seed")


def repeat_key(run: Run) -> Hashable:
    """Return what a run shares with its repeats.

    For a measured run that is its version and point; for a run that a script reports, all settings but the seed. The
    rows of a document are never repeats: it may not state what differs between them.
    """
    if run.origin == Run.Origin.MEASURED:
        return run.config_id, digest(run.point)
    if run.origin == Run.Origin.REPORTED:
        settings = {
            name: value for name, value in run_settings(run).items() if name.rpartition(".")[2].lower() not in _SEEDS
        }
        if any(value is not None for value in settings.values()):
            return run.experiment_id, digest(settings)
    return run.pk


def repeat_groups(runs: Iterable[Run]) -> list[list[Run]]:
    """Group runs with their repeats, in the order of the first ones."""
    groups: dict[Hashable, list[Run]] = {}
    for run in runs:
        groups.setdefault(repeat_key(run), []).append(run)
    return list(groups.values())


def has_repeats(groups: Sequence[Sequence[Run]]) -> bool:
    return any(len(group) > 1 for group in groups)


def with_repeats(runs: Sequence[Run]) -> list[Run]:
    """Return these runs and all other repeats of their points."""
    configs = {run.config_id for run in runs if run.origin == Run.Origin.MEASURED}
    asking = Run.objects.filter(config__in=configs, repeat__gt=1).order_by().values("config_id")
    keys = {repeat_key(run) for run in runs}
    others = Run.objects.filter(config__in=asking).exclude(pk__in=[run.pk for run in runs]).defer("launch")
    return [*runs, *(run for run in others if repeat_key(run) in keys)]
