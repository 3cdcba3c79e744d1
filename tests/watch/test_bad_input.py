"""Results that are missing, late, corrected, repeated, renamed, or of a replaced node: no alert is raised or lost."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.watch import selectors, services
from parlab.watch.detecting import watch_detect
from parlab.watch.models import Alert, Result, Watch

from .conftest import history, repeats

SLOWER = [*repeats(20), *repeats(10, level=0.11, seed=2)]


@pytest.fixture
def watch(user: User) -> Watch:
    return services.watch_create(name="Elsewhere", user=user, key="bert")


def notes(watch: Watch) -> str:
    rows = selectors.series_rows(watch)
    return "\n".join([*selectors.input_notes(watch), *(note for row in rows for note in row.series.notes)])


def test_gaps_neither_raise_nor_hide_an_alert(watch: Watch) -> None:
    rows = history(watch, SLOWER)
    for row, values in zip(rows[3:28:6], ({}, {"step_time": 0.0}, {"step_time": -1.0}, {}, {"loss": 2.0}), strict=True):
        Result.objects.filter(pk=row.pk).update(values=values)
    (alert,) = watch_detect(watch=watch)
    assert alert.first_bad == rows[20]
    assert "5 of 30 results have no usable value and count for nothing" in notes(watch)


def test_results_out_of_order_neither_raise_nor_hide_an_alert(watch: Watch) -> None:
    rows = history(watch, SLOWER)
    first, second = rows[10].at, rows[25].at
    Result.objects.filter(pk=rows[10].pk).update(at=second + timedelta(seconds=1), values=rows[25].values)
    Result.objects.filter(pk=rows[25].pk).update(at=first + timedelta(seconds=1), values=rows[10].values)
    (alert,) = watch_detect(watch=watch)
    assert alert.first_bad == rows[20]


def test_a_correction_elsewhere_does_not_lose_the_alert(watch: Watch) -> None:
    rows = history(watch, SLOWER)
    (alert,) = watch_detect(watch=watch)
    Result.objects.filter(pk=rows[4].pk).update(values={"step_time": 0.1005})
    assert watch_detect(watch=watch) == []
    alert.refresh_from_db()
    assert (alert.state, alert.first_bad) == (Alert.State.NEW, rows[20])


def test_several_results_of_one_commit_are_repeats(watch: Watch) -> None:
    lines = [f"{1_700_000_000 + 60 * (at // 2)},c{at // 2},{value}" for at, value in enumerate(SLOWER)]
    text = "\n".join(["time,commit,step_time", *lines])
    outcome = services.history_import(watch=watch, text=text)
    assert (outcome.rows, outcome.alerts, watch.results.count()) == (30, 1, 30)
    assert Alert.objects.get().first_bad.commit == "c10"
    assert "15 commits have several results; each counts as a repeat" in notes(watch)
    again = services.history_import(watch=watch, text=text)
    assert (again.alerts, watch.results.count()) == (0, 30)


def test_a_renamed_measure_keeps_the_alerts_of_its_old_name(watch: Watch) -> None:
    history(watch, SLOWER)
    (alert,) = watch_detect(watch=watch)
    history(watch, repeats(20, level=500.0, seed=3), measure="iteration_ms")
    assert watch_detect(watch=watch) == []
    alert.refresh_from_db()
    assert alert.state == Alert.State.NEW
    assert "iteration_ms began then: if it was renamed, its series begins anew" in notes(watch)


def test_a_replaced_node_is_a_new_node_and_no_change(watch: Watch) -> None:
    history(watch, repeats(20), node="n1", hardware="a")
    history(watch, repeats(20, level=0.12, seed=2), node="n1", hardware="b")
    assert watch_detect(watch=watch) == []
    assert "node n1 (hardware 2) is +" in notes(watch)
    history(watch, repeats(10, level=0.135, seed=3), node="n1", hardware="b")
    (alert,) = watch_detect(watch=watch)
    assert alert.largest["size"] == pytest.approx(0.125, abs=0.03)


def test_the_page_shows_why(watch: Watch, page: Client) -> None:
    rows = history(watch, SLOWER)
    Result.objects.filter(pk=rows[3].pk).update(values={})
    watch_detect(watch=watch)
    assert "1 of 30 results have no usable value" in page.get(watch.get_absolute_url()).content.decode()
