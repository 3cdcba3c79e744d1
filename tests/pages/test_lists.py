"""The lists of experiments and runs: what a person may do with many rows at once, and keep for later."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import Attempt, Experiment, Finding, Run, RunNote, Tag
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.pages.list_columns import LISTS, RUN_COLUMNS
from parlab.lab.services.runs import config_launch
from parlab.lab.services.tagging import experiments_tag
from parlab.pages.templatetags.lists import CELLS, MEASURED

from .conftest import finish
from .test_experiments import text

pytestmark = pytest.mark.django_db

LIST, RUNS = "/experiments/", "/experiments/?show=runs"
EVIL = "<script>alert(1)</script>"


def test_a_filter_with_an_unknown_field_lists_nothing_and_says_what_it_did_not_understand(
    page: Client, four_runs: list[Run]
) -> None:
    response = page.get(LIST, {"q": f"samples_per_s>15 stat:{EVIL}"}, headers={"HX-Request": "true"})
    assert "<html" not in response.content.decode()
    assert 'title="1 finished"' not in response.content.decode()
    assert "Unknown field stat; did you mean state?" in text(response)
    assert EVIL not in response.content.decode()


@pytest.mark.database
def test_runs_of_all_experiments_are_listed_and_sorted(page: Client, four_runs: list[Run]) -> None:
    html = page.get(f"{RUNS}&sort=-samples_per_s").content.decode()
    assert re.findall(r'<tr data-run="(\d+)"', html) == [str(four_runs[n].pk) for n in (2, 3, 1, 0)]
    assert re.search(
        r'aria-sort="descending"><a class="sort" id="sort-samples_per_s" href="[^"]*sort=samples_per_s"', html
    )
    assert "8.00 samples/s" in text(page.get(f"{RUNS}&q=micro_batch:1+schedule:gpipe"))


def test_the_list_shows_out_of_memory(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    finish(make_attempt(), state="oom")
    assert "OOM" in text(page.get(RUNS))


def test_columns_are_kept_for_each_person(page: Client, viewer: Client, four_runs: list[Run]) -> None:
    assert "Throughput" in page.get(RUNS).content.decode().split("<thead>")[1]
    back = page.post("/columns/runs/", {"column": ["state", "gpus", "nonsense"], "next": RUNS})
    shown = f"{RUNS}&columns=state,gpus,nonsense"
    assert back.headers["Location"] == shown
    head = page.get(RUNS, follow=True).content.decode().split("<thead>")[1].split("</thead>")[0]
    assert "Throughput" not in head
    assert "State" in head
    assert "Throughput" in viewer.get(RUNS).content.decode().split("<thead>")[1]
    assert page.post("/columns/secrets/").status_code == 404


def test_a_link_shows_its_reader_the_columns_of_its_sender(page: Client, viewer: Client, four_runs: list[Run]) -> None:
    page.post("/columns/runs/", {"column": ["state", "gpus"], "next": RUNS})
    # The address that the sender sees states the columns.
    address = page.get(RUNS).headers["Location"]
    heads = [client.get(address).content.decode().split("<thead>")[1].split("</thead>")[0] for client in (page, viewer)]
    assert heads[0] == heads[1]
    assert "Throughput" not in heads[1]
    assert "sort=gpus&amp;columns=gpus%2Cstate" in viewer.get(f"{address}&sort=-gpus").content.decode()
    table = "/experiments/pipeline-schedules/table/"
    names = [column.key for column in page.get(table).context["table"].columns]
    page.post("/columns/experiment/", {"present": names, "column": names[:1], "next": table})
    shared = page.get(table).headers["Location"]
    for client in (page, viewer):
        assert [column.key for column in client.get(shared).context["table"].columns] == names[:1]
    assert len(viewer.get(table).context["table"].columns) == len(names)


def test_experiments_are_grouped_and_answer_their_question(page: Client, four_runs: list[Run], user: User) -> None:
    experiment_create(name="Later", owner=user)
    page_text = text(page.get(LIST))
    assert page_text.index("Measured 1") < page_text.index("Pipeline schedules") < page_text.index("Not run yet 1")
    assert "1F1B, micro batch 1: 2.5 × the slowest" in page_text
    assert "20.0 samples/s" in page_text
    # In another order than that of activity, there are no groups.
    assert "Measured 1 " not in text(page.get(f"{LIST}?sort=name")).split("View")[1]


def test_experiments_without_a_throughput_show_their_step_time(page: Client, four_runs: list[Run]) -> None:
    Run.objects.update(samples_per_s=None, tokens_per_s=None)
    assert "200 ms" in text(page.get(LIST))


def test_findings_stand_beside_their_experiment(page: Client, four_runs: list[Run]) -> None:
    run = four_runs[2]
    Finding.objects.create(experiment=run.experiment, run=run, rule="r", severity="warning", message="doubtful")
    assert "1 finding" in text(page.get(LIST))


def test_chosen_experiments_are_tagged_and_found_by_it(page: Client, experiment: Experiment, user: User) -> None:
    other = experiment_create(name="Other", owner=user)
    chosen = {"experiment": [experiment.pk, other.pk], "next": LIST}
    page_text = text(page.post("/experiments/change/", {**chosen, "action": "tag", "tag": "V100"}, follow=True))
    assert "2 experiments tagged v100." in page_text
    assert "2 matching experiments" in text(page.get(LIST, {"q": "tag:v100"}))
    page.post("/experiments/change/", {"experiment": [other.pk], "action": "untag", "tag": "v100"})
    assert [tag.experiment for tag in Tag.objects.all()] == [experiment]
    page_text = text(
        page.post("/experiments/change/", {**chosen, "action": "tag", "tag": f"two words {EVIL}"}, follow=True)
    )
    assert "Nothing was changed: invalid tag" in page_text
    assert "use one word" in page_text


def test_archiving_can_be_undone_and_leaves_what_runs(
    page: Client, four_runs: list[Run], user: User, make_attempt: Callable[..., Attempt]
) -> None:
    experiment = four_runs[0].experiment
    other = experiment_create(name="Idle", owner=user)
    make_attempt(state="running", point={"x": 1})
    chosen = {"experiment": [experiment.pk, other.pk], "action": "archive", "next": LIST}
    response = page.post("/experiments/change/", chosen, follow=True)
    assert "1 experiment archived. Undo" in text(response)
    assert "Not archived, because runs are active: Pipeline schedules." in text(response)
    assert "Idle" not in text(page.get(LIST))
    form = response.content.decode().split('<form class="inline"')[1].split("</form>")[0]
    fields = dict(re.findall(r'name="(\w+)" value="(\w+)"', form))
    assert fields["action"] == "restore"
    assert "1 experiment restored" in text(page.post("/experiments/change/", fields, follow=True))
    assert "Idle" in text(page.get(LIST))


def test_chosen_runs_are_launched_again_and_cancelled(page: Client, four_runs: list[Run]) -> None:
    chosen = {"run": [run.pk for run in four_runs[:2]], "next": RUNS}
    assert "2 runs queued again." in text(page.post("/runs/change/", {**chosen, "action": "relaunch"}, follow=True))
    again = text(page.post("/runs/change/", {**chosen, "action": "relaunch"}, follow=True))
    assert "Not changed: run #1 is queued" in again
    assert "2 runs cancelled or stopping." in text(
        page.post("/runs/change/", {**chosen, "action": "cancel"}, follow=True)
    )
    assert "select runs" in text(page.post("/runs/change/", {"run": ["x", "-1"], "action": "cancel"}, follow=True))


@pytest.mark.parametrize("path", ["/experiments/change/", "/runs/change/"])
def test_bulk_actions_need_a_right_and_a_post(viewer: Client, page: Client, four_runs: list[Run], path: str) -> None:
    assert viewer.post(path, {"run": [four_runs[0].pk], "action": "relaunch"}).status_code == 403
    assert page.get(path).status_code == 405
    assert 'value="archive"' not in viewer.get(LIST).content.decode()


def test_a_bulk_action_leads_nowhere_else(page: Client) -> None:
    response = page.post("/experiments/change/", {"next": "https://evil.example/"})
    assert response.headers["Location"] == LIST


@pytest.mark.parametrize("show", ["experiments", "runs"])
def test_the_lists_take_at_most_twenty_one_queries(
    viewer: Client, user: User, four_runs: list[Run], django_assert_max_num_queries: Any, show: str
) -> None:
    for number in range(6):
        other = experiment_create(name=f"Other {number}", owner=user)
        config = config_save(experiment=other, data=four_runs[0].config.data, sweep={"train.seed": [1, 2]}, user=user)
        config_launch(config=config, user=user)
        experiments_tag(experiments=[other], name="v100")
    viewer.post(f"/columns/{show}/", {"column": [column.name for column in LISTS[show]]})
    # Of a user whose rights and projects are looked up, which costs three.
    with django_assert_max_num_queries(21):
        viewer.get(LIST, {"show": show, "q": "engine:pipeline gpus>=1 -tag:old", "sort": "best"})


def test_the_policy_of_pages_allows_nothing_inline(page: Client, four_runs: list[Run]) -> None:
    policy = page.get("/").headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_every_column_of_the_lists_has_a_cell() -> None:
    assert {*CELLS, *MEASURED} == {column.name for column in RUN_COLUMNS}


@pytest.mark.parametrize("show", ["experiments", "runs"])
def test_names_notes_and_reasons_in_the_lists_are_text(page: Client, four_runs: list[Run], show: str) -> None:
    Experiment.objects.update(name=EVIL, question=EVIL)
    Run.objects.update(label=EVIL, reason=EVIL)
    RunNote.objects.create(run=four_runs[0], text=EVIL)
    page.post(f"/columns/{show}/", {"column": [column.name for column in LISTS[show]]})
    html = page.get(LIST, {"show": show}, follow=True).content.decode()
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3
    assert EVIL not in html


def test_the_list_of_experiments_keeps_the_digits_of_a_publication(page: Client, four_runs: list[Run]) -> None:
    Run.objects.update(origin=Run.Origin.PUBLISHED, samples_per_s=112.345)
    assert "112.345 samples/s" in text(page.get(LIST))


@pytest.mark.parametrize(
    "address", [RUNS, "/experiments/pipeline-schedules/table/", "/experiments/pipeline-schedules/time/"]
)
def test_on_a_phone_the_measured_number_stands_beside_the_name(
    page: Client, four_runs: list[Run], address: str
) -> None:
    html = page.get(address).content.decode()
    numbers = re.findall(r'class="narrow-number"[^>]*>(?:<[^>]+>)*([^<]*)<', html)
    assert numbers
    assert all(re.match(r"[\d.,]+\s?\S", number) for number in numbers), numbers


def test_a_column_of_numbers_has_one_unit_and_one_number_of_decimals(page: Client, four_runs: list[Run]) -> None:
    for run, step_time_s, memory in zip(
        four_runs, (0.0123, 0.5, 0.0987, 0.1), (2**30, 387 * 2**20, 2**29, 2**28), strict=True
    ):
        Run.objects.filter(pk=run.pk).update(step_time_s=step_time_s, memory_max_bytes=memory)
    html = page.get(f"{RUNS}&sort=step_time").content.decode().replace("\N{NARROW NO-BREAK SPACE}", " ")
    cells = re.findall(r'<td class="number"><span title="[^"]*">([\d.,]+ (?:ms|MiB))<', html)
    assert [cell for cell in cells if cell.endswith(" ms")] == ["12.3 ms", "98.7 ms", "100.0 ms", "500.0 ms"]
    assert [cell for cell in cells if cell.endswith(" MiB")] == ["1,024 MiB", "512 MiB", "256 MiB", "387 MiB"]


def test_numbers_too_far_apart_for_one_unit_have_each_its_own(page: Client, four_runs: list[Run]) -> None:
    for run, step_time_s in zip(four_runs, (2e-6, 0.5, 3.0, 40.0), strict=True):
        Run.objects.filter(pk=run.pk).update(step_time_s=step_time_s)
    shown = text(page.get(f"{RUNS}&sort=step_time"))
    assert "2.00 µs" in shown
    assert "40.0 s" in shown
