"""Repeats: several runs of a point, their mean and spread, and differences that their noise explains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.charts.sweeps import throughput
from parlab.findings.noise import noise
from parlab.lab.models import Config, Run
from parlab.lab.selectors.analysis.sweep import run_points
from parlab.lab.selectors.comparison.results import compare
from parlab.lab.selectors.experiments import experiment_runs, experiment_versions, launch_plan
from parlab.lab.selectors.records import run_records
from parlab.lab.services.configs import config_save
from parlab.lab.services.runs import config_launch, run_relaunch
from parlab.pages.rows.sweep import sweep_tables
from parlab.publishing.answers.experiment_answer import answer_of, case_of
from parlab.reports.pivot import pivot, with_best
from runners.config import ConfigError, expand, repeated
from tests.pages.conftest import finish

pytestmark = pytest.mark.django_db

SWEEP: dict[str, list[Any]] = {"parallel.schedule": ["gpipe", "1f1b"], "train.micro_batch_size": [1, 2]}
# Samples/s are 4 / seconds. The two best points differ by 1 %, repeats by about 2 %, the others by much more.
TIMES = {("gpipe", 1): 1.0, ("gpipe", 2): 0.505, ("1f1b", 1): 0.9, ("1f1b", 2): 0.5}
FACTORS = (0.98, 1.0, 1.02)


@pytest.fixture
def repeats(make_config: Callable[..., Config], user: User) -> list[Run]:
    """Twelve finished runs: four points, three repeats."""
    config = make_config(sweep=SWEEP)
    config = config_save(
        experiment=config.experiment, data={**config.data, "launcher": {"repeats": 3}}, sweep=SWEEP, user=user
    )
    runs = config_launch(config=config, user=user).created
    for run in runs:
        seconds = TIMES[run.point["parallel.schedule"], run.point["train.micro_batch_size"]]
        finish(run.current_attempt(), seconds * FACTORS[run.repeat - 1])
    return list(Run.objects.select_related("experiment", "config").order_by("number"))


def test_each_repeat_is_a_run_with_the_next_seed(repeats: list[Run]) -> None:
    assert len(repeats) == 12
    assert [run.repeat for run in repeats] == [1] * 4 + [2] * 4 + [3] * 4
    seed = repeats[0].resolved["train"]["seed"]
    assert [run.resolved["train"]["seed"] for run in repeats[::4]] == [seed, seed + 1, seed + 2]
    assert {run.resolved["launcher"]["repeats"] for run in repeats} == {1}
    assert repeats[4].label.endswith(", repeat 2")


@pytest.mark.database
def test_a_second_launch_starts_only_missing_repeats_and_a_study_one_run(repeats: list[Run], user: User) -> None:
    config = repeats[0].config
    repeats[5].delete()
    versions = experiment_versions(config.experiment, "")
    plan = launch_plan(config, experiment_runs(config.experiment, versions))
    assert (plan.to_start, plan.repeats) == (1, 3)
    again = config_launch(config=config, user=user)
    assert [(run.repeat, run.point) for run in again.created] == [(2, repeats[5].point)]
    Run.objects.filter(config=config).delete()
    point = config.points()[0]
    assert len(config_launch(config=config, user=user, only={point.digest}).created) == 1


def test_a_relaunched_repeat_stays_itself(repeats: list[Run], user: User) -> None:
    run_relaunch(run=repeats[5], user=user)
    again = Run.objects.get(pk=repeats[5].pk)
    assert (again.attempt_number, again.repeat, again.resolved) == (2, 2, repeats[5].resolved)


def test_repeats_are_no_axis_and_limited() -> None:
    with pytest.raises(ConfigError, match=r"launcher\.repeats cannot vary"):
        expand({}, {"launcher.repeats": [1, 2]})
    with pytest.raises(ConfigError, match="use 40 at most"):
        expand({"launcher": {"repeats": 41}}, {"train.seed": list(range(50))})
    seeds = repeated(expand({"launcher": {"repeats": 2}}, {"train.seed": [5, 6]}))
    assert [point.config.train.seed for point in seeds if point.config] == [5, 6, 5, 6]


@pytest.mark.database
def test_the_table_of_a_sweep_shows_means_and_marks_what_noise_explains(repeats: list[Run]) -> None:
    sweep = sweep_tables(repeats, [], "step_time")
    (table,) = sweep.tables
    cells = {name: [cell.text for cell in row] for name, row in table.rows}
    assert cells["gpipe"][0].startswith("1")
    assert "±" in cells["gpipe"][0]
    columns = {table.columns[n]: [row[n] for _, row in table.rows] for n in range(2)}
    assert "mean of 3 repeats (#1, #5, #9)" in columns["1"][0].note
    assert "noise of the repeats (2" in sweep.caption
    by_size = sweep_tables([run for run in repeats if run.point["train.micro_batch_size"] == 2], [], "step_time")
    assert by_size.tables == []


def test_figures_pool_repeats_and_say_what_is_noise(repeats: list[Run]) -> None:
    points = run_points(repeats)
    assert [len(point.repeats) for point in points] == [3, 3, 3, 3]
    drawing = throughput.figure(points)
    assert drawing.figure is not None
    bars = [bar for trace in drawing.figure.data for bar in trace.error_y.array or ()]
    assert len(bars) == 4
    assert all(bar > 0 for bar in bars)
    assert "Its lead over run 2 is smaller than the noise of the repeats." in drawing.caption
    assert len(drawing.table.rows) == 12


def test_the_lead_compares_means_and_lists_agree(repeats: list[Run]) -> None:
    answer = answer_of(case_of(repeats[0].experiment, repeats))
    assert answer.best is not None
    assert answer.best.number == 4
    assert "(mean of 3 repeats)" in answer.verdict
    assert answer.noise


def test_a_comparison_marks_differences_smaller_than_noise(repeats: list[Run]) -> None:
    best, close, slow = repeats[3], repeats[1], repeats[0]
    single = compare([best, close, slow])
    cells = next(result for result in single.results if result.name == "step_time").cells
    assert [cell.is_noise for cell in cells] == [False, True, False]
    pooled = compare(repeats, is_pooled=True)
    assert [len(group) for group in pooled.groups] == [3, 3, 3, 3]
    assert "±" in pooled.results[0].cells[0].text
    assert all(difference.field != "train.seed" for difference in pooled.differences)


def test_a_report_gives_the_deviation_and_marks_close_values(repeats: list[Run]) -> None:
    records = run_records(repeats)
    table = with_best(pivot(records, ["train.micro_batch_size"], ["parallel.schedule"], "step_time_s"))
    close, best = table.cells[1]
    assert best.is_best
    assert "±" in best.text
    assert "repeats" in best.note
    assert close.text.startswith("≈")
    assert not table.cells[0][0].text.startswith("≈")


def test_pages_show_repeats(page: Client, repeats: list[Run]) -> None:
    address = repeats[0].experiment.get_absolute_url()
    content = page.get(address).content.decode()
    assert "mean of 3 repeats" in content
    assert "within noise" in content
    assert "repeat 2" in page.get(f"{address}table/").content.decode()
    ids = ",".join(str(run.pk) for run in reversed(repeats))
    compared = page.get(f"/compare/?runs={ids}&repeats=pooled").content.decode()
    assert compared.count("mean of 3</span>") == 4
    assert "≈" in compared


def test_noise_pools_the_variance_of_groups() -> None:
    assert noise([[1.0], [2.0]]) is None
    pooled = noise([[0.9, 1.1], [2.0, 2.0], [5.0]])
    assert pooled is not None
    assert pooled.deviation == pytest.approx(0.1)
    assert pooled.freedom == 2
    assert pooled.limit(2, 2) == pytest.approx(4.303 * 0.1)
