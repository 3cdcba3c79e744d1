"""Times for emulated compute from a measured run; emulated runs are marked everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from parlab.charts.format import DASH
from parlab.lab.models import Attempt, Config, Experiment, Node, Run
from parlab.lab.selectors.analysis.sweep import run_points
from parlab.lab.services.configs import config_save
from parlab.lab.services.runs import config_launch
from parlab.pages.rows.links import link_rows
from parlab.pages.rows.sweep import sweep_tables
from runners.config import ConfigError
from tests.conftest import SMALL

pytestmark = pytest.mark.django_db
TIMERS = {
    "forward-compute": {"by_rank": {"0": 0.04, "1": 0.08}},
    "backward-compute": {"by_rank": {"0": 0.10, "1": 0.20}},
    "backward-weight": {"by_rank": {"0": 0.02}},
}


def emulated(**more: Any) -> dict[str, Any]:
    train = {**SMALL["train"], "compute": "emulated", **more}
    return {**SMALL, "train": train, "emulation": {"source_run": "pipeline-schedules/1"}}


@pytest.fixture
def source(make_attempt: Callable[..., Attempt]) -> Run:
    run = make_attempt(state="finished").run
    run.summary = {"timers_s": TIMERS}
    run.save()
    return run


def launched(experiment: Experiment, user: User, data: dict[str, Any]) -> Run:
    config = config_save(experiment=experiment, data=data, sweep={}, user=user)
    (run,) = config_launch(config=config, user=user).created
    return run


def test_a_launch_fills_in_the_times_of_the_source_run(source: Run, experiment: Experiment, user: User) -> None:
    assert source.number == 1
    run = launched(experiment, user, emulated())
    # Of four micro batches.
    assert run.resolved["emulation"]["forward_ms"] == pytest.approx([10, 20])
    assert run.resolved["emulation"]["backward_ms"] == pytest.approx([30, 50])
    assert run.resolved["emulation"]["source_run"] == "pipeline-schedules/1"


@pytest.mark.parametrize(
    ("change", "data", "message"),
    [
        ({}, emulated(micro_batch_size=2), "used micro_batch_size 1, not 2; use the same"),
        ({"state": "running"}, emulated(), "is running; use a finished run"),
        ({"summary": {}}, emulated(), "has no timer forward-compute of rank 0"),
        ({"number": 7}, emulated(), "run pipeline-schedules/1 does not exist"),
        ({"resolved": {"train": {"iterations": 3}, "odd": {}}}, emulated(), "has no valid configuration"),
    ],
)
def test_an_unsuitable_source_run_is_rejected_with_the_reason(
    change: dict[str, Any], data: dict[str, Any], message: str, source: Run, experiment: Experiment, user: User
) -> None:
    Run.objects.filter(pk=source.pk).update(**change)
    with pytest.raises(ConfigError, match=message):
        launched(experiment, user, data)


def test_an_emulated_run_is_marked_everywhere(source: Run, experiment: Experiment, user: User) -> None:
    run = launched(experiment, user, emulated())
    Run.objects.filter(pk=run.pk).update(state="finished", samples_per_s=8.0)
    run.refresh_from_db()
    assert run.label.endswith(", emulated")
    browser = Client()
    browser.force_login(user)
    assert ">emulated</span>" in browser.get(run.get_absolute_url()).content.decode()
    assert ">emulated</span>" in browser.get(f"{experiment.get_absolute_url()}table/").content.decode()
    rows = browser.get(f"/api/experiments/{experiment.slug}/runs/").json()["results"]
    assert [row["is_emulated"] for row in rows] == [False, True]
    (point,) = run_points([run])
    assert point.label == "emulated"
    assert "emulated" in point.short_label


def test_network_fields_form_one_axis_of_a_table(make_config: Callable[..., Config]) -> None:
    data = {**emulated(), "network": {"apply": "emulate"}, "emulation": {"forward_ms": 1, "backward_ms": 2}}
    axes = {
        "train.micro_batch_size, emulation.forward_ms": [[1, [1]], [2, [2]]],
        "network.delay_ms, network.bandwidth_gbps": [[0.1, None], [10, 1]],
    }
    points = make_config(data=data, sweep=axes).points()
    (table,) = sweep_tables([], points, "step_time").tables
    assert table.columns == ["1", "2"]
    assert [name for name, _ in table.rows] == ["0.1 ms", "10 ms, 1 Gbit/s"]


def test_a_run_shows_its_configured_and_measured_links(source: Run, user: User) -> None:
    source.resolved["network"] |= {"apply": "emulate", "delay_ms": 10.0}
    source.summary = {"links": [{"source": 0, "target": 1, "round_trip_s": 0.0201}]}
    source.save()
    (row,) = link_rows(source)
    assert row == ("0 to 1", "10.0\u202fms, unlimited rate", "20.1\u202fms", DASH)
    browser = Client()
    browser.force_login(user)
    assert "20.1\u202fms" in browser.get(f"{source.get_absolute_url()}system/").content.decode()


def test_without_a_node_that_emulates_links_the_launch_explains_and_offers_a_simulation(
    experiment: Experiment, user: User
) -> None:
    why = "emulated links require root"
    node = Node.objects.create(name="laptop", hardware={"links": {"why_not": why}}, last_heartbeat_at=timezone.now())
    data = {**SMALL, "network": {"apply": "emulate", "delay_ms": 1}}
    config_save(experiment=experiment, data=data, sweep={}, user=user)
    browser = Client()
    browser.force_login(user)
    page = browser.get(f"{experiment.get_absolute_url()}table/").content.decode()
    assert f"Node laptop cannot emulate links: {why}." in page
    assert 'href="/simulate/">Simulate schedules</a>' in page
    node.hardware = {"links": {"why_not": ""}}
    node.save()
    assert "cannot emulate links" not in browser.get(f"{experiment.get_absolute_url()}table/").content.decode()
