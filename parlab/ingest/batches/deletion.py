"""Deleting an experiment with the output of its runs, without blocking others."""

from __future__ import annotations

from parlab.lab.models import Attempt, Experiment, Run
from parlab.lab.services import experiments as experiments_services
from parlab.lab.services.experiments import experiment_is_at_rest
from parlab.series import removal


def experiment_empty(*, experiment: Experiment) -> None:
    """Delete series and logs of an experiment that is about to be deleted; must not run in a transaction.

    Raises ValueError if one of its runs is active.
    """
    experiment_is_at_rest(experiment=experiment)
    runs = Run.everything.filter(experiment=experiment)
    removal.remove(list(Attempt.objects.filter(run__in=runs).values_list("pk", flat=True)))


def experiment_delete(*, experiment: Experiment) -> None:
    """Delete an experiment with everything in it; raises ValueError if one of its runs is active."""
    experiment_empty(experiment=experiment)
    experiments_services.experiment_delete(experiment=experiment)
