"""Watches: results of runs, alerts per cause, answers, notifications."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from parlab.lab.models import Attempt, Config, Event, Experiment, InboxItem, Run, RunTag, TrackedRun
from parlab.lab.services.attempts import summary_store
from parlab.notify.topics import kinds_of
from parlab.pages.reads.inbox_evidence import evidence_of
from parlab.watch import selectors, services
from parlab.watch.detecting import watch_detect
from parlab.watch.models import Alert, Result, Watch

from .conftest import history, repeats

Results = Callable[..., list[Attempt]]


@pytest.fixture
def watch(watched: Config, user: User) -> Watch:
    return services.watch_create(name="Nightly", user=user, config=watched)


@pytest.fixture
def keyed(user: User) -> Watch:
    return services.watch_create(name="Elsewhere", user=user, key="bert")


def test_slower_runs_of_the_configuration_are_one_alert_with_what_changed(watch: Watch, make_results: Results) -> None:
    make_results(repeats(20))
    assert services.watch_refresh(watch=watch) == []
    make_results(repeats(5, level=0.108, seed=2), driver="580", shell="attempt 21")
    (alert,) = services.watch_refresh(watch=watch)
    assert {part["measure"] for part in alert.parts} == {"step_time", "throughput"}
    assert alert.is_worse
    assert (alert.first_bad.attempt_number, alert.last_good.attempt_number) == (21, 20)
    assert [(row.name, row.before, row.after) for row in selectors.between(alert).environment] == [
        ("driver", "570", "580")
    ]
    assert services.watch_refresh(watch=watch) == []
    assert Alert.objects.count() == 1


def test_an_alert_is_an_event_for_those_who_subscribe(watch: Watch, make_results: Results) -> None:
    make_results([*repeats(20), *repeats(5, level=0.11, seed=2)])
    services.watch_refresh(watch=watch)
    event = Event.objects.get(kind=Event.Kind.WATCH_ALERT)
    assert event.kind in kinds_of(["watch"])
    assert event.text.startswith("Nightly: Step time +")
    assert event.path == Alert.objects.get().get_absolute_url()
    assert event.data["first_bad"]["commit"] == ""


def test_results_are_collected_once_and_follow_corrections(watch: Watch, make_results: Results) -> None:
    attempts = make_results([*repeats(20), *repeats(6, level=0.12, seed=2)])
    services.watch_refresh(watch=watch)
    assert watch.results.count() == 26
    for attempt, value in zip(attempts[20:], repeats(6, seed=2), strict=True):
        summary_store(attempt=attempt, summary={"step_time_s": {"median": value}})
    services.watch_refresh(watch=watch)
    alert = Alert.objects.get()
    assert alert.state == Alert.State.WRONG
    assert "corrected" in alert.reason
    assert watch.results.count() == 26


def test_results_out_of_order_give_the_same_alert(keyed: Watch) -> None:
    rows = history(keyed, [*repeats(20), *repeats(10, level=0.11, seed=2)])
    late = rows[10]
    Result.objects.filter(pk=late.pk).delete()
    watch_detect(watch=keyed)
    before = Alert.objects.get()
    late.pk = None
    late.save()
    assert watch_detect(watch=keyed) == []
    assert Alert.objects.get().first_bad == before.first_bad


def test_a_sweep_that_gets_slower_is_one_alert(keyed: Watch) -> None:
    for point in ("micro_batch_size 1", "micro_batch_size 2"):
        history(keyed, [*repeats(20), *repeats(5, level=0.11, seed=2)], series=point)
    # Both points were measured in turn.
    rows = list(Result.objects.filter(watch=keyed))
    for at, row in enumerate(sorted(rows, key=lambda row: (int(row.line) % 25, row.series))):
        Result.objects.filter(pk=row.pk).update(at=rows[0].at + timedelta(minutes=at))
    (alert,) = watch_detect(watch=keyed)
    assert {part["series"] for part in alert.parts} == {"micro_batch_size 1", "micro_batch_size 2"}


def test_a_return_to_the_old_level_fixes_the_alert_and_is_no_new_one(keyed: Watch) -> None:
    history(keyed, [*repeats(20), *repeats(10, level=0.11, seed=2)])
    watch_detect(watch=keyed)
    history(keyed, repeats(8, seed=3))
    assert watch_detect(watch=keyed) == []
    alert = Alert.objects.get()
    assert alert.state == Alert.State.FIXED
    assert "fixed: step time \N{MINUS SIGN}" in alert.reason
    assert watch_detect(watch=keyed) == []


def test_an_accepted_change_is_the_new_baseline(keyed: Watch, user: User) -> None:
    history(keyed, [*repeats(20), *repeats(10, level=0.11, seed=2)])
    (alert,) = watch_detect(watch=keyed)
    services.alert_answer(alert=alert, answer="expect", user=user, reason="new data loader")
    history(keyed, repeats(20, level=0.11, seed=3))
    assert watch_detect(watch=keyed) == []
    history(keyed, repeats(6, level=0.12, seed=4))
    (second,) = watch_detect(watch=keyed)
    assert second.largest["size"] == pytest.approx(0.09, abs=0.02)
    assert Alert.objects.get(pk=alert.pk).state == Alert.State.EXPECTED


def test_a_node_that_gets_slower_is_an_alert_of_its_own(keyed: Watch) -> None:
    for at, value in enumerate(repeats(80)):
        slow = at >= 50 and at % 2
        history(keyed, [value * (1.1 if slow else 1.0)], node=f"n{at % 2}")
    (alert,) = watch_detect(watch=keyed)
    assert (alert.kind, alert.node) == ("node", "n1")
    assert "on node n1" in selectors.alert_rows([alert])[0].text


def test_answers_need_a_reason(keyed: Watch, user: User) -> None:
    history(keyed, [*repeats(20), *repeats(10, level=0.11, seed=2)])
    (alert,) = watch_detect(watch=keyed)
    with pytest.raises(ValueError, match="reason is empty"):
        services.alert_answer(alert=alert, answer="acknowledge", user=user)
    services.alert_answer(alert=alert, answer="acknowledge", user=user, reason="ticket 7")
    assert (alert.state, alert.changed_by) == (Alert.State.ACKNOWLEDGED, user)
    services.alert_answer(alert=alert, answer="reopen", user=user)
    assert alert.state == Alert.State.NEW
    with pytest.raises(ValueError, match="unknown answer 'delete'"):
        services.alert_answer(alert=alert, answer="delete", user=user, reason="no")


def open_items() -> list[InboxItem]:
    return list(InboxItem.objects.open())


def test_a_change_for_the_worse_is_in_the_inbox_until_it_is_answered(keyed: Watch, user: User) -> None:
    history(keyed, [*repeats(20), *repeats(10, level=0.11, seed=2)])
    (alert,) = watch_detect(watch=keyed)
    (item,) = open_items()
    assert (item.kind, item.path) == ("watch.alert", alert.get_absolute_url())
    assert evidence_of(item)["picture_unit"] == "ms"
    assert item.data["values"][: item.data["change_at"]] == pytest.approx([0.1] * 20, rel=0.1)
    assert item.data["size"] == pytest.approx(0.1, abs=0.02)

    services.alert_answer(alert=alert, answer="acknowledge", user=user, reason="ticket 7")
    item.refresh_from_db()
    assert (item.done_by, item.done_reason) == (user, "acknowledged: ticket 7")
    services.alert_answer(alert=alert, answer="reopen", user=user)
    assert open_items() == [item]


def test_a_change_that_is_undone_and_a_watch_that_is_deleted_leave_the_inbox(keyed: Watch) -> None:
    history(keyed, [*repeats(20), *repeats(12, level=0.11, seed=2)])
    watch_detect(watch=keyed)
    assert len(open_items()) == 1
    history(keyed, repeats(12, seed=3))
    watch_detect(watch=keyed)
    assert open_items() == []

    history(keyed, repeats(12, level=0.12, seed=4))
    watch_detect(watch=keyed)
    assert len(open_items()) == 1
    services.watch_delete(watch=keyed)
    assert open_items() == []


def test_a_change_for_the_better_needs_no_decision(keyed: Watch) -> None:
    history(keyed, [*repeats(20), *repeats(10, level=0.09, seed=2)])
    assert len(watch_detect(watch=keyed)) == 1
    assert open_items() == []


def test_reported_and_imported_runs_with_the_key_belong_to_the_watch(
    keyed: Watch, make_attempt: Callable[..., Attempt], experiment: Experiment
) -> None:
    summary = {"step_time_s": {"median": 0.2}}
    reported, imported, other = (make_attempt(state="finished").run for _ in range(3))
    Run.objects.filter(pk__in=[reported.pk, other.pk]).update(origin=Run.Origin.REPORTED, summary=summary)
    Run.objects.filter(pk=imported.pk).update(origin=Run.Origin.IMPORTED, summary=summary, label="bert")
    for run, value in ((reported, "bert"), (other, "gpt")):
        tracked = TrackedRun.objects.create(run=run, uuid=str(run.pk), last_report_at=run.queued_at)
        RunTag.objects.create(tracked=tracked, key="parlab.watch", value=value)
        RunTag.objects.create(tracked=tracked, key="mlflow.source.git.commit", value="abc")
    services.watch_refresh(watch=keyed)
    assert {(row.run_id, row.commit) for row in keyed.results.all()} == {(reported.pk, "abc"), (imported.pk, "")}


def test_a_renamed_measure_raises_nothing_and_is_explained(keyed: Watch) -> None:
    history(keyed, repeats(20))
    history(keyed, repeats(20, level=500.0, seed=2), measure="iteration_ms")
    assert watch_detect(watch=keyed) == []
    (note,) = selectors.missing_measures(keyed)
    assert note.startswith("step_time is missing since ")
    assert "iteration_ms began then" in note


def test_the_runs_of_an_experiment_are_a_history(
    keyed: Watch, make_attempt: Callable[..., Attempt], watched: Config, experiment: Experiment
) -> None:
    for at, value in enumerate([*repeats(15), *repeats(5, level=0.12, seed=2)]):
        run = make_attempt(state="finished", config=watched, point={"train.seed": at}).run
        Run.objects.filter(pk=run.pk).update(
            summary={"step_time_s": {"median": value}}, ended_at=run.queued_at + timedelta(minutes=at)
        )
    outcome = services.experiment_import(watch=keyed, experiment=experiment)
    assert (outcome.rows, outcome.alerts) == (20, 1)
    with pytest.raises(ValueError, match="has no finished run that the watch lacks"):
        services.experiment_import(watch=keyed, experiment=experiment)


HISTORIES = {
    "csv": "time,commit,node,step_time,note\n"
    + "\n".join(f"2026-01-{day:02d}T00:00:00Z,c{day},n1,{0.1 if day < 15 else 0.12},x" for day in range(1, 26)),
    "otava": str(
        [
            {"timestamp": 1_700_000_000 + 60 * at,
             "metrics": [{"name": "step_time", "value": 0.1 if at < 14 else 0.12}],
             "attributes": {"commit": f"c{at}", "branch": "main"}}
            for at in range(25)
        ]
    ).replace("'", '"'),
    "perfherder": str(
        [
            {"name": "step_time", "platform": "linux64", "lower_is_better": 1,
             "data": [{"push_timestamp": f"2026-01-{at + 1:02d}T00:00:00", "value": 0.1 if at < 14 else 0.12,
                       "revision": f"c{at}", "id": at} for at in range(25)]}
        ]
    ).replace("'", '"'),
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_histories_are_imported_once_and_searched(keyed: Watch, name: str) -> None:
    outcome = services.history_import(watch=keyed, text=HISTORIES[name])
    assert (outcome.rows, outcome.alerts, outcome.problems) == (25, 1, [])
    assert Alert.objects.get().first_bad.commit in ("c14", "c15")
    again = services.history_import(watch=keyed, text=HISTORIES[name])
    assert (again.rows, again.alerts, keyed.results.count()) == (25, 0, 25)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "{", "[]", '{"a": [1]}', "time,x\nnever,1\n", '[{"metrics": 1}]'])
def test_a_file_without_results_is_refused_with_the_remedy(keyed: Watch, text: str) -> None:
    with pytest.raises(ValueError, match=r"use CSV|export it again"):
        services.history_import(watch=keyed, text=text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": " "}, "name '' is empty"),
        ({"name": "x"}, "neither a configuration nor a key"),
        ({"name": "x", "key": "k", "schedule": "hourly"}, "choose a configuration"),
        ({"name": "x", "key": "k", "repeats": 0}, "repeats 0 is not between"),
    ],
)
def test_an_invalid_watch_is_refused(user: User, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        services.watch_create(user=user, **fields)


def test_a_key_belongs_to_one_watch(keyed: Watch, user: User) -> None:
    with pytest.raises(ValueError, match="belongs to another watch"):
        services.watch_create(name="Second", user=user, key="bert")
