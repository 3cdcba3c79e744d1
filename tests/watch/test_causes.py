"""One alert per cause: over watches and nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import Attempt, Event, Run
from parlab.watch import selectors, services
from parlab.watch.detecting import watch_detect
from parlab.watch.models import Alert, Watch

from .conftest import history, repeats


@pytest.fixture
def make_watch(user: User) -> Callable[[str], Watch]:
    return lambda key: services.watch_create(name=f"Watch {key}", user=user, key=key)


def slower(watch: Watch, before: dict[str, Any], after: dict[str, Any], **fields: Any) -> Alert:
    history(watch, repeats(20), environment=before, **fields)
    history(watch, repeats(6, level=0.11, seed=2), environment=after, **fields)
    (alert,) = watch_detect(watch=watch)
    return alert


def test_alerts_of_watches_with_the_same_new_driver_are_one(
    make_watch: Callable[[str], Watch], page: Client, user: User
) -> None:
    first = slower(make_watch("bert"), {"driver": "570"}, {"driver": "580", "hostname": "a"})
    second = slower(make_watch("gpt"), {"driver": "570"}, {"driver": "580", "hostname": "b"}, node="n7")
    other = slower(make_watch("moe"), {"nccl": "2.26"}, {"nccl": "2.27"})
    assert (first.cause, second.leader, other.leader) == ("driver 570 -> 580", first, None)
    assert Event.objects.filter(kind=Event.Kind.WATCH_ALERT).count() == 2
    rows = selectors.week_alerts()
    assert {(row.alert.pk, tuple(alert.pk for alert in row.followers)) for row in rows} == {
        (first.pk, (second.pk,)), (other.pk, ()),
    }  # fmt: skip
    assert "Watch gpt" in page.get("/watch/").content.decode()
    assert "an answer counts for them as well" in page.get(first.get_absolute_url()).content.decode()
    assert "the alert of Watch bert" in page.get(second.get_absolute_url()).content.decode()
    services.alert_answer(alert=first, answer="expect", user=user, reason="driver 580 is required")
    second.refresh_from_db()
    assert (second.state, second.reason) == (Alert.State.EXPECTED, "driver 580 is required")


def test_alerts_of_one_commit_are_one(make_watch: Callable[[str], Watch]) -> None:
    alerts = []
    for key in ("bert", "gpt"):
        watch = make_watch(key)
        history(watch, repeats(20), commit="a" * 40)
        history(watch, repeats(6, level=0.11, seed=2), commit="b" * 40)
        alerts += watch_detect(watch=watch)
    assert alerts[1].leader == alerts[0]
    assert alerts[0].cause == f"commit {'b' * 40}"


def test_without_a_common_cause_each_alert_stands_alone(make_watch: Callable[[str], Watch]) -> None:
    first, second = (slower(make_watch(key), {}, {}) for key in ("bert", "gpt"))
    assert (first.cause, second.leader) == ("", None)


def test_an_alert_shows_where_the_time_of_a_step_changed(
    make_watch: Callable[[str], Watch], make_attempt: Callable[..., Attempt], page: Client
) -> None:
    alert = slower(make_watch("bert"), {}, {})
    for result, backward in ((alert.last_good, 0.05), (alert.first_bad, 0.06)):
        run = make_attempt(state="finished", point={"train.seed": result.pk}).run
        timers = {
            name: {"median": seconds, "min": seconds, "max": seconds}
            for name, seconds in (("forward-compute", 0.03), ("backward-compute", backward))
        }
        summary = {"step_time_s": {"median": 0.05 + backward}, "timers_s": timers}
        Run.objects.filter(pk=run.pk).update(summary=summary, step_time_s=0.05 + backward)
        result.run, result.attempt_number = run, 1
        result.save()
    text = page.get(alert.get_absolute_url()).content.decode()
    assert "where its time changed" in text
    assert "+10.0" in text
