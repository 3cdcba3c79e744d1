"""The page of a chain: its strip of attempts, one log, and the button that ends it; and the same over the API."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Attempt, Run
from parlab.series import log

pytestmark = pytest.mark.database


@pytest.fixture
def chain(make_attempt: Callable[..., Attempt]) -> Run:
    """A running chain: a limit, a preemption and an attempt that runs; gaps of 5 s."""
    first = make_attempt(state="checkpointed")
    run, now = first.run, timezone.now()
    resolved = {**run.resolved, "launcher": {**run.resolved["launcher"], "chain": True}}
    Run.objects.update(resolved=resolved, attempt_number=3, state="running", queued_at=now - timedelta(seconds=210))
    Attempt.objects.create(run=run, number=2, state="preempted", reason="Slurm job 7 on n1 ended as PREEMPTED: why")
    Attempt.objects.create(run=run, number=3, state="running")
    for attempt, (begin, end) in zip(run.attempts.order_by("number"), [(200, 105), (100, 55), (50, 0)], strict=True):
        times = {
            "started_at": now - timedelta(seconds=begin),
            "ended_at": now - timedelta(seconds=end) if end else None,
        }
        Attempt.objects.filter(pk=attempt.pk).update(**times)
        log.append_logs([log.Output(attempt.pk, f"line of {attempt.number}\n".encode(), 0, [], [])])
    run.refresh_from_db()
    return run


def test_the_strip_shows_attempts_and_the_words_beside_it_their_numbers(chain: Run, page: Client) -> None:
    text = page.get(chain.get_absolute_url()).content.decode()
    assert '<svg class="attempts"' in text
    assert text.count("<title>Attempt ") == 3
    assert "Attempt 2: preempted, 45 s, after a gap of 5 s" in text.replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "1 checkpointed" in text
    assert "1 preempted" in text
    assert "Attempt 2: Slurm job 7 on n1 ended as PREEMPTED: why" in text
    assert "End after this attempt" in text
    assert "time-limit" not in text


def test_a_person_ends_the_chain_on_the_page(chain: Run, page: Client) -> None:
    answer = page.post(f"{chain.get_absolute_url()}end-chain/", follow=True)
    assert "Attempt 3 of run 1 is the last one." in answer.content.decode()
    chain.refresh_from_db()
    assert chain.chain_ended_at is not None
    assert 'id="end-chain"' not in answer.content.decode()
    assert "the current attempt is the last one" in answer.content.decode()


def test_the_log_goes_on_over_attempts(chain: Run, page: Client) -> None:
    lines = ["line of 1", "[parlab] attempt 2", "line of 2", "[parlab] attempt 3", "line of 3"]
    text = page.get(f"{chain.get_absolute_url()}log/").content.decode()
    places = [text.index(line) for line in lines]
    assert places == sorted(places)
    download = page.get(f"{chain.get_absolute_url()}log/download/")
    assert b"".join(download.streaming_content).decode().split("\n")[:-1] == lines  # type: ignore[attr-defined]
    alone = page.get(f"{chain.get_absolute_url()}log/?attempt=2").content.decode()
    assert "line of 1" not in alone


def test_the_api_states_the_attempts(chain: Run, page: Client) -> None:
    address = f"/api/experiments/{chain.experiment.slug}/runs/{chain.number}/"
    answer = page.get(address).json()["chain"]
    assert [each["state"] for each in answer["attempts"]] == ["checkpointed", "preempted", "running"]
    assert [round(each["waited_s"]) for each in answer["attempts"]] == [10, 5, 5]
    assert (round(answer["waited_s"]), round(answer["longest_gap_s"])) == (10, 5)
    assert page.post(f"{address}end-chain/").json()["state"] == "running"


def test_a_run_that_is_no_chain_has_no_strip(make_attempt: Callable[..., Attempt], page: Client) -> None:
    run = make_attempt().run
    assert "attempts</b>" not in page.get(run.get_absolute_url()).content.decode()
    answer = page.post(f"/api/experiments/{run.experiment.slug}/runs/{run.number}/end-chain/")
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["message"].startswith("run #1 is no chain")
