"""Items of the inbox: opened where their events happen, once for each cause, and closed when it is gone."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.utils import timezone

from parlab.fleet import services as fleet
from parlab.lab.models import Attempt, Event, Experiment, Finding, InboxItem, Node, Run
from parlab.lab.services import inbox
from parlab.lab.services.attempts import summary_store
from parlab.lab.services.events import findings_judged
from parlab.lab.services.findings import finding_acknowledge, finding_reopen
from parlab.lab.services.members import attempt_report
from parlab.lab.services.runs import run_relaunch
from runners.wire.protocol import Report

pytestmark = pytest.mark.django_db

DIVERGED = {"step": 30, "level": 2.0, "reached": 7.0, "threshold": 3.0, "curve": [[1, 2.0], [30, 7.0]]}


def kinds() -> list[str]:
    return list(InboxItem.objects.open().order_by("pk").values_list("kind", flat=True))


def end(attempt: Attempt, state: Any, reason: str = "") -> None:
    attempt_report(attempt=attempt, report=Report(state=state, reason=reason, at=time.time()))


@pytest.mark.parametrize(("state", "opened"), [("failed", ["run.failed"]), ("oom", ["run.oom"]), ("finished", [])])
def test_a_run_that_went_wrong_needs_a_decision(make_attempt: Any, state: str, opened: list[str]) -> None:
    attempt = make_attempt()
    end(attempt, state, "it broke")
    end(attempt, state, "it broke")
    assert kinds() == opened


def test_a_run_that_fails_again_is_the_same_line_and_its_success_closes_it(
    make_attempt: Callable[..., Attempt], admin: User
) -> None:
    attempt = make_attempt()
    end(attempt, "oom", "out of memory on rank 0: requested 768.0 MiB, free 757.9 MiB, of 2,048.0 MiB")
    for number in (2, 3):
        run_relaunch(run=attempt.run, user=admin)
        again = attempt.run.attempts.get(number=number)
        Attempt.objects.filter(pk=again.pk).update(state="running")
        fleet_member(again, attempt)
        end(again, "oom" if number == 2 else "finished")
        item = InboxItem.objects.get()
        assert (item.count, item.is_open) == (2, number == 2)
    assert (item.done_by, item.done_reason) == (None, "the run has finished")


def fleet_member(again: Attempt, before: Attempt) -> None:
    from tests.conftest import place

    member = before.members.get()
    place(again, member.node, state="running")
    Run.objects.filter(pk=again.run_id).update(state="running")


def test_losses_open_and_close_items_as_the_rules_say(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt()
    summary_store(attempt=attempt, summary={"loss": {"first": 5.0, "last": 7.0, "diverged": DIVERGED}})
    summary_store(
        attempt=attempt, summary={"loss": {"first": 5.0, "last": 7.5, "diverged": {**DIVERGED, "reached": 7.5}}}
    )
    item = InboxItem.objects.get()
    assert (item.kind, item.count, item.data["reached"]) == ("run.diverged", 1, 7.5)
    assert Event.objects.filter(kind="run.diverged").count() == 1
    assert Run.objects.get(pk=attempt.run_id).loss_mark == "diverged"

    summary_store(attempt=attempt, summary={"loss": {"first": 5.0, "last": 2.0}})
    assert (kinds(), Run.objects.get(pk=attempt.run_id).loss_mark) == ([], "")


def test_an_item_that_is_done_stays_done_while_the_same_event_is_reported(
    make_attempt: Callable[..., Attempt], admin: User
) -> None:
    attempt = make_attempt()
    nan = {"loss": {"first": 5.0, "not_finite": 2, "first_not_finite": 3}}
    summary_store(attempt=attempt, summary=nan)
    inbox.item_done(item=InboxItem.objects.get(), user=admin)
    summary_store(attempt=attempt, summary=nan)
    item = InboxItem.objects.get()
    assert (item.done_by, kinds()) == (admin, [])


@pytest.fixture
def make_finding(experiment: Experiment) -> Callable[[str], Finding]:
    def make(where: str, rule: str = "samples-per-second") -> Finding:
        return Finding.objects.create(
            experiment=experiment, rule=rule, severity="error", message=f"two numbers at {where}", where_digest=where,
            numbers={"samples_per_s": 8.0, "expected_samples_per_s": 10.0},
        )  # fmt: skip

    return make


def test_findings_of_one_rule_are_one_line_until_all_are_acknowledged(
    experiment: Experiment, make_finding: Callable[..., Finding], admin: User
) -> None:
    first, second = make_finding("a"), make_finding("b")
    make_finding("a", rule="gpus-of-layout")
    findings_judged(experiment=experiment)
    assert kinds() == ["finding.new", "finding.new"]

    finding_acknowledge(finding=first, user=admin, reason="known")
    item = InboxItem.objects.get(key__endswith="samples-per-second")
    assert (item.is_open, item.data["findings"]) == (True, 1)
    finding_acknowledge(finding=second, user=admin, reason="known")
    item.refresh_from_db()
    assert (item.is_open, item.done_by, item.done_reason) == (False, admin, "acknowledged")


def test_a_new_finding_of_a_rule_that_was_done_opens_a_line(
    experiment: Experiment, make_finding: Callable[..., Finding], admin: User
) -> None:
    make_finding("a")
    findings_judged(experiment=experiment)
    inbox.item_done(item=InboxItem.objects.get(), user=admin)
    findings_judged(experiment=experiment)
    assert kinds() == []

    make_finding("b")
    findings_judged(experiment=experiment)
    assert kinds() == ["finding.new"]


def test_a_finding_that_is_opened_again_is_in_the_inbox_again(
    experiment: Experiment, make_finding: Callable[..., Finding], admin: User
) -> None:
    finding = make_finding("a")
    findings_judged(experiment=experiment)
    finding_acknowledge(finding=finding, user=admin, reason="known")
    finding_reopen(finding=finding)
    assert kinds() == ["finding.new"]


def test_a_silent_node_is_one_line_until_it_reports_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_uptime_s", lambda: 1e9)
    node = Node.objects.create(name="n1", pool="default", last_heartbeat_at=timezone.now() - timedelta(minutes=3))
    fleet.reap()
    fleet.reap()
    item = InboxItem.objects.get()
    assert (item.kind, item.node, item.count) == ("node.lost", node, 1)

    Node.objects.filter(pk=node.pk).update(last_heartbeat_at=timezone.now())
    fleet.reap()
    assert kinds() == []


def test_an_item_is_opened_again_only_if_no_other_of_its_cause_is_open(admin: User) -> None:
    def opened(occurrence: str) -> InboxItem:
        inbox.item_open(kind="node.lost", key="node.lost/1", occurrence=occurrence)
        return InboxItem.objects.get(occurrence=occurrence)

    first = opened("1")
    inbox.item_done(item=first, user=admin)
    opened("2")
    assert not inbox.item_reopen(item=first)
    inbox.item_done(item=InboxItem.objects.get(occurrence="2"), user=admin)
    assert inbox.item_reopen(item=first)


@pytest.mark.database
def test_the_same_cause_is_open_once_for_all_databases() -> None:
    for _ in range(3):
        inbox.item_open(kind="node.lost", key="node.lost/1", occurrence="1")
    assert InboxItem.objects.count() == 1


def test_an_upgrade_fills_the_inbox_with_what_is_open(
    make_attempt: Callable[..., Attempt], make_finding: Callable[..., Finding]
) -> None:
    migration = importlib.import_module("parlab.lab.migrations.0003_inbox")
    attempt = make_attempt()
    summary = {"loss": {"first": 5.0, "not_finite": 2}}
    facts = {"state": "failed", "reason": "it broke", "ended_at": timezone.now(), "summary": summary}
    Run.objects.filter(pk=attempt.run_id).update(**facts)
    finding = make_finding("a")
    migration.mark_runs(apps, None)
    migration.fill(apps, None)

    assert sorted(kinds()) == ["finding.new", "run.failed", "run.nan"]
    assert Run.objects.get(pk=attempt.run_id).loss_mark == "nan"
    before = {item.key: (item.occurrence, item.path) for item in InboxItem.objects.open()}
    findings_judged(experiment=finding.experiment)
    end(attempt, "failed", "it broke")
    assert {item.key: (item.occurrence, item.path) for item in InboxItem.objects.open()} == before
