"""Saved views: the address of a list, a sweep or a comparison under a name."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from django.test import Client

from parlab.lab.models import Experiment, Run, SavedView

from .test_experiments import EXPERIMENT


def save(client: Client, address: str, name: str = "Mine", **more: str) -> str:
    response = client.post("/views/save/", {"address": address, "name": name, **more}, follow=True)
    return response.content.decode()


@pytest.mark.database
@pytest.mark.parametrize(
    ("address", "stored"),
    [
        ("/experiments/?q=state:oom&page=3", "/experiments/?q=state%3Aoom"),
        ("/experiments/pipeline-schedules/?y=memory&plain=1", "/experiments/pipeline-schedules/?y=memory"),
        ("/compare/?runs={0.pk},{1.pk}", "/compare/?runs={0.pk}%2C{1.pk}"),
    ],
)
def test_a_view_is_saved_listed_and_opened(page: Client, four_runs: list[Run], address: str, stored: str) -> None:
    stored = stored.format(*four_runs)
    html = save(page, address.format(*four_runs))
    view = SavedView.objects.get()
    assert view.address == stored
    assert "Saved the view Mine." in html
    assert page.get(f"/views/{view.pk}/")["Location"] == stored
    assert (
        stored.replace("&", "&amp;")
        in page.get(f"{view.path}?plain=1&runs={four_runs[0].pk},{four_runs[1].pk}").content.decode()
    )


def test_a_default_view_opens_for_everybody_unless_choices_are_in_the_address(
    page: Client, viewer: Client, experiment: Experiment
) -> None:
    save(page, "/experiments/?q=tag:none", default="on")
    assert viewer.get("/experiments/")["Location"] == "/experiments/?q=tag%3Anone"
    assert viewer.get("/experiments/?plain=1").status_code == 200
    save(page, "/experiments/?q=is:active", "Other", default="on")
    assert [view.name for view in SavedView.objects.filter(is_default=True)] == ["Other"]


@pytest.mark.parametrize(
    ("address", "name", "problem"),
    [
        ("/experiments/", " ", "needs a name"),
        ("https://example.org/", "Away", "has no views"),
        ("/nodes/", "Nodes", "has no views"),
        (f"/experiments/?q={'x' * 5000}", "Long", "characters"),
    ],
)
def test_what_cannot_be_saved_says_why(page: Client, address: str, name: str, problem: str) -> None:
    assert problem in save(page, address, name)
    assert not SavedView.objects.exists()


def test_a_view_belongs_to_the_person_who_saved_it(
    page: Client, viewer: Client, allowed: Callable[..., Client], experiment: Experiment
) -> None:
    save(page, "/experiments/?q=a")
    other = allowed("add_savedview")
    assert "is taken by" in save(other, "/experiments/?q=b")
    view = SavedView.objects.get()
    assert other.post(f"/views/{view.pk}/delete/").status_code == 403
    assert viewer.post("/views/save/", {"address": "/experiments/", "name": "x"}).status_code == 403
    page.post(f"/views/{view.pk}/delete/")
    assert not SavedView.objects.exists()


def test_a_view_keeps_the_panels_as_they_were_arranged(page: Client, viewer: Client, four_runs: list[Run]) -> None:
    own = json.dumps({"panels": [{"name": "memory", "w": 12, "h": 9}, {"name": "throughput", "w": 6, "h": 9}]})
    page.post(f"{EXPERIMENT}layout/", own, content_type="application/json")
    save(page, f"{EXPERIMENT}?version=all", "Memory first")
    view = SavedView.objects.get()
    assert [panel["name"] for panel in view.panels] == ["memory", "throughput"]
    page.post(f"{EXPERIMENT}layout/", json.dumps({"panels": [{"name": "sweep", "w": 6, "h": 9}]}), "application/json")
    names = [panel.name for panel in viewer.get(view.address).context["panels"].views]
    assert names == [name for name in ("memory", "throughput") if name in names] != []
    assert [panel.name for panel in page.get(EXPERIMENT).context["panels"].views] == ["sweep"]
    # Saved again from its own address, it keeps its panels and not those of the person.
    save(page, view.address, "Memory first")
    view.refresh_from_db()
    assert [panel["name"] for panel in view.panels] == ["memory", "throughput"]
