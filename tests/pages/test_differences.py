"""The difference between two runs."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import Attempt, Config, Run
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.runs import config_launch, run_relaunch

from .conftest import SWEEP, finish
from .test_experiments import EXPERIMENT, text

pytestmark = pytest.mark.django_db

EVIL = "<script>alert(1)</script>"


def url(number: int, **query: str) -> str:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    return f"{EXPERIMENT}runs/{number}/difference/?{asked}"


def rows(response: Any, table: str) -> dict[str, list[str]]:
    """Read a table by its label: heading of a row -> its cells."""
    table_html = re.search(rf'aria-label="{table}">\s*<table.*?</table>', response.content.decode(), re.S)
    assert table_html is not None, f"no table {table}"
    lines = re.findall(r"<tr>(.*?)</tr>", table_html[0].split("<tbody>", 1)[1], re.S)
    cells = [
        [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in re.findall(r"<t[hd].*?</t[hd]>", line, re.S)]
        for line in lines
    ]
    return {line[0]: line[1:] for line in cells}


def matches(response: Any) -> list[str]:
    """List what a search offers to compare with: the values of `with`."""
    part = response.content.decode().partition('class="found runs-found"')[2].partition("</ul>")[0]
    return re.findall(r'[?;&]with=([^"&]+)"', html.unescape(part))


def test_a_run_is_compared_with_the_best_of_its_sweep_by_default(page: Client, four_runs: list[Run]) -> None:
    response = page.get(url(1))
    assert rows(response, "Configuration")["Schedule"] == ["gpipe", "1f1b"]
    assert "Micro batch size" not in rows(response, "Configuration")
    assert rows(response, "Results")["Step time (ms)"] == ["500", "200", "\N{MINUS SIGN}60.0 %"]
    assert "identical fields" in text(response)
    assert "Next best of the sweep: run 4" in text(page.get(url(3)))


def test_a_link_carries_the_choice(page: Client, four_runs: list[Run]) -> None:
    assert "Run 1 to Run 2" in text(page.get(url(1, **{"with": "2"})))
    assert "Run 1 to Run 2" in text(page.get(url(1, **{"with": "pipeline-schedules/2"})))


@pytest.mark.parametrize("address", ["77", "no-such/1", "attempt-9", "v9", EVIL, "1/2/3", "²", "9" * 40])
def test_a_link_to_an_unknown_run_reports_it(page: Client, four_runs: list[Run], address: str) -> None:
    response = page.get(url(1), {"with": address})
    assert response.status_code == 200
    assert "to compare with run 1" in text(response)
    assert EVIL not in response.content.decode()


def test_a_run_without_any_other_says_how_to_choose_one(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    make_attempt()
    assert "No other run of this sweep has finished" in text(page.get(url(1)))


def test_the_attempt_before_has_its_own_numbers_and_its_own_machine(
    page: Client, admin: User, make_attempt: Callable[..., Attempt]
) -> None:
    first = make_attempt()
    facts = {"hostname": "old", "gpu": EVIL, "variables": {"PARLAB_RUN": "1/1"}}
    Attempt.objects.filter(pk=first.pk).update(environment=facts)
    run = finish(first, 0.5)
    second = run_relaunch(run=run, user=admin)
    facts = {"hostname": "new", "gpu": EVIL, "variables": {"PARLAB_RUN": "1/2"}}
    Attempt.objects.filter(pk=second.pk).update(environment=facts)
    finish(second, 0.25)
    response = page.get(url(1))
    assert "Previous attempt: 1" in text(response)
    assert rows(response, "Environment") == {"Host": ["new", "old"]}
    assert rows(response, "Results")["Step time (ms)"] == ["250", "500", "+100 %"]
    assert "No differences: both have the same configuration." in text(response)
    assert "Attempt 1 of run 1 to Run 1" in text(page.get(url(1, attempt="1", **{"with": "1"})))


def test_the_version_before_is_offered_by_the_same_point(
    page: Client, swept: Config, four_runs: list[Run], make_config: Callable[..., Config], user: User
) -> None:
    data = {**swept.data, "train": {**swept.data["train"], "iterations": 9}}
    newer = make_config(data=data, sweep=SWEEP)
    runs = config_launch(config=newer, user=user).created
    response = page.get(url(runs[0].number))
    assert "Previous version: 1, run 1" in text(response)
    assert rows(response, "Configuration")["Iterations"] == ["9", "4"]
    four_runs[0].delete()
    planned = page.get(url(runs[0].number, **{"with": "v1"}))
    assert "Previous version: 1, not run" in text(planned)
    assert rows(planned, "Configuration")["Iterations"] == ["9", "4"]
    assert "Results" not in text(planned)


def test_runs_are_searched_by_words_numbers_and_terms(page: Client, four_runs: list[Run], user: User) -> None:
    for run, label in zip(four_runs, ("gpipe, size 1", "gpipe, size 21", "1f1b, size 1", EVIL), strict=True):
        Run.objects.filter(pk=run.pk).update(label=label)
    other = experiment_create(name="Elsewhere 2", owner=user)
    config = config_save(experiment=other, data=four_runs[0].config.data, sweep={}, user=user)
    config_launch(config=config, user=user)
    assert matches(page.get(url(1, q="gpipe"))) == ["2"]
    assert matches(page.get(url(1, q="size+1"))) == ["3"]
    assert matches(page.get(url(2, q="%233"))) == ["3"]
    assert matches(page.get(url(1, q="schedule:gpipe+state:finished"))) == ["2"]
    assert matches(page.get(url(1, q="elsewhere"))) == ["elsewhere-2/1"]
    hostile = page.get(url(1), {"q": EVIL})
    assert matches(hostile) == ["4"]
    assert EVIL not in hostile.content.decode()
    nonsense = page.get(url(1, q="stat:oom"))
    assert "did you mean state?" in text(nonsense)
    assert "No other run has" in text(page.get(url(1, q="xyzzy")))


def test_a_search_answers_with_the_list_alone(page: Client, four_runs: list[Run]) -> None:
    part = page.get(url(1, q="1f1b"), headers={"HX-Request": "true"})
    assert "<html" not in part.content.decode()


def test_the_page_of_a_run_leads_there(page: Client, four_runs: list[Run]) -> None:
    assert f'href="{EXPERIMENT}runs/1/difference/"' in page.get(f"{EXPERIMENT}runs/1/").content.decode()


def test_a_difference_takes_few_queries(page: Client, four_runs: list[Run], django_assert_num_queries: Any) -> None:
    # session, person, run, attempt, best two, version before, the other run and its attempt
    with django_assert_num_queries(16):
        page.get(url(1))
