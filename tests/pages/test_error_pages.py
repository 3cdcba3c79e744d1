"""Pages of errors: inside the frame for those who are logged in, with a next step; forms' addresses lead back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.template.loader import render_to_string
from django.test import Client, RequestFactory
from django.utils.html import strip_tags

from parlab.api.outages import failed_request
from parlab.lab.models import Run
from parlab.pages.requests.forms_only import WORD
from parlab.pages.templatetags.frame import address_words

from .test_experiments import text

BROWSER = {"Accept": "text/html,application/xhtml+xml"}


@pytest.mark.django_db
def test_a_missing_page_stands_in_the_frame_and_offers_the_search(page: Client) -> None:
    response = page.get("/experiments/bert-large-x/")
    assert response.status_code == 404
    html = response.content.decode()
    assert 'data-palette="bert large x"' in html
    assert '<nav class="rail"' in html
    alone = Client().get("/nothing/<script>/")
    assert alone.status_code == 404
    assert '<nav class="rail"' not in alone.content.decode()
    assert "<script>/" not in alone.content.decode()


def test_the_words_of_an_address_are_those_to_search_for() -> None:
    assert address_words("/experiments/bert-large/runs/7/") == "bert large"
    assert address_words("/") == ""


@pytest.mark.django_db
def test_a_refusal_says_who_and_what_to_do(viewer: Client) -> None:
    response = viewer.get("/import/")
    assert response.status_code == 403
    assert "Your account, viewer, does not have permission" in text(response)
    assert 'href="/account/"' in response.content.decode()
    assert '<nav class="rail"' in response.content.decode()


@pytest.mark.django_db
def test_a_form_without_its_token_is_rejected_in_the_frame(page: Client) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = page.cookies
    response = strict.post("/import/", {"text": "x"})
    assert response.status_code == 403
    assert "Form rejected" in text(response)
    assert '<nav class="rail"' in response.content.decode()


def test_the_page_of_a_server_error_needs_no_database() -> None:
    assert "Server error" in render_to_string("500.html")


def test_a_server_error_without_collected_static_files_is_plain_text(
    rf: RequestFactory, settings: Any, tmp_path: Path
) -> None:
    backend = "servestatic.storage.CompressedManifestStaticFilesStorage"
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": backend}}
    settings.STATIC_ROOT = tmp_path
    settings.DEBUG = False
    answer = failed_request(rf.get("/"))
    assert (answer.status_code, answer["Content-Type"]) == (500, "text/plain; charset=utf-8")
    assert answer.content.decode().startswith("The server met an error")


@pytest.mark.django_db
def test_an_address_that_only_takes_a_form_leads_back_with_a_word(page: Client, four_runs: list[Run]) -> None:
    at = four_runs[0].get_absolute_url()
    response = page.get(f"{at}relaunch/", headers=BROWSER, follow=True)
    assert response.redirect_chain == [(at, 302)]
    assert WORD in text(response)
    came_from = page.get(f"{at}relaunch/", headers={**BROWSER, "Referer": "http://testserver/experiments/?q=x"})
    assert came_from.headers["Location"] == "http://testserver/experiments/?q=x"
    elsewhere = page.get(f"{at}relaunch/", headers={**BROWSER, "Referer": "https://evil.example/"})
    assert elsewhere.headers["Location"] == at
    assert page.get("/columns/runs/", headers=BROWSER).headers["Location"] == "/"


@pytest.mark.django_db
def test_scripts_polls_and_the_api_still_get_405(page: Client, four_runs: list[Run]) -> None:
    address = f"{four_runs[0].get_absolute_url()}relaunch/"
    assert page.get(address).status_code == 405
    assert page.get(address, headers={**BROWSER, "HX-Request": "true"}).status_code == 405
    assert page.get("/api/plan/", headers=BROWSER).status_code != 302
    assert page.delete("/import/", headers=BROWSER).status_code == 405


PLACES: list[tuple[str, list[str]]] = [
    ("/", ["Home"]),
    ("/simulate/", ["Plan", "Simulate"]),
    ("/tune/", ["Plan", "Search"]),
    ("/compare/timelines/", ["Experiments", "Compare", "Timelines"]),
    ("/nodes/", ["Cluster"]),
    ("/notifications/", ["Settings", "Notifications"]),
    ("/import/formats/", ["Settings", "Log formats"]),
    ("/account/", ["Settings", "Account and tokens"]),
    ("/dashboards/", ["Reports", "Dashboards"]),
    ("/import/", ["Experiments", "Import"]),
    ("/connect/", ["Experiments", "Connect a script"]),
    ("/experiments/pipeline-schedules/findings/", ["Experiments", "Pipeline schedules", "Findings"]),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("address", "place"), PLACES)
def test_the_top_bar_says_where_a_page_is(page: Client, four_runs: list[Run], address: str, place: list[str]) -> None:
    html = page.get(address).content.decode()
    crumbs: Any = html.split('aria-label="Place">')[1].split("</nav>")[0]
    names = [part for part in strip_tags(crumbs).split("/") if part]
    assert [name.strip() for name in names] == place
