"""The log on the page of a run over several nodes: all ranks by time, one node, one rank; live, and as a file."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from parlab.lab.models import Attempt, Node
from parlab.series.log import append_log
from tests.conftest import place

from .test_experiments import EXPERIMENT, text
from .test_runs import EVIL

RUN = f"{EXPERIMENT}runs/1/"
LOG = f"{RUN}log/"


def content(response: Any) -> str:
    return b"".join(response.streaming_content).decode() if response.streaming else response.content.decode()


@pytest.fixture
def attempt(make_attempt: Callable[..., Attempt]) -> Attempt:
    """Two nodes with two ranks each; rank 3 prints what a page must not pass on."""
    attempt = make_attempt(state="running")
    attempt.run.resolved["cluster"] |= {"nodes": 2, "gpus_per_node": 2}
    attempt.run.save()
    printed = {
        0: [(-1, b"launcher of a\n"), (0, b"zero\n"), (1, b"one\n")],
        1: [(2, b"two\n"), (3, f"{EVIL}\n".encode())],
    }
    for node_rank, name in enumerate("ab"):
        place(attempt, Node.objects.create(name=name), node_rank=node_rank, committed=9)
        output, streams = b"", []
        for rank, data in printed[node_rank]:
            streams.append((len(output), rank, False))
            output += data
        stamps = [(offset, 100.0 + offset + node_rank) for offset, _, _ in streams]
        append_log(attempt.pk, output, node_rank=node_rank, stamps=stamps, streams=streams)
    return attempt


def lines(page: str) -> list[str]:
    [shown] = re.findall(r'<pre id="log".*?>(.*?)</pre>', page, re.DOTALL)
    return html.unescape(shown).splitlines()


@pytest.mark.usefixtures("attempt")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["[node 0] launcher of a", "[rank 2] two", f"[rank 3] {EVIL}", "[rank 0] zero", "[rank 1] one"]),
        ("node=0", ["launcher of a", "[rank 0] zero", "[rank 1] one"]),
        ("rank=2", ["two"]),
        ("rank=3", [EVIL]),
    ],
)
def test_the_address_chooses_all_ranks_a_node_or_a_rank(page: Client, query: str, expected: list[str]) -> None:
    shown = content(page.get(f"{LOG}?{query}"))
    assert lines(shown) == expected
    assert EVIL not in shown
    # The poll of the page and the file have the same choice.
    [poll] = re.findall(r'<pre id="log"[^>]*hx-get="([^"]*)"', shown)
    assert lines(content(page.get(html.unescape(poll).replace("seen=18", "seen=0")))) == expected
    [link] = re.findall(r'class="about">.*?href="([^"]*/download/[^"]*)"', shown)
    response = page.get(html.unescape(link))
    assert content(response) == "".join(f"{line}\n" for line in expected)
    assert response["Content-Type"].startswith("text/plain")
    assert "attachment" in response["Content-Disposition"]


@pytest.mark.usefixtures("attempt")
def test_the_choice_is_offered_by_node_and_rank(page: Client) -> None:
    shown = content(page.get(f"{LOG}?rank=3"))
    assert '<option value="1">b</option>' in shown
    assert re.search(r'<input type="number" name="rank" min="0" max="3"[^>]* value="3"', shown)
    assert "Output of rank 3 on node b." in text(page.get(f"{LOG}?rank=3"))
    region = content(page.get(LOG, {"region": "1", "node": "1", "rank": ""}))
    assert 'id="log-region"' in region
    assert "Download the log of node b" in region


@pytest.mark.usefixtures("attempt")
@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("rank=4", "The run has no rank '4'; use a number from 0 to 3."),
        ("rank=-1", "The run has no rank '-1'"),
        ("node=7", "The run has no node '7'; use a number from 0 to 1."),
        (f"node={EVIL}", "The run has no node"),
    ],
)
def test_a_part_that_does_not_exist_is_named(page: Client, query: str, problem: str) -> None:
    response = page.get(f"{LOG}?{query}")
    assert problem in text(response).replace("&#x27;", "'")
    assert EVIL not in content(response)
    assert page.get(f"{LOG}download/?{query}").status_code == 404


@pytest.mark.usefixtures("attempt")
def test_a_search_stays_within_the_choice(page: Client) -> None:
    assert "1 line with" in text(page.get(f"{LOG}find/", {"find": "two", "rank": "2"}))
    assert "No line contains" in text(page.get(f"{LOG}find/", {"find": "two", "rank": "1"}))


def test_a_run_without_separate_streams_offers_no_ranks(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="finished")
    attempt.run.resolved["cluster"] |= {"nodes": 1, "gpus_per_node": 2}
    attempt.run.save()
    place(attempt, Node.objects.create(name="a"))
    append_log(attempt.pk, b"plain\n")
    shown = content(page.get(f"{LOG}?rank=1"))
    assert lines(shown) == ["plain"]
    assert "is not separated; read the whole log" in shown
    assert 'id="log-choice"' not in shown


def test_the_api_reads_a_node_or_a_rank(page: Client, attempt: Attempt) -> None:
    url = f"/api{RUN}log/"
    assert content(page.get(url, {"rank": "1"})) == "one\n"
    assert content(page.get(url, {"node": "1", "from": "4"})) == f"{EVIL}\n"
    whole = content(page.get(url))
    assert whole == f"launcher of a\ntwo\n{EVIL}\nzero\none\n"
    assert page.get(url, {"from": "14"})["Parlab-Next"] == str(len(whole))
    error = page.get(url, {"rank": "9"}).json()["errors"][0]
    assert (error["field"], error["value"], error["remedy"]) == ("rank", "9", "use a number from 0 to 3")
