"""Refused requests are logged once a minute at most for each sender, with who and what."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.refused_requests import RefusedRequests

pytestmark = pytest.mark.django_db


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """The lines in the log, with a filter that has logged nothing yet."""
    logger, refusals = logging.getLogger("django.request"), RefusedRequests()
    before = logger.filters[:]
    assert {type(each) for each in before} == {RefusedRequests}
    logger.filters = [refusals, RefusedRequests()]
    yield lambda: [record.getMessage() for record in caplog.records if record.name == "django.request"]
    logger.filters = before


def test_a_flood_of_one_sender_is_one_line_with_who_and_what(lines: Callable[[], list[str]], user: User) -> None:
    nobody = Client(REMOTE_ADDR="10.1.2.3")
    for _ in range(5):
        assert nobody.get("/api/findings/").status_code == 401
    ada = Client(REMOTE_ADDR="10.1.2.4")
    ada.force_login(user)
    for _ in range(5):
        assert ada.get("/api/audit/").status_code == 403
    assert Client(REMOTE_ADDR="10.1.2.5").get("/api/findings/").status_code == 401
    assert lines() == [
        "Unauthorized: /api/findings/, status 401, GET of nobody at 10.1.2.3",
        "Forbidden: /api/audit/, status 403, GET of ada at 10.1.2.4",
        "Unauthorized: /api/findings/, status 401, GET of nobody at 10.1.2.5",
    ]


def test_errors_of_the_server_are_always_logged() -> None:
    record = logging.LogRecord("django.request", logging.ERROR, "", 0, "%s: %s", ("Error", "/"), None)
    record.status_code = 500
    assert [RefusedRequests().filter(record) for _ in range(2)] == [True, True]


def test_a_refused_page_is_one_line_without_a_traceback(
    lines: Callable[[], list[str]], caplog: pytest.LogCaptureFixture, user: User
) -> None:
    ada = Client(REMOTE_ADDR="10.1.2.4")
    ada.force_login(user)
    assert ada.get("/audit/").status_code == 403
    assert lines() == ["Forbidden (Permission denied): /audit/, status 403, GET of ada at 10.1.2.4"]
    assert [record.exc_info for record in caplog.records] == [None]
