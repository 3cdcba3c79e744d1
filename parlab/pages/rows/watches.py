"""The waterfalls of the two results of an alert, compared."""

from __future__ import annotations

from dataclasses import replace

from parlab.advice.waterfalls.waterfall import Waterfall
from parlab.lab.models import Attempt
from parlab.lab.selectors.analysis.waterfalls import run_waterfalls
from parlab.watch.models import Alert, Result

from .waterfalls import ChangeTable, change_table


def waterfall_changes(alert: Alert) -> ChangeTable | None:
    """Return where the time of a step changed between last good and first bad; None if one has no waterfall."""
    good, bad = _waterfall(alert.last_good, "last good"), _waterfall(alert.first_bad, "first bad")
    return change_table(good, bad) if good is not None and bad is not None else None


def _waterfall(result: Result, title: str) -> Waterfall | None:
    run = result.run
    if run is None:
        return None
    if result.attempt_number not in (None, run.attempt_number):
        # The run was repeated since: its own summary is that of a later attempt.
        summaries = Attempt.objects.filter(run=run, number=result.attempt_number).values_list("summary", flat=True)
        run.summary = summaries.first() or {}
    measured = run_waterfalls(run, with_prediction=False).measured
    return replace(measured, title=title) if measured is not None else None
