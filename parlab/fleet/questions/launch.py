"""Ask a question: create its experiment and launch it."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction

from parlab.fleet import services as fleet
from parlab.lab.models import Experiment
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.runs import Launch

from .form import Question


@transaction.atomic
def question_launch(*, form: Question, user: User) -> tuple[Experiment, Launch]:
    """Create the experiment of a valid form and launch it. Raises ValueError with a remedy."""
    experiment = _experiment(form, user)
    config = config_save(
        experiment=experiment, data=form.data_of_config(), sweep=form.sweep(), note=form.heading, user=user
    )
    return experiment, fleet.launch(config=config, user=user)


def _experiment(form: Question, user: User) -> Experiment:
    """Create the experiment; its name gets a number if the title is taken."""
    title = form.title()[:100]
    taken = set(Experiment.objects.filter(name__startswith=title).values_list("name", flat=True))
    names = (title if count == 1 else f"{title} ({count})" for count in range(1, len(taken) + 2))
    name = next(name for name in names if name not in taken)
    return experiment_create(name=name, question=form.heading, owner=user)
