"""Try advice: launch a run with its changes, and record the predicted gains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from parlab.advice.advice import Advice
from parlab.lab.models import Run
from parlab.lab.selectors.analysis.advice import advice_change, run_advice
from parlab.lab.services.advice import advice_config_save, advice_sweep_save, advice_trial_add
from parlab.lab.services.configs import config_save
from runners.config import check, complete, with_values

from .services import launch


@transaction.atomic
def advice_launch(*, run: Run, titles: Iterable[str], user: User) -> list[Run]:
    """Launch a run with each change of these titles: a single configuration, or a small sweep.

    Raises ValueError with a remedy.
    """
    titles = list(dict.fromkeys(titles))
    if not titles:
        raise ValueError("no change selected; select at least one change")
    by_title = {row.title: row for row in run_advice(run).advice if row.settings}
    absent = next((title for title in titles if title not in by_title), None)
    if absent is not None or run.origin != Run.Origin.MEASURED:
        raise ValueError(
            f"{(absent or titles[0])[:80]!r} is no longer advised for run {run.number}; read its advice again"
        )
    return _launched(run, [by_title[title] for title in titles], user)


def _launched(run: Run, chosen: Sequence[Advice], user: User) -> list[Run]:
    if len(chosen) == 1:
        config = advice_config_save(run=run, advice=chosen[0], data=advice_change(run, chosen[0]), user=user)
    else:
        config = advice_sweep_save(run=run, chosen=chosen, user=user)
    launch(config=config, user=user)
    runs = list(config.runs.order_by("number"))
    for advice in chosen:
        changed = complete(advice_change(run, advice))
        changed_run = next((row for row in runs if complete(row.resolved) == changed), None)
        if changed_run is not None:
            advice_trial_add(run=run, changed_run=changed_run, advice=advice, user=user)
    return runs


def smaller_batch(run: Run) -> int | None:
    """Return half of the micro batch of a measured run; None if its engine cannot run that."""
    size = (run.resolved.get("train") or {}).get("micro_batch_size")
    if run.origin != Run.Origin.MEASURED or not isinstance(size, int) or size < 2:
        return None
    config, _ = check(_with_batch(run, size // 2))
    return size // 2 if config is not None else None


def _with_batch(run: Run, size: int) -> dict[str, Any]:
    return with_values(run.resolved, {"train.micro_batch_size": size})


@transaction.atomic
def batch_launch(*, run: Run, micro_batch_size: int, user: User) -> Run:
    """Launch the configuration of a run with another micro batch. Raises ValueError with a remedy."""
    note = f"Micro batch {micro_batch_size}, after run {run.number} ran out of memory"
    data = _with_batch(run, micro_batch_size)
    config = config_save(experiment=run.experiment, data=data, sweep={}, note=note, user=user, as_next=True)
    launch(config=config, user=user)
    return config.runs.get()
