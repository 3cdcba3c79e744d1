"""Polls without changes cost a look once a second, however many browsers show the same page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from parlab.lab.models import Attempt, Run
from parlab.pages import polls

pytestmark = pytest.mark.django_db
HTMX = {"HX-Request": "true"}


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Answers are repeated for as long as the test takes."""
    cache.clear()
    monkeypatch.setattr(polls, "FRESH_S", 600.0)
    yield
    cache.clear()


@pytest.fixture
def address(page: Client, make_attempt: Callable[..., Attempt]) -> str:
    """The poll of a browser that shows an active run."""
    run = make_attempt(state="running").run
    content = page.get(run.get_absolute_url()).content.decode()
    (poll,) = re.findall(r'hx-get="([^"]+/live/[^"]*seen=[^"]+)"', content)
    return str(poll).replace("&amp;", "&")


def queries(client: Client, address: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as context:
        assert client.get(address, headers=HTMX).status_code == 204
    return len(context)


def test_a_second_browser_costs_its_login_only(page: Client, user: User, address: str, moment: None) -> None:
    other = Client()
    other.force_login(User.objects.create_user("grace", password="another person here"))
    assert queries(page, address) > 2
    assert queries(other, address) <= 2
    nobody = Client().get(address, headers=HTMX)
    assert (nobody.status_code, nobody.headers["Location"].split("?")[0]) == (302, "/login/")


def test_a_change_is_shown_when_the_moment_is_over(page: Client, address: str, moment: None) -> None:
    assert page.get(address, headers=HTMX).status_code == 204
    Run.objects.update(reason="a rank is slow")
    assert page.get(address, headers=HTMX).status_code == 204
    cache.clear()
    assert "a rank is slow" in page.get(address, headers=HTMX).content.decode()
    # Without htmx it is not a poll, and an answer with content is not repeated.
    assert page.get(address, headers=HTMX).status_code == 200
