"""Runs of any experiments beside each other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.charts import theme
from parlab.lab.models import Attempt, Config, Run
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.published import published_run_add
from parlab.lab.services.runs import config_launch
from parlab.series import store
from parlab.series.columns import Columns

from .conftest import finish
from .test_experiments import text

pytestmark = pytest.mark.django_db

EVIL = "<script>alert(1)</script>"


def address(*runs: Run, more: str = "") -> str:
    return f"/compare/?runs={','.join(str(run.pk) for run in runs)}{more}"


def rows(response: Any, table: int) -> dict[str, list[str]]:
    """Read a table: heading of a row -> its cells."""
    table_html = re.findall(r'<table class="list beside">.*?</table>', response.content.decode(), re.S)[table]
    lines = re.findall(r"<tr>(.*?)</tr>", table_html.split("<tbody>")[1], re.S)
    cells = [
        [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in re.findall(r"<t[hd].*?</t[hd]>", line, re.S)]
        for line in lines
    ]
    return {line[0]: line[1:] for line in cells}


def series(*values: float) -> Columns:
    steps = np.arange(1, len(values) + 1)
    return Columns(steps, 1.76e9 + steps.astype(np.float64), np.array(values))


def test_without_a_choice_the_page_says_how_to_make_one(page: Client, four_runs: list[Run]) -> None:
    for url in ("/compare/", address(four_runs[0]), "/compare/?runs=x,-1,99999999999999999999999"):
        assert "select 2 to 100 runs" in text(page.get(url))


def test_what_a_form_sends_becomes_a_short_address(page: Client, four_runs: list[Run]) -> None:
    first, second = four_runs[:2]
    response = page.get(f"/compare/?run={second.pk}&run={first.pk}&run={second.pk}")
    assert response.headers["Location"] == f"/compare/?runs={second.pk},{first.pk}"


def test_chosen_experiments_are_compared_by_their_fastest_runs(
    page: Client, viewer: Client, four_runs: list[Run], user: User
) -> None:
    other = experiment_create(name="Other", owner=user)
    config = config_save(experiment=other, data=four_runs[0].config.data, sweep={}, user=user)
    (run,) = config_launch(config=config, user=user).created
    Run.objects.filter(pk=run.pk).update(state="finished", step_time_s=1.0, samples_per_s=8.0)
    best = min(four_runs, key=lambda one: one.ms_per_sample or one.step_time_s or 0.0)
    chosen = f"/compare/?experiment={other.pk}&experiment={best.experiment_id}&experiment=x"
    assert page.get(chosen).headers["Location"] == f"/compare/?runs={run.pk},{best.pk}"
    listed = viewer.get("/experiments/").content.decode()
    assert f'name="experiment" value="{other.pk}"' in listed
    assert 'formaction="/compare/"' in listed
    assert 'value="archive"' not in listed


def test_a_click_on_a_letter_makes_its_run_the_baseline(page: Client, four_runs: list[Run]) -> None:
    markup = page.get(address(*four_runs[:3])).content.decode()
    letters = re.findall(r'<b class="letter place-\d"><a href="([^"]+)"[^>]*>(\w)</a>', markup)
    first, second, third = (run.pk for run in four_runs[:3])
    assert letters == [(f"?runs={second},{first},{third}", "B"), (f"?runs={third},{first},{second}", "C")]


def test_charts_come_first_then_differences_then_numbers(page: Client, four_runs: list[Run]) -> None:
    response = page.get(address(*four_runs))
    assert rows(response, 0) == {
        "Schedule": ["gpipe", "gpipe", "1f1b", "1f1b"],
        "Micro batch size": ["1", "2", "1", "2"],
        "Gradient accumulation steps": ["4", "2", "4", "2"],
    }
    content = response.content.decode()
    assert content.index('id="figures"') < content.index('id="differences"') < content.index('id="results"')
    assert "identical fields" in text(response)


def test_a_field_that_repeats_another_is_left_out(page: Client, four_runs: list[Run]) -> None:
    for run, size in zip(four_runs[:2], ("1", "16"), strict=True):
        run.launch = {**run.launch, "arguments": {"global_batch_size": 4, "micro_batch_size": size}}
        run.point = {**run.point, "GPUs": int(run.gpus or 0)}
        run.save(update_fields=["launch", "point"])
    response = page.get(address(*four_runs[:2]))
    # The second micro batch size contradicts its argument.
    assert rows(response, 0)["Micro batch size (argument)"] == ["1", "16"]
    shown = [name for name, _ in response.context["comparison"].same]
    assert "argument.global_batch_size" not in shown
    assert "GPUs" not in shown
    assert {"gpus", "train.global_batch_size"} <= set(shown)


def test_results_are_measured_against_the_first_run(page: Client, four_runs: list[Run]) -> None:
    response = page.get(address(*four_runs[:3]))
    cells = rows(response, 1)
    assert cells["Throughput (samples/s)"] == ["8.00", "10.00 +25.0 %", "20.00 +150 %"]
    assert cells["Step time (ms)"] == ["500", "400 \N{MINUS SIGN}20.0 %", "200 \N{MINUS SIGN}60.0 %"]
    assert re.findall(r"<b>(.*?)</b>", response.content.decode().split('aria-label="Numbers"')[1])[:3] == [
        "20.00",
        "320",
        "200",
    ]


def test_runs_of_several_experiments_and_without_numbers_stand_beside_each_other(
    page: Client, four_runs: list[Run], user: User, swept: Config, make_attempt: Callable[..., Attempt]
) -> None:
    lost = finish(make_attempt(config=swept, point={"train.micro_batch_size": 8}), state="oom", reason=EVIL)
    other = experiment_create(name=EVIL, owner=user)
    config = config_save(experiment=other, data=swept.data, sweep={}, user=user)
    published = published_run_add(
        config=config, point={"net <i>": "fast"}, user=user, summary={"step_time_s": {"mean": 6.64}}
    )
    response = page.get(address(four_runs[0], lost, published))
    cells = rows(response, 1)
    assert cells["Step time (s)"][1] == "OOM"
    assert cells["Throughput (samples/s)"][2] == "\N{EN DASH}"
    assert "Net &lt;i&gt;" in rows(response, 0)
    assert EVIL not in response.content.decode()


def test_a_link_to_deleted_or_too_many_runs_reports_it(page: Client, four_runs: list[Run]) -> None:
    gone = address(*four_runs[:2]) + ",999999"
    assert "1 run of this link no longer exists." in text(page.get(gone))
    many = ",".join(str(number) for number in range(1, 111))
    assert "Only the first 100 runs are compared; 10 more are omitted." in text(page.get(f"/compare/?runs={many}"))


def test_curves_lie_over_each_other_by_the_slowest_rank(page: Client, four_runs: list[Run]) -> None:
    first, second = (run.current_attempt() for run in four_runs[:2])
    store.append(first.pk, {("step_time_s", 0): series(0.1, 0.2), ("step_time_s", 1): series(0.3, 0.4)})
    store.append(second.pk, {("step_time_s", 0): series(0.5, 0.6)})
    url = address(*four_runs[:3]).replace("/compare/", "/compare/figures/curves.json")
    drawn = json.loads(page.get(url).content)
    assert [trace["name"] for trace in drawn["figure"]["data"]] == ["gpipe · mb 1", "gpipe · mb 2"]
    assert drawn["figure"]["data"][0]["y"] == pytest.approx([300, 400])
    assert drawn["caption"] == "1 of 3 runs does not have this series."
    timed = json.loads(page.get(f"{url}&over=time").content)
    assert timed["figure"]["data"][0]["x"] == [0, 1]
    by_tokens = json.loads(page.get(f"{url}&over=tokens&y_scale=log").content)["figure"]
    assert by_tokens["data"][0]["x"] == [step * 4 * 16 for step in drawn["figure"]["data"][0]["x"]]
    assert by_tokens["layout"]["yaxis"]["type"] == "log"
    assert "none of these runs has this series" in json.loads(page.get(f"{url}&curve=loss").content)["empty"]
    numbers = page.get(url.replace(".json", ".csv")).content.decode().splitlines()
    assert numbers[0] == "run,step,unix_time_s,step_time"
    assert len(numbers) == 5


def test_repeats_are_pooled_to_their_mean_and_range(
    page: Client, make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]
) -> None:
    config = make_config(sweep={"train.seed": [1, 2]})
    attempts = [make_attempt(config=config, point={"train.seed": seed}) for seed in (1, 2)]
    other = make_attempt(config=make_config(sweep={"train.iterations": [9]}), point={"train.iterations": 9})
    for attempt, values in zip([*attempts, other], ((0.1, 0.2), (0.3, 0.4), (0.5, 0.6)), strict=True):
        store.append(attempt.pk, {("step_time_s", 0): series(*values)})
    url = address(*(attempt.run for attempt in [*attempts, other])).replace("/compare/", "/compare/figures/curves.json")
    traces = json.loads(page.get(f"{url}&repeats=pooled").content)["figure"]["data"]
    named = [trace for trace in traces if trace.get("showlegend") is not False]
    assert next(trace["name"] for trace in named).endswith(" 1 more, mean")
    assert len(named) == 2
    assert named[0]["y"] == pytest.approx([200, 300])
    low, high = (trace["y"] for trace in traces if trace.get("showlegend") is False)
    assert (low, high) == (pytest.approx([100, 200]), pytest.approx([300, 400]))


def test_parallel_coordinates_draw_a_line_per_run_over_what_differs(page: Client, four_runs: list[Run]) -> None:
    url = address(*four_runs).replace("/compare/", "/compare/figures/parallel.json")
    figure = json.loads(page.get(url).content)["figure"]
    assert len(figure["data"]) == 4
    titles = figure["layout"]["xaxis"]["ticktext"]
    units = ["Token throughput (tokens/s)", "Step time (ms)", "Time per sample (ms)", "Throughput (samples/s)"]
    assert titles[-4:] == units
    # The last axis sets the colour, from light to dark.
    colours = [trace["line"]["color"] for trace in figure["data"]]
    assert (colours[2], colours[0]) == (theme.SEQUENCE[-1], theme.SEQUENCE[0])
    fastest = figure["data"][2]["y"][titles.index(units[-1])]
    slowest = figure["data"][0]["y"][titles.index(units[-1])]
    assert (fastest, slowest) == (1, 0)
    alike = address(four_runs[0], four_runs[0]).replace("/compare/", "/compare/figures/parallel.json")
    assert "Parallel coordinates: needs runs" in json.loads(page.get(alike).content)["empty"]


def test_there_are_no_other_figures(page: Client, four_runs: list[Run]) -> None:
    assert page.get(address(*four_runs).replace("/compare/", "/compare/figures/florp.json")).status_code == 404


def test_results_keep_the_digits_of_a_publication(page: Client, four_runs: list[Run]) -> None:
    for run, samples_per_s in zip(four_runs[:2], (112.345, 98.1), strict=True):
        Run.objects.filter(pk=run.pk).update(origin=Run.Origin.PUBLISHED, samples_per_s=samples_per_s)
    first, second, *_ = rows(page.get(address(*four_runs[:2])), 1)["Throughput (samples/s)"]
    assert (first, second.split()[0]) == ("112.345", "98.100")


def test_twenty_runs_take_as_many_queries_as_three(
    page: Client, make_config: Callable[..., Config], user: User, four_runs: list[Run], django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(11):  # session, person, projects, runs, repeats, saved views
        page.get(address(*four_runs[:3]))
    config = make_config(sweep={"train.seed": list(range(20))})
    runs = config_launch(config=config, user=user).created
    with django_assert_num_queries(10):  # none of them has ended, so none is asked for its repeats
        page.get(address(*runs))


def test_two_runs_are_answered_with_their_interval_and_where_the_time_went(page: Client, four_runs: list[Run]) -> None:
    first, second = four_runs[:2]
    draw = np.random.default_rng(1)
    for run, level in ((first, 0.5), (second, 0.4)):
        store.append(
            run.current_attempt().pk, {("step_time_s", 0): series(*(level * np.exp(draw.normal(0, 0.01, 60))))}
        )
        spread = {"median": level, "p10": 0.99 * level, "p90": 1.01 * level}
        Run.objects.filter(pk=run.pk).update(summary={**run.summary, "step_time_s": spread})
    shown = page.get(address(first, second))
    head = text(shown).split("fields differ")[0]
    assert "B takes 20" in head
    assert "less time a step. 95" in head
    sure = shown.content.decode().split('id="sure"')[1].split("</section>")[0]
    assert "proven" in sure
    assert "not proven" not in sure
    # Steps that vary by more than the difference prove nothing.
    for run, level in ((first, 0.5), (second, 0.4)):
        spread = {"median": level, "p10": 0.6 * level, "p90": 1.4 * level}
        Run.objects.filter(pk=run.pk).update(summary={**run.summary, "step_time_s": spread})
    assert "not proven yet" in text(page.get(address(first, second)))


def test_unequal_numbers_of_devices_are_named_and_processes_are_not_gpus(page: Client, four_runs: list[Run]) -> None:
    for run, count in zip(four_runs[:2], (1, 2), strict=True):
        resolved = run.resolved | {"cluster": {"nodes": 1, "gpus_per_node": count}}
        Run.objects.filter(pk=run.pk).update(resolved=resolved, step_time_s=0.1 * (1 + count))
    assert "A ran on 1 process, B on 2 processes." in text(page.get(address(*four_runs[:2])))


def test_many_runs_are_named_by_what_differs_and_compared_pair_by_pair(page: Client, four_runs: list[Run]) -> None:
    shown = page.get(address(*four_runs))
    assert "1f1b · mb 1 is fastest" in text(shown)
    matrix = shown.content.decode().split('id="matrix"')[1].split("</section>")[0]
    assert matrix.count("<rect") >= 10
    assert "Row over column: 1f1b · mb 1 over" in matrix


def test_runs_are_chosen_with_boxes_on_the_page_of_an_experiment(page: Client, four_runs: list[Run]) -> None:
    content = page.get("/experiments/pipeline-schedules/table/").content.decode()
    assert content.count('name="run" value="') == 4
    assert 'formmethod="get" formaction="/compare/"' in content


def test_the_first_of_equal_best_values_is_bold_and_unitless_measures_have_no_brackets(
    page: Client, four_runs: list[Run]
) -> None:
    for run in four_runs[:3]:
        Run.objects.filter(pk=run.pk).update(
            summary={**run.summary, "loss": {"first": 9.0, "last": 2.0}}, samples_per_s=8.0
        )
    response = page.get(address(*four_runs[:3]))
    content = response.content.decode()
    assert "Loss of the last step" in rows(response, 1)
    assert "Loss last" not in rows(response, 0)
    assert content.count("<b>8.00</b>") == 1
    assert content.count("<b>2.00</b>") == 1


def test_of_many_settings_parallel_coordinates_show_those_that_say_most(
    page: Client, make_config: Callable[..., Config], user: User
) -> None:
    config = make_config(sweep={"train.seed": [1, 2, 3]})
    runs = config_launch(config=config, user=user).created
    for place, run in enumerate(runs):
        arguments = {f"rare_{n}": n for n in range(20)} if place == 0 else {}
        resolved = {**run.resolved, "command": {**run.resolved["command"], **arguments}}
        Run.objects.filter(pk=run.pk).update(resolved=resolved, samples_per_s=float(place + 1), state="finished")
    url = address(*runs).replace("/compare/", "/compare/figures/parallel.json")
    answer = json.loads(page.get(url).content)
    titles = answer["figure"]["layout"]["xaxis"]["ticktext"]
    assert titles[0] == "Seed"
    assert titles[-2:] == ["Time per sample (ms)", "Throughput (samples/s)"]
    assert len(titles) <= 12
    assert "more fields differ" in answer["caption"]


def test_many_fields_that_only_one_run_states_are_folded(page: Client, user: User, swept: Config) -> None:
    config = config_save(experiment=experiment_create(name="Files", owner=user), data=swept.data, sweep={}, user=user)
    wide = {f"stage_{number}": f"GPU:{number}" for number in range(9)}
    runs = [
        published_run_add(config=config, point=point, user=user, summary={"step_time_s": {"mean": 2.0}})
        for point in ({"system": "a", **wide}, {"system": "b"}, {"system": "c"})
    ]
    html = page.get(address(*runs)).content.decode()
    table, _, folded = html[html.index('id="differences"') :].partition("<tbody>")[2].partition("<details")
    assert "System" in table
    assert "GPU:3" not in table
    assert "9 fields that only one run states" in folded
    assert f"#{runs[0].number}: GPU:3" in folded


def test_versions_are_compared_by_their_fastest_runs(
    page: Client, four_runs: list[Run], make_attempt: Callable[..., Attempt], user: User
) -> None:
    experiment = four_runs[0].experiment
    second = config_save(
        experiment=experiment, data=four_runs[0].config.data, sweep={"train.seed": [7]}, user=user, as_next=True
    )
    later = finish(make_attempt(config=second, point={"train.seed": 7}), 0.3)
    fastest = min(four_runs, key=lambda run: run.step_time_s or 0)
    shown = page.get(f"/experiments/{experiment.slug}/compare/?versions={second.version},1")
    assert [run.pk for run in shown.context["comparison"].runs] == [later.pk, fastest.pk]
    link = page.get(f"/experiments/{experiment.slug}/configuration/").content.decode()
    assert f"compare/?versions={second.version},1" in link


def test_the_empty_page_offers_the_last_runs(page: Client, four_runs: list[Run]) -> None:
    newest = sorted(four_runs, key=lambda run: run.pk)
    assert f'href="?runs={newest[-1].pk},' in page.get("/compare/").content.decode()


def test_the_time_that_each_run_loses_to_the_best_is_drawn(page: Client, four_runs: list[Run]) -> None:
    head = page.get(address(*four_runs[:3])).context["head"]
    # 500, 400 and 200 ms a step of 4 samples.
    assert head.lost_unit == "ms a sample"
    assert "the best" in head.lost
    assert "+75.0, +150" in head.lost
    assert "+50.0, +100" in head.lost
