"""Errors of simulated schedules on the published 3-node case, predicted from its default network only."""

from functools import partial
from statistics import fmean

from tests.bench.result import Result, Scale, median_s
from tests.planner.three_nodes import MEASURED_S, MICRO_BATCH_SIZES, NETWORKS, errors


def _error_pct(schedule: str, scale: Scale) -> Result:
    """Measure the mean error over the nine cells of the slower networks, against a formula without a schedule.

    The formula adds the longer fill and drain, 2(p - 1) hops, to the time on the default network.
    """
    simulated = errors(schedule)
    default, *slower = MEASURED_S[schedule]
    formula = []
    for link, row in zip(NETWORKS[1:], slower, strict=True):
        for size, near, measured in zip(MICRO_BATCH_SIZES, default, row, strict=True):
            message = size * 2048 * 768 * 4
            longer = 4 * (link.hop_s(message) - NETWORKS[0].hop_s(message))
            formula.append(abs((near + longer) / measured - 1))
    repeats = scale.repeats(3)
    took = median_s(lambda: errors(schedule), repeats)
    against = f"fill and drain: {100 * fmean(formula):.1f} %; at most {100 * max(simulated):.1f} %, {1e3 * took:.0f} ms"
    return Result(100 * fmean(simulated), "%", against, fmean(formula) / fmean(simulated), repeats)


gpipe_error_pct = partial(_error_pct, "gpipe")
one_f_one_b_error_pct = partial(_error_pct, "1f1b")
