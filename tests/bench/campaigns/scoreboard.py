"""Errors of parlab's predictions beside those of Calculon and vTrain: a table of docs/understand/planner.md."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean, median
from typing import NamedTuple

from parlab.planner.calibration.calibration import Calibration
from parlab.planner.publications.published import Calibrations, predict_row
from parlab.planner.publications.rows import Row

from . import calculon

TITLES = {
    "sc21_t1": "SC21 table 1, A100",
    "sc21_t2": "SC21 table 2, A100",
    "korthikanti_t5": "Korthikanti et al. table 5, A100",
    "mtnlg": "MT-NLG 530B, A100",
    "bloom_prequel": "BigScience before BLOOM, A100",
    "zero_bubble_t4": "Zero bubble tables 3 to 5, A100",
    "seed002": "Megatron BERT 345M, A100",
    "vtrain_multi": "vTrain, many nodes, A100",
}
OWN_TABLE = "korthikanti_t5"
"""Group on which Calculon's authors validated it."""


class Score(NamedTuple):
    """Absolute relative errors (%) of the rows of a publication."""

    parlab: list[float]
    calibrated: list[float]
    calculon: list[float]
    scaled: list[float]
    """Calculon's times divided by their median bias on its own validation table."""


def tables(groups: dict[str, list[Row]], held_out: dict[str, Calibration], single: Iterable[Row], parts: int) -> str:
    """Return both comparisons as Markdown."""
    rows = {name: [row for row in members if calculon.can_express(row)] for name, members in groups.items()}
    own = [calculon.iteration_s(row.job) / _measured(row) for row in rows[OWN_TABLE]]
    calibrated = _calibrated(groups, parts)
    scores = {
        name: _score(members, held_out[name], calibrated, median(own)) for name, members in rows.items() if members
    }
    total = Score(*([error for score in scores.values() for error in score[index]] for index in range(4)))
    lines = [_line(TITLES.get(name, name), score) for name, score in scores.items()]
    one_node = [
        100 * abs(predict_row(row, held_out["vtrain_multi"]).iteration_s / _measured(row) - 1) for row in single
    ]
    return _TABLES.format(
        lines="\n".join([*lines, _line("**all**", total)]),
        bias=100 * abs(median(own) - 1),
        many=mean(scores["vtrain_multi"].parlab),
        one=mean(one_node),
        one_rows=len(one_node),
    )


def _measured(row: Row) -> float:
    return row.measured.iteration_s or float("nan")


def _calibrated(groups: dict[str, list[Row]], parts: int) -> dict[int, float]:
    """Return the error of each row after a calibration on other rows, by the identity of the row."""
    errors: dict[int, float] = {}
    for part in range(parts):
        others = [row for rows in groups.values() for index, row in enumerate(rows) if index % parts != part]
        calibrations = Calibrations(others)
        for row in (row for rows in groups.values() for row in rows[part::parts]):
            errors[id(row)] = predict_row(*calibrations.of(row)).iteration_s / _measured(row) - 1
    return errors


def _score(rows: list[Row], constants: Calibration, calibrated: dict[int, float], scale: float) -> Score:
    other = [calculon.iteration_s(row.job) / _measured(row) for row in rows]
    return Score(
        [100 * abs(predict_row(row, constants).iteration_s / _measured(row) - 1) for row in rows],
        [100 * abs(calibrated[id(row)]) for row in rows],
        [100 * abs(ratio - 1) for ratio in other],
        [100 * abs(ratio / scale - 1) for ratio in other],
    )


def _line(title: str, score: Score) -> str:
    medians = " | ".join(f"{median(errors):.1f}" for errors in score)
    return f"| {title} | {len(score.parlab)} | {medians} |"


_TABLES = """### Calculon

[Calculon](https://doi.org/10.1145/3581784.3607102) (Isaev et al. 2023) counts the operations of transformer blocks;
its authors validate it on the table of Korthikanti et al. It is not a Python package, so
`tests/bench/campaigns/calculon.py` rebuilds its time model from the paper and its description of an A100. The
rebuilt model is {bias:.0f} % too fast on that table, since it leaves out what the authors' program counts in
addition; the last column divides its times by this bias.

Rows that Calculon can express: dense GPTs in 16 bits on A100s with unfused attention, 1F1B or interleaved 1F1B,
without ZeRO-3. Medians of |predicted/measured - 1| in %; *parlab*: constants fitted to other publications;
*calibrated*: on other rows of the same publication.

| publication | rows | parlab | parlab, calibrated | Calculon, rebuilt | Calculon, rebuilt and scaled |
|---|--:|--:|--:|--:|--:|
{lines}

### vTrain

[vTrain](https://arxiv.org/abs/2312.12391) (Bang et al. 2024) measures each kernel on the GPU and simulates an
iteration. Its authors report mean errors on their own measurements; parlab predicts the same rows with constants
fitted to other publications, without a measured kernel.

| measurements | rows of parlab | vTrain, mean error (%) | parlab, mean error (%) |
|---|--:|--:|--:|
| many nodes, up to 512 A100 | 73 | 14.73 | {many:.2f} |
| one node | {one_rows} | 8.37 | {one:.2f} |
"""
