"""The inbox: lines with their evidence, read by each person, done for all, and the bell on every page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import caches
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from parlab.ingest.files.imports import upload_import
from parlab.lab.models import Attempt, AuditEntry, Event, Experiment, InboxItem, InboxReading, Node, Run
from parlab.lab.services.events import loss_judged, node_lost, run_ended
from parlab.lab.services.inbox import item_done, item_open
from parlab.pages.reads.inbox import inbox_rows, inbox_unread
from parlab.pages.rows.inbox import GROUPS, KINDS
from parlab.tracking import runs
from parlab.tracking.point import Point
from runners.wire.protocol import RunState

from .test_experiments import text

pytestmark = pytest.mark.django_db

EVIL = "<script>alert(1)</script>"
NAN_LOG = "".join(
    f"step   {step}/74 | loss     nan (+nanz)| norm    nan (+nanz)| lr 3.00e-04 | 36.58 ms | 9.2% bf16 MFU"
    f" | 112241 tok/s\n"
    for step in (10, 11, 12)
)
HTMX = {"HX-Request": "true"}
CURVE = [[step, 2.0 if step < 6 else 7.0] for step in range(1, 11)]


def open_failure(attempt: Attempt, reason: str = "RuntimeError: it broke", state: Any = RunState.FAILED) -> InboxItem:
    run_ended(run=attempt.run, attempt_number=attempt.number, state=state, reason=reason)
    return InboxItem.objects.latest("pk")


def bell(client: Client) -> int:
    """Return the number at the bell of another page; 0 if it is hidden."""
    shown = re.search(
        r'class="btn icon ghost bell"[^>]*>.*?<i( hidden)?>(\d+)</i>', client.get("/watch/").content.decode()
    )
    assert shown
    return 0 if shown[1] else int(shown[2])


@pytest.fixture
def failed(make_attempt: Callable[..., Attempt]) -> InboxItem:
    return open_failure(make_attempt())


def test_an_imported_log_of_nan_losses_is_not_green_and_is_in_the_inbox(page: Client, admin: User) -> None:
    [made] = upload_import(experiment=None, name="train.log", stream=io.BytesIO(NAN_LOG.encode()), user=admin)
    run = Run.objects.get(experiment=made.experiment)
    assert (run.state, run.has_end, run.loss_mark) == ("finished", False, "nan")

    content = page.get(run.get_absolute_url()).content.decode()
    assert "state-finished" not in content
    assert "log ends" in content
    assert "Loss is NaN" in content

    item = InboxItem.objects.get()
    shown = text(page.get(item.get_absolute_url()))
    assert "Loss is NaN from step 10" in shown
    assert "step 10/74 | loss nan" in shown
    assert f"/sources/{run.source_id}/lines/1-1/" in page.get("/inbox/").content.decode()
    assert Event.objects.filter(kind="run.nan").count() == 1


def test_a_log_that_states_its_end_is_green(page: Client, admin: User) -> None:
    log = (
        "".join(
            f" iteration {n:8d}/       4 | consumed samples: {n * 8} | elapsed time per iteration (ms): 100.0 |"
            f" global batch size: 8 | lm loss: {5 - n / 10:.6E} |\n"
            for n in range(1, 5)
        )
        + "[after training is done] datetime: 2024-01-01 00:00:00\n"
    )
    [made] = upload_import(experiment=None, name="m.log", stream=io.BytesIO(log.encode()), user=admin)
    run = Run.objects.get(experiment=made.experiment)
    assert (run.has_end, run.shown_state) == (
        run.summary["end"] != "unknown",
        "finished" if run.has_end else "unfinished",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_line_a_picture_an_action_and_a_page(
    kind: str, make_attempt: Callable[..., Attempt], page: Client
) -> None:
    run, node = make_attempt().run, Node.objects.create(name="n1")
    loss = {"level": 2.0, "reached": 7.0, "threshold": 3.0, "value": 7.0, "sigmas": 30, "step": 6, "curve": CURVE}
    data = {
        **loss, "count": 1, "not_finite": 3, "first_not_finite": 4, "before": [2.0, 2.1], "reason": "it broke",
        "rule": "samples-per-second", "message": "8 samples/s are stated", "numbers": {"a": 8.0, "expected_a": 10.0},
        "last_heartbeat_at": "2026-01-01T00:00:00+00:00", "values": [1.0, 1.0, 2.0], "change_at": 2, "size": 1.0,
        "measure": "Step time", "commit": "913f99f0", "watch": "nightly",
    }  # fmt: skip
    item_open(kind=kind, key=kind, experiment=run.experiment, run_id=run.pk, node=node, path="/nodes/", data=data)
    [row] = inbox_rows(User.objects.get(username="ada"), 5)
    assert row.kind.group in GROUPS
    assert all((row.icon, row.headline, row.action.label, row.action.url))
    assert 'width="92" height="34"' in row.picture
    assert page.get(row.url).status_code == 200
    assert page.get(row.action.url).status_code in (200, 404)  # a watch and a finding are made up


def test_what_a_file_says_is_escaped(make_attempt: Callable[..., Attempt], page: Client) -> None:
    item = open_failure(make_attempt(), EVIL)
    assert EVIL.encode() not in page.get(item.get_absolute_url()).content


def test_home_offers_the_action_of_each_line(failed: InboxItem, page: Client) -> None:
    home = page.get("/").content.decode()
    assert f'<a class="btn s act" href="{failed.path}">Open run</a>' in home


def test_opening_an_item_reads_it_for_one_person(failed: InboxItem, page: Client, viewer: Client) -> None:
    assert (bell(page), bell(viewer)) == (1, 1)
    page.get("/inbox/")
    assert bell(page) == 1
    page.get(failed.get_absolute_url())
    assert (bell(page), bell(viewer)) == (0, 1)


def test_an_item_that_happens_again_is_unread_again(
    make_attempt: Callable[..., Attempt], page: Client, admin: User
) -> None:
    attempt = make_attempt()
    item = open_failure(attempt)
    page.get(item.get_absolute_url())
    run_ended(run=attempt.run, attempt_number=2, state=RunState.FAILED, reason="again")
    item.refresh_from_db()
    assert (item.count, inbox_unread(admin)) == (2, 1)
    assert "2 times" in text(page.get("/inbox/"))


def test_done_is_for_all_with_the_name_and_can_be_undone(
    failed: InboxItem, page: Client, viewer: Client, admin: User
) -> None:
    answer = page.post(f"/inbox/{failed.pk}/done/", headers=HTMX)
    failed.refresh_from_db()
    assert failed.done_by == admin
    assert "Undo" in answer.content.decode()
    shown = text(viewer.get("/inbox/"))
    assert "Nothing needs you." in shown
    assert "done by ada" in shown
    assert AuditEntry.objects.filter(user=admin).exists()

    again = page.post(f"/inbox/{failed.pk}/reopen/", headers=HTMX)
    assert 'data-press="e"' in again.content.decode()
    failed.refresh_from_db()
    assert failed.is_open


def test_done_shows_the_next_line(make_attempt: Callable[..., Attempt], page: Client) -> None:
    items = [open_failure(make_attempt()) for _ in range(3)]
    answer = page.post(f"/inbox/{items[1].pk}/done/")
    assert answer["Location"] == items[0].get_absolute_url()


def test_viewers_read_and_put_off_but_do_not_close(failed: InboxItem, viewer: Client, page: Client) -> None:
    assert viewer.post(f"/inbox/{failed.pk}/done/").status_code == 403
    assert viewer.post(f"/inbox/{failed.pk}/try/").status_code == 403
    failed.refresh_from_db()
    assert failed.is_open
    assert 'data-press="e"' not in viewer.get("/inbox/").content.decode()
    assert viewer.post(f"/inbox/{failed.pk}/own/snooze/", {"period": "1h"}).status_code == 302
    assert (bell(viewer), bell(page)) == (0, 1)


def test_a_snoozed_item_comes_back(failed: InboxItem, page: Client, admin: User) -> None:
    page.post(f"/inbox/{failed.pk}/own/snooze/", {"period": "1d"})
    assert inbox_rows(admin, 5) == []
    InboxReading.objects.update(snoozed_until=timezone.now() - timedelta(seconds=1))
    assert len(inbox_rows(admin, 5)) == 1
    assert page.post(f"/inbox/{failed.pk}/own/snooze/", {"period": "1y"}).status_code == 400


def test_a_muted_kind_is_hidden_from_one_person_until_it_is_unmuted(
    failed: InboxItem, page: Client, viewer: Client, admin: User
) -> None:
    page.post(f"/inbox/{failed.pk}/own/mute/")
    assert (inbox_rows(admin, 5), bell(viewer)) == ([], 1)
    assert "Unmute" in page.get("/inbox/").content.decode()
    page.post("/inbox/unmute/", {"kind": "run.failed"})
    assert len(inbox_rows(admin, 5)) == 1


def test_groups_divide_the_lines(failed: InboxItem, page: Client) -> None:
    node_lost(node=Node.objects.create(name="n1"), last_heartbeat_at=timezone.now() - timedelta(minutes=2))
    shown = text(page.get("/inbox/?group=Cluster"))
    assert "n1 silent for" in shown
    assert "it broke" not in shown
    assert "All 2 Runs 1 Cluster 1" in shown


def test_items_of_yesterday_are_earlier(failed: InboxItem, page: Client) -> None:
    InboxItem.objects.update(last_at=timezone.now() - timedelta(days=2))
    shown = text(page.get("/inbox/"))
    assert "Earlier" in shown
    assert "Today" not in shown


def test_archived_experiments_and_deleted_runs_need_nobody(failed: InboxItem, admin: User) -> None:
    Run.everything.update(hidden_at=timezone.now())
    assert inbox_rows(admin, 5) == []
    Run.everything.update(hidden_at=None)
    assert len(inbox_rows(admin, 5)) == 1
    Experiment.objects.update(archived_at=timezone.now())
    assert inbox_unread(admin) == 0


def test_a_poll_without_news_is_empty(failed: InboxItem, page: Client) -> None:
    seen = re.search(r"seen=(\w+)", page.get("/inbox/").content.decode())
    assert seen
    assert page.get(f"/inbox/?seen={seen[1]}", headers=HTMX).status_code == 204
    InboxItem.objects.update(count=2, last_at=timezone.now())
    caches["polls"].clear()
    assert page.get(f"/inbox/?seen={seen[1]}", headers=HTMX).status_code == 200


def test_the_bell_costs_one_query(
    failed: InboxItem, admin: User, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(1):
        assert inbox_unread(admin) == 1


def test_a_hundred_lines_cost_as_many_queries_as_one(
    make_attempt: Callable[..., Attempt], admin: User, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    measured = [make_attempt().run for _ in range(5)]
    for run in measured:
        loss_judged(run=run, attempt_number=1, loss={"not_finite": 1, "first_not_finite": 2})
        run_ended(run=run, attempt_number=1, state=RunState.OOM, reason="out of memory")
    with django_assert_num_queries(1):
        assert len(inbox_rows(admin, 100)) == 10


def test_half_the_batch_of_a_run_without_memory_is_tried_with_one_click(
    make_attempt: Callable[..., Attempt], page: Client, admin: User
) -> None:
    attempt = make_attempt()
    run = attempt.run
    run.resolved["train"]["micro_batch_size"] = 2
    run.save()
    item = open_failure(attempt, "requested 768.0 MiB, free 757.9 MiB, of 2,048.0 MiB", RunState.OOM)
    assert "Try micro batch 1" in text(page.get(item.get_absolute_url()))

    page.post(f"/inbox/{item.pk}/try/")
    tried = Run.objects.latest("pk")
    assert (tried.pk != run.pk, tried.resolved["train"]["micro_batch_size"]) == (True, 1)
    item.refresh_from_db()
    assert (item.done_by, item.done_reason) == (admin, f"micro batch 1 is tried in run {tried.number}")


def test_a_batch_of_one_cannot_be_halved(make_attempt: Callable[..., Attempt], page: Client) -> None:
    item = open_failure(make_attempt(), "out of memory", RunState.OOM)
    assert "Try micro batch" not in text(page.get(item.get_absolute_url()))
    page.post(f"/inbox/{item.pk}/try/")
    assert Run.objects.count() == 1


def test_an_item_that_was_closed_says_by_whom(failed: InboxItem, page: Client, admin: User) -> None:
    item_done(item=failed, user=admin)
    assert "done by ada" in text(page.get(failed.get_absolute_url()))


def test_unknown_actions_are_not_found(failed: InboxItem, page: Client) -> None:
    assert page.post(f"/inbox/{failed.pk}/explode/").status_code == 404
    assert page.post(f"/inbox/{failed.pk}/own/explode/").status_code == 404
    assert page.get("/inbox/999/").status_code == 404


@pytest.mark.django_db(transaction=True)
def test_a_reported_run_whose_loss_becomes_nan_is_in_the_inbox(
    experiment: Experiment, page: Client, admin: User
) -> None:
    tracked = runs.tracked_run_start(experiment=experiment, user=admin, name="mine")
    losses = [5.0, 4.0, math.nan, math.nan]
    runs.points_append(tracked=tracked, points=[Point("loss", loss, 1_000 * n, n) for n, loss in enumerate(losses)])
    runs.tracked_run_update(tracked=tracked, status="FINISHED", end_ms=5_000)
    item = InboxItem.objects.get()
    assert (item.kind, item.run_id, item.data["first_not_finite"]) == ("run.nan", tracked.run_id, 2)
    content = page.get(item.get_absolute_url()).content.decode()
    assert "loss is NaN" in content
    assert "state-finished" not in content
