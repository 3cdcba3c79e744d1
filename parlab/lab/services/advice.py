"""Advice that becomes a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from parlab.advice.advice import Advice
from parlab.lab.models import AdviceTrial, Config, Run

from .configs import config_save


def advice_config_save(*, run: Run, advice: Advice, data: Mapping[str, Any], user: User) -> Config:
    """Save the configuration of a run with one change as the next version. Raises ConfigError."""
    note = f"{advice.title} (advice for run {run.number}: {100 * advice.gain:.3g} % less time per step predicted)"
    return config_save(experiment=run.experiment, data=data, sweep={}, note=note[:300], user=user, as_next=True)


@transaction.atomic
def advice_trial_add(*, run: Run, changed_run: Run, advice: Advice, user: User) -> AdviceTrial:
    """Record the prediction, to be compared with the result of the changed run."""
    trial, _ = AdviceTrial.objects.get_or_create(
        run=run,
        changed_run=changed_run,
        defaults={
            "kind": advice.kind,
            "title": advice.title[:200],
            "changes": dict(advice.settings),
            "gain": advice.gain,
            "low": advice.low,
            "high": advice.high,
            "part": advice.part,
            "evidence": advice.evidence,
            "created_by": user,
        },
    )
    return trial
