"""Whether what tried advice saved is more than noise: one rule for answers, Home and the page of a run."""

from __future__ import annotations

from parlab.lab.models import AdviceTrial, Run
from parlab.lab.selectors.analysis.identities import identities
from runners.wire.protocol import RunState

from .standings import Standings, noise_text, standings


def trial_noise(trial: AdviceTrial, ranked: Standings) -> str:
    """Return `within noise ±22 %` where the change may be chance, else an empty string."""
    rows = {row.run.pk: row for row in ranked.rows}
    before, after = rows.get(trial.run_id), rows.get(trial.changed_run_id)
    limit = ranked.noise_of(after, before) if before and after else None
    return noise_text(limit) if limit is not None and abs(trial.realised or 0.0) < limit else ""


def standings_around(run: Run) -> Standings:
    """Rank the finished runs of a run's experiment."""
    runs = list(Run.objects.filter(experiment=run.experiment_id, state=RunState.FINISHED).order_by("number"))
    return standings(runs, identities(runs))
