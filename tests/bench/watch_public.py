"""Labelled series of others: the test suite that PyPI's otava-test-data generates for apache-otava.

Its labels are made with the series, of which each is a pattern or the sum of two, with noise of 0 to 10 % of the level.
parlab looks for changes of the level, so labels of single outliers, of the noise and of the phase of a sine are none.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.bench.watch_series import Simulated, Truth

REQUIREMENT = "otava-test-data==0.1.9"
SEEDS = range(1, 6)
LEVEL_LABELS = {"step", "regression_start", "regression_end"}
GROUPS = {
    "one step": ("step_function",),
    "a step and back": ("regression_fix",),
    "three steps": ("multiple_changes",),
    "sums of two patterns": ("combine",),
    "no change of the level": ("constant", "noise", "outlier", "banding", "variance_change"),
    "a sine of 10 %": ("phase_change",),
}
"""Group of series -> how the names of their generators begin."""
_GENERATE = """
import json, sys
from otava_test_data.generators.combiner import CombinationGenerator
rows = []
for seed in json.load(sys.stdin):
    for row in CombinationGenerator(seed=seed).generate_all_test_cases():
        labels = [[int(point.index), point.change_type] for point in row.change_points]
        rows.append([row.generator_name, [float(value) for value in row.data], labels])
print(json.dumps(rows))
"""


def public_series(python: str) -> dict[str, list[Simulated]]:
    """Return the series by group, generated in an environment that has the package."""
    seeds = json.dumps(list(SEEDS))
    answer = subprocess.run([python, "-c", _GENERATE], input=seeds, capture_output=True, text=True, check=True)
    return grouped(json.loads(answer.stdout))


def grouped(rows: Sequence[Any]) -> dict[str, list[Simulated]]:
    """Sort rows of name, values and labels into groups; series with values that are no measurement are left out."""
    groups: dict[str, list[Simulated]] = {name: [] for name in GROUPS}
    for name, numbers, labels in rows:
        values = np.array(numbers)
        truths = [Truth(at, at, float("nan")) for at, kind in labels if kind in LEVEL_LABELS]
        group = next(group for group, starts in GROUPS.items() if name.startswith(starts))
        if (values > 0).all():
            groups[group].append(Simulated(group, values, np.full(len(values), -1), truths))
    return groups
