"""An experiment whose runs all wait is its question, its sweep and its runs; nothing on its page is blank."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from parlab.lab.models import Attempt, Config

from .conftest import finish
from .test_experiments import EXPERIMENT, TABLE, text


@pytest.fixture
def queued(swept: Config, make_attempt: Callable[..., Attempt]) -> list[Attempt]:
    return [make_attempt(config=swept, point=point.values, state="queued") for point in swept.points()]


def visible_selects(response: Any) -> list[str]:
    """Return the names of the fields that a person can choose from."""
    content = re.sub(r"(?s)<(form|figure)\b[^>]*\shidden\b.*?</\1>", "", response.content.decode())
    assert not re.findall(r"(?s)<select[^>]*>\s*</select>", content)
    return re.findall(r'<select name="(\w+)"', content)


def test_queued_runs_only_leave_no_blank_card_and_nothing_to_choose(page: Client, queued: list[Attempt]) -> None:
    response = page.get(EXPERIMENT)
    shown = text(response)
    assert visible_selects(response) == []
    assert "data-panel=" not in response.content.decode()
    assert shown.count("no run has finished") == 1
    assert "The best value of each row is bold" not in shown
    assert "4 queued" in shown


def test_the_answer_of_queued_runs_compares_nothing(page: Client, queued: list[Attempt]) -> None:
    shown = text(page.get(EXPERIMENT))
    assert "Nothing to compare" not in shown
    assert "No answer yet: 0 of 4 runs are done." in shown
    assert "no node of pool default" in text(page.get(TABLE))


def test_the_choices_come_with_the_first_result(page: Client, queued: list[Attempt]) -> None:
    assert "rows" not in visible_selects(page.get(TABLE))
    match = re.search(r'hx-get="([^"]+)" hx-trigger="every', page.get(EXPERIMENT).content.decode())
    assert match
    finish(queued[0])
    poll = page.get(html.unescape(match.group(1)))
    assert "data-number" in poll.content.decode()
    table = page.get(TABLE)
    assert "The best value of each row is bold" in text(table)
    assert "rows" in visible_selects(table)
