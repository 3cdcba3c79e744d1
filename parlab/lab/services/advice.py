"""Advice that becomes a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def advice_sweep(run: Run, chosen: Sequence[Advice]) -> dict[str, list[Any]]:
    """Return the axis of a sweep whose points are the configuration of a run with one change each."""
    fields = list(dict.fromkeys(field for advice in chosen for field in advice.settings))
    sections = [field.partition(".")[::2] for field in fields]
    own = [(run.resolved.get(section) or {}).get(name) for section, name in sections]
    rows = [[advice.settings.get(field, value) for field, value in zip(fields, own, strict=True)] for advice in chosen]
    return {", ".join(fields): rows if len(fields) > 1 else [row[0] for row in rows]}


def advice_sweep_save(*, run: Run, chosen: Sequence[Advice], user: User) -> Config:
    """Save a sweep over several changes of a run as the next version. Raises ConfigError."""
    note = f"Advice for run {run.number}: {'; '.join(advice.title for advice in chosen)}"
    sweep = advice_sweep(run, chosen)
    return config_save(
        experiment=run.experiment, data=run.resolved, sweep=sweep, note=note[:300], user=user, as_next=True
    )


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
