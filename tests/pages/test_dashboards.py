"""Dashboards: created with panels, arranged, saved, default for the team, opened by others."""

from __future__ import annotations

import html
import json
import re

import pytest
from django.test import Client

from parlab.lab.models import Dashboard, Experiment, Run
from parlab.lab.services.pages.dashboards import KINDS, Panel, new_panel
from parlab.pages.reads.dashboards import rearranged

from .conftest import finish
from .test_experiments import text


@pytest.fixture
def dashboard(page: Client, experiment: Experiment) -> Dashboard:
    page.post("/dashboards/new/", {"experiment": experiment.slug})
    return Dashboard.objects.get()


def posted(dashboard: Dashboard, panels: list[Panel], **more: str) -> dict[str, object]:
    names = ("title", "text", "width", "height")
    rows = {name: [getattr(panel, name) for panel in panels] for name in names}
    return {"name": dashboard.name, "revision": str(dashboard.revision), **rows, **more}


def test_a_new_dashboard_shows_figures_tables_and_numbers(
    page: Client, viewer: Client, four_runs: list[Run], dashboard: Dashboard
) -> None:
    markup = viewer.get(dashboard.get_absolute_url()).content.decode()
    assert "200 ms" in markup.replace("\u202f", " ")
    assert markup.count("data-figure-url") == 1
    url = markup.split('data-figure-url="')[1].split('"')[0].replace("&amp;", "&")
    answer = json.loads(viewer.get(url).content)
    assert answer["figure"]["data"]
    assert viewer.get(f"{url}&format=csv").content.startswith(b"run")


def test_a_table_of_runs_keeps_the_unit_and_the_digits_of_published_numbers(
    page: Client, four_runs: list[Run], dashboard: Dashboard
) -> None:
    for run, step_time_s in zip(four_runs, (6.64, 6.54, 11.35, 8.4), strict=True):
        finish(run.attempts.get(), step_time_s, origin=Run.Origin.PUBLISHED)
    shown = text(page.get(dashboard.get_absolute_url()))
    assert "Run Point Step time (s) Throughput (samples/s)" in shown
    assert re.findall(r" \d (\d+\.\d\d) 0\.\d{3}", shown) == ["6.64", "6.54", "11.35", "8.40"]


def test_a_table_of_runs_of_an_earlier_version_has_the_columns_of_this_one(
    page: Client, four_runs: list[Run], dashboard: Dashboard
) -> None:
    earlier = '{{ table runs columns="Run=run, Point=label, Step=step_time_s ms .1, Throughput=samples_per_s" }}'
    dashboard.panels = [{"title": "Runs", "text": earlier, "width": "full", "height": "usual"}]
    dashboard.save()
    assert "Run Point Step time (ms) Throughput (samples/s)" in text(page.get(dashboard.get_absolute_url()))
    assert KINDS["runs"][1] in html.unescape(page.get(f"{dashboard.get_absolute_url()}edit/").content.decode())


@pytest.mark.parametrize("kind", KINDS)
def test_a_panel_of_every_kind_can_be_shown(
    page: Client, four_runs: list[Run], dashboard: Dashboard, kind: str
) -> None:
    page.post(f"{dashboard.get_absolute_url()}edit/", posted(dashboard, [new_panel(kind)], act="save"))
    markup = page.get(dashboard.get_absolute_url()).content.decode()
    assert new_panel(kind).title in markup
    assert "problem" not in markup.split("panels")[-1]


@pytest.mark.database
def test_panels_are_added_moved_resized_and_saved(page: Client, experiment: Experiment, dashboard: Dashboard) -> None:
    edit = f"{dashboard.get_absolute_url()}edit/"
    first, second = Panel("One", "1"), Panel("Two", "2", "full", "tall")
    markup = page.post(edit, posted(dashboard, [first], act="add", kind="text", of="")).content.decode()
    assert "Not saved yet" in markup
    assert markup.count('name="title"') == 2
    assert Dashboard.objects.get().revision == 1
    page.post(edit, posted(dashboard, [second, first], act="save", default="on", name="Mine"))
    saved = Dashboard.objects.get()
    assert ([panel["title"] for panel in saved.panels], saved.is_default) == (["Two", "One"], True)
    assert page.get("/experiments/pipeline-schedules/dashboard/")["Location"] == saved.get_absolute_url()
    assert "panel-full panel-tall" in page.get(saved.get_absolute_url()).content.decode()
    outdated = page.post(edit, posted(dashboard, [], act="save"), follow=True).content.decode()
    assert "another person saved this dashboard" in outdated


def test_panels_of_other_experiments_name_them(experiment: Experiment) -> None:
    assert (
        new_panel("fastest", experiment).text == "{{ value step_time_s aggregate=min experiment=pipeline-schedules }}"
    )


def test_rearranging_keeps_all_other_panels() -> None:
    panels = [Panel(name, "") for name in "abc"]
    assert [panel.title for panel in rearranged(panels, "up", 2)] == ["a", "c", "b"]
    assert [panel.title for panel in rearranged(panels, "down", 0)] == ["b", "a", "c"]
    assert [panel.title for panel in rearranged(panels, "remove", 1)] == ["a", "c"]
    assert rearranged(panels, "remove", 7) == panels


def test_hostile_texts_stay_texts(page: Client, dashboard: Dashboard) -> None:
    panel = Panel("<script>", "<script>alert(1)</script> {{ figure nothing }}")
    page.post(f"{dashboard.get_absolute_url()}edit/", posted(dashboard, [panel], act="save"))
    assert "<script>alert" not in page.get(dashboard.get_absolute_url()).content.decode()


def test_viewers_may_open_but_not_change(viewer: Client, page: Client, dashboard: Dashboard) -> None:
    assert viewer.get(dashboard.get_absolute_url()).status_code == 200
    assert viewer.get(f"{dashboard.get_absolute_url()}edit/").status_code == 403
    assert viewer.post("/dashboards/new/", {"name": "x"}).status_code == 403
