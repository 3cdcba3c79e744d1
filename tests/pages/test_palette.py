"""The palette: what it lists for a query, its actions, its previews, and what it never shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils.html import strip_tags

from parlab.lab.models import Device, Experiment, Node, Run
from parlab.lab.services.archive import experiments_archive
from parlab.pages.palette.actions import ACTIONS, GRAMMAR
from parlab.pages.palette.rows import marked

pytestmark = pytest.mark.django_db

EVIL = "<script>alert(1)</script>"


def listed(client: Client, query: str, at: str = "/", picked: str = "") -> dict[str, list[tuple[str, str]]]:
    """Return the list as {group: [(text, address)]}."""
    response = client.get("/palette/", {"q": query, "at": at, "picked": picked})
    assert response.status_code == 200
    html = re.sub(r"<svg.*?</svg>", "", response.content.decode(), flags=re.DOTALL)
    groups: dict[str, list[tuple[str, str]]] = {}
    for part in html.split('<div role="group"')[1:]:
        rows = re.findall(r"<(?:a|p) (class=\"p[im]\".*?)>(.*?)</(?:a|p)>", part, re.DOTALL)
        title = re.search(r"<h4[^>]*>(.*?)</h4>", part)
        assert title
        texts = [
            (
                " ".join(strip_tags(inner).split()).replace("&#x27;", "'"),
                "".join(re.findall(r'href="([^"]*)"', head)).replace("&amp;", "&"),
            )
            for head, inner in rows
        ]
        groups[title[1]] = texts
    return groups


@pytest.mark.database
def test_runs_are_named_by_what_differs_and_those_of_the_open_experiment_come_first(
    page: Client, four_runs: list[Run]
) -> None:
    rows = listed(page, "1f1b", at="/experiments/pipeline-schedules/")["Runs"]
    assert rows[0][0].startswith("1f1b · mb 2 Pipeline schedules #4")
    assert rows[0][1] == four_runs[3].get_absolute_url()
    assert all(text.startswith("1f1b") for text, _ in rows)


def test_runs_that_have_the_word_in_their_name_come_before_those_that_only_use_it(
    page: Client, four_runs: list[Run]
) -> None:
    before, newest = four_runs[-2:]
    Run.objects.filter(pk=before.pk).update(label="schedule 1f1b, micro batch size 1")
    Run.objects.filter(pk=newest.pk).update(label="micro batch size 2")
    addresses = [address for _, address in listed(page, "1f1b")["Runs"]]
    assert addresses[:2] == [before.get_absolute_url(), newest.get_absolute_url()]


def test_an_experiment_that_is_named_stands_before_its_runs(page: Client, four_runs: list[Run]) -> None:
    name = four_runs[0].experiment.name
    assert list(listed(page, name[:8].lower()))[:2] == ["Experiments", "Runs"]
    assert next(iter(listed(page, "gpipe"))) == "Runs"


@pytest.mark.database
def test_every_word_must_match(page: Client, four_runs: list[Run]) -> None:
    assert len(listed(page, "gpipe #2")["Runs"]) == 1
    assert "Runs" not in listed(page, "gpipe nonsense")


@pytest.mark.database
def test_a_filter_inside_the_palette_opens_its_list_with_the_number_of_runs(page: Client, four_runs: list[Run]) -> None:
    Run.objects.filter(pk=four_runs[0].pk).update(state="oom")
    groups = listed(page, "state:oom")
    assert groups["Filter"][0][0].startswith("Runs with state = OOM 1 run")
    assert groups["Filter"][0][1] == "/experiments/?show=runs&q=state%3Aoom"
    assert [url for _, url in groups["Runs"]] == [four_runs[0].get_absolute_url()]
    assert listed(page, "gpipe")["Filter"][0][0].startswith("Runs with schedule = gpipe 2 runs")


def test_an_unknown_field_is_named_with_those_that_exist(page: Client, four_runs: list[Run]) -> None:
    groups = listed(page, "colour:red")
    assert list(groups) == ["Filter"]
    assert groups["Filter"][0][0].startswith("Unknown field colour; fields are tag, name, ")


def test_fields_and_values_are_suggested_while_a_filter_is_typed(page: Client, four_runs: list[Run]) -> None:
    assert [text.split(":")[0] for text, _ in listed(page, "sche")["Filter"]] == ["schedule"]
    assert [text.split()[0] for text, _ in listed(page, "state:fin")["Filter"]] == ["state:finishedTab"]


def test_compare_takes_numbers_of_the_open_experiment_or_of_any(page: Client, four_runs: list[Run]) -> None:
    ids = f"{four_runs[1].pk}%2C{four_runs[3].pk}"
    at = "/experiments/pipeline-schedules/"
    for query, place in (
        ("compare 2 4", at),
        ("compare #2 with #4", at),
        ("compare pipeline-schedules/2 pipeline-schedules/4", "/"),
    ):
        (row,) = listed(page, query, at=place)["Actions"]
        assert row[1] == f"/compare/?runs={ids}"
    assert listed(page, "compare 2 99", at=at)["Actions"] == [("No run 99 in this experiment", "")]
    assert "write its address before the number" in listed(page, "compare 2 4")["Actions"][0][0]


def test_picked_runs_are_offered_for_comparison(page: Client, four_runs: list[Run]) -> None:
    first, second = four_runs[0].pk, four_runs[2].pk
    (row,) = listed(page, "compare", picked=f"{first},{second},nonsense")["Actions"]
    assert row == ("Compare gpipe · mb 1 with 1f1b · mb 1 #1, #3", f"/compare/?runs={first}%2C{second}")


def test_plan_reads_a_model_a_number_and_a_device_in_any_order(page: Client) -> None:
    # A test that empties all tables may have run before.
    numbers = {"memory_gib": 80, "memory_bandwidth_gb_s": 3350, "peak_tflops": {"bf16": 989}}
    Device.objects.get_or_create(name="H100 SXM", defaults=numbers)
    for query in ("plan llama 405b on 1024 h100 sxm", "plan 1,024 h100 sxm llama 405b"):
        (row,) = listed(page, query)["Actions"]
        assert row[0] == "Plan Llama 3.1 405B on 1,024 H100 SXM"
    target = page.get(row[1])
    assert target.status_code == 302
    address = target.headers["Location"]
    assert all(part in address for part in ("nodes=128", "gpu=H100+SXM", "gpus_per_node=8"))
    assert page.get(address).status_code == 200
    assert "Unknown model or device zx81" in listed(page, "plan zx81")["Actions"][0][0]


def test_simulate_takes_a_schedule_and_sizes(page: Client) -> None:
    (row,) = listed(page, "simulate zb-h1 with 8 stages")["Actions"]
    assert row == ("Simulate zb-h1 with 8 stages", "/simulate/?stages=8&schedules=zb-h1")
    assert page.get(row[1]).status_code == 200


def test_a_run_that_has_ended_can_be_relaunched_from_its_page_by_those_who_may(
    page: Client, viewer: Client, four_runs: list[Run]
) -> None:
    at = four_runs[0].get_absolute_url()
    assert listed(page, "relaunch", at=at)["Actions"] == [("Relaunch this run", f"{at}relaunch/")]
    assert "cancel" not in str(listed(page, "", at=at)).lower()
    assert listed(viewer, "relaunch", at=at) == {}
    html = page.get("/palette/", {"q": "relaunch", "at": at}).content.decode()
    assert 'data-ask="Launch this run again?' in html


def test_a_run_is_relaunched_or_cancelled_by_its_number(page: Client, viewer: Client, four_runs: list[Run]) -> None:
    experiment, run = four_runs[0].experiment, four_runs[0]
    address = f"{run.get_absolute_url()}relaunch/"
    (text, url) = listed(page, "relaunch 1", at=experiment.get_absolute_url())["Actions"][0]
    assert (text.startswith("Relaunch "), url) == (True, address)
    assert listed(page, f"relaunch {experiment.slug}/1")["Actions"][0][1] == address
    assert "No run 9 in this experiment" in str(listed(page, "relaunch 9", at=experiment.get_absolute_url()))
    assert "Cancel is not possible for run 1, which is finished" in str(
        listed(page, "cancel 1", at=experiment.get_absolute_url())
    )
    assert "enter the number of a run" in str(listed(page, "relaunch"))
    assert "elaunch" not in str(listed(viewer, "relaunch 1", at=experiment.get_absolute_url()))
    html = page.get("/palette/", {"q": "relaunch 1", "at": experiment.get_absolute_url()}).content.decode()
    assert "#1: Launch this run again?" in html


def test_actions_need_their_permission(viewer: Client, allowed: Callable[..., Client]) -> None:
    assert "Paste a log" not in str(listed(viewer, "log"))
    assert "Paste a log" in str(listed(allowed("add_run"), "log"))
    assert "Audit log" not in str(listed(viewer, "audit"))


def test_every_action_leads_to_a_page(page: Client, four_runs: list[Run]) -> None:
    run = four_runs[0]
    for action in ACTIONS:
        at = run.get_absolute_url() if action.on == "run" else run.experiment.get_absolute_url()
        rows = [url for text, url in listed(page, action.title, at=at).get("Actions", []) if text == action.title]
        if not action.states:
            assert rows, action.title
            response = page.get(rows[0])
            assert response.status_code in ((405,) if action.ask else (200, 302)), action.title
            assert response.status_code != 200 or "<html" in response.content.decode(), action.title
    assert set(GRAMMAR) == {"compare", "plan", "simulate", "relaunch", "cancel"}


def test_an_empty_query_lists_what_was_opened_last(page: Client, four_runs: list[Run]) -> None:
    assert "Recent" not in listed(page, "")
    page.get("/experiments/pipeline-schedules/")
    assert listed(page, "")["Recent"] == [("Pipeline schedules 4 runs", "/experiments/pipeline-schedules/")]


def test_pages_settings_metrics_and_nodes_are_found(page: Client, four_runs: list[Run]) -> None:
    node = Node.objects.create(name="rack-7")
    assert listed(page, "dashb")["Pages"] == [("Dashboards Reports", "/dashboards/")]
    assert listed(page, "notific")["Settings"][0][1] == "/notifications/"
    assert listed(page, "peak")["Metrics"][0][1] == "/experiments/?show=runs&sort=-memory"
    assert listed(page, node.name)["Nodes"][0][1] == f"/nodes/{node.name}/"


@pytest.mark.database
def test_archived_experiments_and_deleted_runs_are_not_listed(page: Client, four_runs: list[Run]) -> None:
    Run.everything.filter(pk=four_runs[0].pk).update(hidden_at=four_runs[0].queued_at)
    assert len(listed(page, "gpipe")["Runs"]) == 1
    experiments_archive(experiments=[four_runs[0].experiment])
    assert "Runs" not in listed(page, "gpipe")


def test_texts_of_people_are_escaped(page: Client, four_runs: list[Run]) -> None:
    Experiment.objects.update(name=f"evil {EVIL}", question=EVIL)
    run = four_runs[0]
    for address in (
        f"/palette/?q=evil&at=/{EVIL}", f"/palette/?q={EVIL}", f"/palette/?q=compare+{EVIL}",
        f"/palette/?q=%00{EVIL}:x", f"/palette/runs/{run.pk}/", f"/palette/experiments/{run.experiment_id}/",
    ):  # fmt: skip
        response = page.get(address)
        assert response.status_code == 200
        assert EVIL not in response.content.decode()
    assert marked("<b> a<b", ["<b"]) == "<mark>&lt;b</mark>&gt; a<mark>&lt;b</mark>"


def test_the_preview_of_a_run_has_its_numbers(page: Client, four_runs: list[Run]) -> None:
    html = strip_tags(page.get(f"/palette/runs/{four_runs[2].pk}/").content.decode())
    for part in (
        "1f1b · mb 1",
        "finished",
        "20.0\N{NARROW NO-BREAK SPACE}samples/s",
        "256\N{NARROW NO-BREAK SPACE}MiB",
        "PP 2",
    ):
        assert part in html


def test_the_list_costs_a_fixed_number_of_queries(
    page: Client, four_runs: list[Run], django_assert_max_num_queries: Any
) -> None:
    with django_assert_max_num_queries(20):
        listed(page, "gpipe", at="/experiments/pipeline-schedules/")


def test_the_preview_of_an_experiment_counts_its_runs_by_state(page: Client, four_runs: list[Run]) -> None:
    shown = page.get(f"/palette/experiments/{four_runs[0].experiment_id}/").content.decode()
    assert re.search(r"</span>\d+ \w+</span>", shown)
