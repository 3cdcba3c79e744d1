"""The loss after a reload: at steps that an earlier attempt has made too, it should be the same again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlab.ingest.summaries.loss import MAD_TO_SIGMA, Series
from parlab.lab.models import Attempt
from parlab.series import store

MAX_EARLIER = 20
"""Earlier attempts whose losses are compared: the latest ones."""
COMPARED = 20
"""Repeated steps that are compared, the first ones; later ones differ by what the reload has changed since."""
AROUND = 64
"""Values of the earlier attempt whose noise is measured."""
OF_LEVEL = 0.01
"""Share of the loss below which a difference is no jump: sums are rounded in another order in another layout."""
SIGMAS = 4.0


def reload_of(attempt: Attempt) -> dict[str, Any]:
    """Return how the loss of a run compares at steps that two of its attempts have made; empty without such steps.

    Of several reloads it is the one with the largest difference.
    """
    if attempt.number == 1:
        return {}
    earlier = list(
        Attempt.objects.filter(run_id=attempt.run_id, number__lt=attempt.number).order_by("-number")[:MAX_EARLIER]
    )
    own = _own_reload(attempt, [(row.pk, row.number) for row in earlier])
    found = [own, *(row.summary.get("reload") for row in earlier[:1])]
    largest = max((row for row in found if row), key=_excess, default=None)
    return {} if largest is None else {"reload": largest}


def _own_reload(attempt: Attempt, earlier: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Compare with the latest attempt that has made one of the steps: it had gone on from what the others had left."""
    curves: dict[int, tuple[int, Series]] = {}
    for (pk, _, rank), columns in store.read_many([attempt.pk, *(pk for pk, _ in earlier)], ["loss"]).items():
        if rank >= 0 and len(columns) and (pk not in curves or rank < curves[pk][0]):
            curves[pk] = rank, _last_values(columns.steps, columns.values)
    for pk, number in earlier if attempt.pk in curves else ():
        if pk in curves and (found := compared(curves[pk][1], curves[attempt.pk][1])):
            return {"attempts": [number, attempt.number], **found}
    return {}


def _excess(reload: Mapping[str, Any]) -> float:
    return abs(float(reload["difference"])) / max(float(reload["limit"]), 1e-12)


def compared(before: Series, after: Series) -> dict[str, Any]:
    """Compare two curves at the steps of both, the first COMPARED; empty without such steps, or for a new start.

    `difference` is the median of after - before. It is a jump if it exceeds `limit`, the larger of OF_LEVEL of the loss
    and of SIGMAS standard errors of the difference of two values with the noise of the earlier curve. Without a change
    of the order of the data both curves have the same batches, so that the noise is far larger than what is due.
    """
    before, after = before.finite, after.finite
    if not len(before.steps) or not len(after.steps) or after.steps[0] <= before.steps[0]:
        return {}
    steps, at_before, at_after = np.intersect1d(before.steps, after.steps, return_indices=True)
    if not len(steps):
        return {}
    steps, at_before, at_after = steps[:COMPARED], at_before[:COMPARED], at_after[:COMPARED]
    first, second = before.values[at_before], after.values[at_after]
    level = abs(float(np.median(first)))
    sigma = _noise(before.values[max(0, int(at_before[0]) - AROUND) : int(at_before[-1]) + 1])
    return {
        "step": int(steps[0]),
        "steps": len(steps),
        "before": float(first[0]),
        "after": float(second[0]),
        "difference": float(np.median(second - first)),
        "limit": max(OF_LEVEL * level, SIGMAS * sigma * float(np.sqrt(2 / len(steps)))),
    }


def _noise(values: NDArray[np.float64]) -> float:
    """Return the standard deviation of single values around their trend, from the changes between neighbours."""
    if len(values) < 3:
        return 0.0
    changes = np.diff(values)
    return float(MAD_TO_SIGMA * np.median(np.abs(changes - np.median(changes))) / np.sqrt(2))


def _last_values(steps: NDArray[np.int64], values: NDArray[np.float64]) -> Series:
    """Return a curve with each step once, in order."""
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    is_last = np.append(steps[1:] != steps[:-1], True)
    return Series(steps[is_last], values[is_last])
