"""Runs whose processes fall silent: shown after a minute, lost after half an hour, ended at once on proof."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from parlab.lab.models import Run, Stream, TrackedRun
from parlab.tracking import runs
from tests.client.conftest import Script
from tests.client.test_launchers import STEPS, rank_of
from tests.client.test_streams import Sender, output, record, sender

__all__ = ["sender"]


def let_pass(seconds: float) -> None:
    TrackedRun.objects.update(last_report_at=timezone.now() - timedelta(seconds=seconds))
    runs.reap()


@pytest.mark.django_db
def test_a_silent_run_is_shown_as_silent_then_lost_and_its_next_report_brings_it_back(sender: Sender) -> None:
    sender.open()
    let_pass(50)
    assert Run.objects.get().shown_state == "running"
    let_pass(70)
    assert (Run.objects.get().shown_state, Run.objects.get().state) == ("silent", "running")
    sender.send(0, 0, b"")
    assert (Run.objects.get().shown_state, Run.objects.get().reason) == ("running", "")
    let_pass(70)
    let_pass(1_900)
    assert Run.objects.get().shown_state == "lost"
    sender.send(0, 1, record(output(0, 1)))
    assert Run.objects.get().shown_state == "running"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_another_rank_of_the_node_reports_the_death_of_a_rank(environ: dict[str, str], start: Script) -> None:
    from tests.patience import wait_for

    first, second = (start(STEPS, rank_of(environ, rank, 2), "3", "wait") for rank in range(2))
    wait_for(lambda: Stream.objects.filter(committed__gt=0).count() == 2, "both ranks report")
    second.kill()
    second.wait()
    wait_for(lambda: Run.objects.get().state == "failed", "the run has ended")
    assert "killed" in Run.objects.get().reason
    assert first.poll() is None
