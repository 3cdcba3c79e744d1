"""Dashboards: created with panels, arranged, saved, default for the team, opened by others."""

from __future__ import annotations

import html
import json
import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Dashboard, Experiment, Run, TagOfRun
from parlab.lab.services.experiments import experiment_create
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
    assert 'class="panel w12 h20"' in page.get(saved.get_absolute_url()).content.decode()
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


def arranged(client: Client, dashboard: Dashboard, panels: list[dict[str, object]]) -> int:
    url = f"{dashboard.get_absolute_url()}layout/?revision={Dashboard.objects.get(pk=dashboard.pk).revision}"
    return client.post(url, json.dumps({"panels": panels}), content_type="application/json").status_code


@pytest.mark.database
def test_panels_are_dragged_to_a_place_and_a_size_added_and_removed(page: Client, dashboard: Dashboard) -> None:
    markup = page.get(dashboard.get_absolute_url()).content.decode()
    names = re.findall(r'data-panel="([^"]+)"', markup)
    assert len(names) == 4
    moved: list[dict[str, object]] = [{"name": names[2], "w": 5, "h": 9}, {"name": names[0], "w": 99, "h": 1}]
    assert arranged(page, dashboard, [*moved, {"name": "new:text", "w": 6, "h": 13}]) == 204
    saved = Dashboard.objects.get().panels
    assert [(panel["columns"], panel["rows"]) for panel in saved] == [(5, 9), (12, 5), (0, 0)]
    shown = page.get(dashboard.get_absolute_url()).content.decode()
    assert re.findall(r'data-panel="([^"]+)"', shown)[:2] == [names[2], names[0]]
    assert 'class="panel w5 h9"' in shown
    # The form keeps a size that was dragged.
    panels = [Panel(**panel) for panel in saved]
    form = posted(Dashboard.objects.get(), panels, act="save")
    rows = {name: [getattr(panel, name) for panel in panels] for name in ("columns", "rows")}
    page.post(
        f"{dashboard.get_absolute_url()}edit/", {**form, **rows, "width": ["dragged"] * 3, "height": ["dragged"] * 3}
    )
    assert [panel["columns"] for panel in Dashboard.objects.get().panels] == [5, 12, 0]


def test_a_layout_of_an_earlier_state_or_of_nonsense_is_refused(
    page: Client, viewer: Client, dashboard: Dashboard
) -> None:
    url = f"{dashboard.get_absolute_url()}layout/?revision=99"
    assert page.post(url, '{"panels": []}', content_type="application/json").status_code == 409
    assert page.post(url, "[]", content_type="application/json").status_code == 400
    assert viewer.post(url, '{"panels": []}', content_type="application/json").status_code == 403
    assert len(Dashboard.objects.get().panels) == 4


def test_a_panel_of_an_experiment_is_added_to_its_dashboard(page: Client, four_runs: list[Run]) -> None:
    add = "/experiments/pipeline-schedules/dashboard/add/"
    first = page.post(add, {"panel": "figure:throughput", "title": "Throughput"}).json()
    page.post(add, {"panel": "curve:loss", "title": "Loss"})
    saved = Dashboard.objects.get()
    assert first["url"] == saved.get_absolute_url()
    assert [panel["title"] for panel in saved.panels] == ["Throughput", "Loss"]
    assert page.get(first["url"]).content.decode().count("data-figure-url") == 2
    assert page.post(add, {"panel": "figure:nonsense"}).status_code == 400


def test_figures_and_numbers_of_a_run_are_added_to_the_dashboard_of_its_experiment(
    page: Client, viewer: Client, four_runs: list[Run]
) -> None:
    run = four_runs[0]
    head = page.get(run.get_absolute_url()).content.decode()
    offered = dict(re.findall(r'data-to-dashboard="([^"]+)" data-title="([^"]+)"', head))
    number = f"value:{run.number}:step_time_s"
    assert offered[number] == f"Step time of #{run.number}"
    assert "data-to-dashboard" not in viewer.get(run.get_absolute_url()).content.decode()
    [add] = set(re.findall(r'data-dashboard-url="([^"]+)"', head)) - {"/parts/add/"}
    for panel in (number, f"run:{run.number}:step-time"):
        assert page.post(add, {"panel": panel, "title": offered.get(panel, "Step time")}).status_code == 200
    assert page.post(add, {"panel": f"value:{run.number}:secrets"}).status_code == 400
    saved = Dashboard.objects.get()
    assert [(panel["width"], panel["height"]) for panel in saved.panels] == [("third", "low"), ("half", "usual")]
    assert "500 ms" in page.get(saved.get_absolute_url()).content.decode().replace("\u202f", " ")


def test_the_variable_of_a_dashboard_is_another_experiment(
    page: Client, four_runs: list[Run], user: User, dashboard: Dashboard
) -> None:
    other = experiment_create(name="Empty", owner=user)
    assert "200 ms" in text(page.get(dashboard.get_absolute_url())).replace("\u202f", " ")
    chosen = page.get(f"{dashboard.get_absolute_url()}?experiment={other.slug}")
    assert "200 ms" not in text(chosen).replace("\u202f", " ")
    assert f"&amp;experiment={other.slug}" in chosen.content.decode()
    assert page.get(f"{dashboard.get_absolute_url()}?experiment=nonsense").status_code == 404


def test_a_dashboard_is_about_the_runs_of_a_tag_and_of_a_time(
    page: Client, four_runs: list[Run], dashboard: Dashboard
) -> None:
    TagOfRun.objects.create(run=four_runs[0], name="nightly")
    old = four_runs[1:]
    Run.objects.filter(pk__in=[run.pk for run in old]).update(queued_at=timezone.now() - timedelta(days=3))
    for query in ("tag=nightly", "hours=24"):
        shown = page.get(f"{dashboard.get_absolute_url()}?{query}")
        assert "500 ms" in text(shown).replace("\u202f", " "), "of the one run that matches"
        url = re.findall(r'data-figure-url="([^"]+)"', shown.content.decode())[0].replace("&amp;", "&")
        assert query in url
        numbers = page.get(f"{url}&format=csv").content.decode().splitlines()
        assert len(numbers) == 2
    assert "no runs yet" in text(page.get(f"{dashboard.get_absolute_url()}?tag=nothing"))


def test_the_wall_has_neither_frame_controls_nor_handles(page: Client, dashboard: Dashboard) -> None:
    markup = page.get(f"{dashboard.get_absolute_url()}?wall=1").content.decode()
    assert 'data-wall="' in markup
    assert "data-wall-clock" in markup


def test_a_dashboard_shows_the_runs_of_one_model(page: Client, four_runs: list[Run], dashboard: Dashboard) -> None:
    for number, run in enumerate(four_runs):
        finish(run.attempts.get(), 0.2 + number / 10)
    large = four_runs[0]
    Run.objects.filter(pk=large.pk).update(
        resolved={**large.resolved, "model": {**large.resolved["model"], "num_layers": 24}}
    )
    address = dashboard.get_absolute_url()
    assert "24 layers of 32" in page.get(address).content.decode()
    only = text(page.get(address, {"model": "GPT, 24 layers of 32"}))
    assert "200 ms" in only.replace("\u202f", " ")
    other = text(page.get(address, {"model": "GPT, 2 layers of 32"}))
    assert "300 ms" in other.replace("\u202f", " ")


def test_a_panel_is_shown_before_it_is_added(
    page: Client, viewer: Client, four_runs: list[Run], dashboard: Dashboard
) -> None:
    address = f"{dashboard.get_absolute_url()}preview/"
    figure = viewer.get(address, {"kind": "figure-throughput"}).content.decode()
    assert "data-figure-url" in figure
    about = viewer.get(address, {"kind": "runs", "of": four_runs[0].experiment.slug}).content.decode()
    assert "<table" in about
    assert viewer.get(address, {"kind": "nosuch"}).status_code == 404
    assert len(Dashboard.objects.get().panels) == 4


def test_a_panel_about_another_experiment_is_added_from_the_drawer(
    page: Client, admin: User, four_runs: list[Run], dashboard: Dashboard
) -> None:
    other = experiment_create(name="Other", question="", owner=admin)
    panels = [{"name": f"new:fastest@{other.slug}", "w": 4, "h": 5}]
    body = json.dumps({"panels": panels})
    url = f"{dashboard.get_absolute_url()}layout/?revision={dashboard.revision}"
    assert page.post(url, body, content_type="application/json").status_code == 204
    assert Dashboard.objects.get().panels[0]["text"] == "{{ value step_time_s aggregate=min experiment=other }}"


def test_the_interval_stands_in_the_address_and_in_the_grid(page: Client, dashboard: Dashboard) -> None:
    address = dashboard.get_absolute_url()
    assert 'data-refresh="60"' in page.get(address, {"refresh": "60"}).content.decode()
    for odd in ("1", "x", "-60"):
        assert "data-refresh" not in page.get(address, {"refresh": odd}).content.decode()
