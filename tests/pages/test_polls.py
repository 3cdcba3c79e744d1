"""Polls without changes cost a look once a second, however many browsers show the same page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import User
from django.core.cache import caches
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from parlab.lab.models import Attempt, Run
from parlab.pages.requests import polls

pytestmark = pytest.mark.django_db
HTMX = {"HX-Request": "true"}


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Answers are repeated for as long as the test takes."""
    caches["polls"].clear()
    monkeypatch.setattr(polls, "FRESH_S", 600.0)
    yield
    caches["polls"].clear()


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


def test_a_second_browser_costs_its_login_and_projects_only_and_then_nothing(
    page: Client, user: User, address: str, moment: None
) -> None:
    other = Client()
    other.force_login(User.objects.create_user("grace", password="another person here"))
    assert queries(page, address) > 2
    assert 1 <= queries(other, address) <= 3  # and which projects it sees
    assert queries(other, address) == queries(page, address) == 0


def test_what_is_remembered_helps_nobody_without_a_login(page: Client, address: str, moment: None) -> None:
    for _ in range(2):
        assert page.get(address, headers=HTMX).status_code == 204
    for stranger in (Client(), Client()):
        stranger.cookies["sessionid"] = "of nobody"
        for _ in range(2):
            refused = stranger.get(address, headers=HTMX)
            assert (refused.status_code, refused.headers["Location"].split("?")[0]) == (302, "/login/")
    # Not the part itself, nor another address, nor anything but a poll.
    other = address.replace("seen=", "seen=0")
    nobody = Client()
    for path, headers in ((address, {}), (other, HTMX), ("/", HTMX)):
        assert nobody.get(path, headers=headers).status_code == 302


@pytest.mark.parametrize("end", ["logout", "password", "disabled"])
def test_a_session_that_has_ended_learns_nothing_once_the_moment_is_over(
    end: str, page: Client, user: User, address: str, moment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert page.get(address, headers=HTMX).status_code == 204
    stolen = page.cookies["sessionid"].value
    if end == "logout":
        page.post("/logout/")
    else:
        user.set_password("a new one, and long") if end == "password" else setattr(user, "is_active", False)
        user.save()
    thief = Client()
    thief.cookies["sessionid"] = stolen
    # Content is never remembered: what has changed is for sessions that still hold.
    Run.objects.update(reason="a secret")
    for path in (address, address.replace("seen=", "seen=0")):
        answer = thief.get(path, headers=HTMX)
        assert answer.status_code in (204, 302)
        assert b"a secret" not in answer.content
    caches["polls"].clear()  # LOGIN_S and FRESH_S are over
    for _ in range(2):
        assert thief.get(address, headers=HTMX).status_code == 302


def test_a_session_that_is_remembered_is_not_prolonged_by_polls(page: Client, address: str, moment: None) -> None:
    cache = caches["polls"]
    assert page.get(address, headers=HTMX).status_code == 204
    session = polls._session_key(page.get(address, headers=HTMX).wsgi_request)
    assert cache.get(session)
    cache.set(session, "as it was", 600)
    cache.set(polls._key(page.get(address, headers=HTMX).wsgi_request, "as it was"), True, 600)
    cache.set(session, "as it was", 600)
    for _ in range(3):
        page.get(address, headers=HTMX)
    assert cache.get(session) == "as it was"


def test_a_change_is_shown_when_the_moment_is_over(page: Client, address: str, moment: None) -> None:
    assert page.get(address, headers=HTMX).status_code == 204
    Run.objects.update(reason="a rank is slow")
    assert page.get(address, headers=HTMX).status_code == 204
    caches["polls"].clear()
    assert "a rank is slow" in page.get(address, headers=HTMX).content.decode()
    # Without htmx it is not a poll, and an answer with content is not repeated.
    assert page.get(address, headers=HTMX).status_code == 200


def test_what_has_not_changed_for_long_is_looked_at_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment is a part of the time without changes, between one second and three."""
    remembered: dict[str, float] = {}
    moments: list[float] = []

    class Memory:
        """Notes for how long something is remembered."""

        def get_or_set(self, key: str, value: float, timeout: float) -> float:
            return remembered.setdefault(key, value)

        def touch(self, key: str, timeout: float) -> None:
            assert key in remembered

        def set(self, key: str, value: bool, timeout: float) -> None:
            moments.append(timeout)

    monkeypatch.setattr(polls, "caches", {"polls": Memory()})
    for now in (1000.0, 1002.0, 1008.0, 1060.0):
        polls._remember("a poll", now)
    assert moments == [1.0, 1.0, 2.0, 3.0]
