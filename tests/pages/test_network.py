"""The page of a network sweep."""

from __future__ import annotations

import csv

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.demo.content import published_three_nodes
from parlab.lab.models import Experiment, Run

CELL = {"schedule": "1f1b", "micro_batch_size": "1", "network": "10 ms, 1 Gbit/s"}
ADDRESS = "/experiments/gpt-3-small-on-three-nodes/compare/networks/"


@pytest.fixture
def published(user: User) -> None:
    published_three_nodes(user)


def test_the_published_tables_stand_beside_simulation_and_bound(viewer: Client, published: None) -> None:
    text = viewer.get(ADDRESS).content.decode()
    assert text.count('<table class="sweep networks') == 3
    assert "delay 10ms bandwidth 1Gbps" in text
    for number in ("11.21", "11.35", "8.38", "6.79", "6.63"):
        assert f">{number}<" in text
    assert "limited by outgoing link of rank 1" in text
    assert "/simulate/?stages=3&amp;micro_batches=64" in text


def test_the_experiment_leads_to_it_where_there_are_networks_to_compare(
    viewer: Client, published: None, experiment: Experiment
) -> None:
    assert ADDRESS in viewer.get("/experiments/gpt-3-small-on-three-nodes/").content.decode()
    assert "/compare/networks/" not in viewer.get(experiment.get_absolute_url()).content.decode()


def test_an_experiment_without_pipelines_says_what_the_page_needs(viewer: Client, experiment: Experiment) -> None:
    text = viewer.get(f"{experiment.get_absolute_url()}compare/networks/").content.decode()
    assert "No pipeline runs" in text
    assert "/simulate/" in text


@pytest.mark.parametrize(("source", "ratio"), [("measured", 1.714), ("simulated", 1.743)])
def test_the_heatmap_is_that_of_the_source_asked_for(
    viewer: Client, published: None, source: str, ratio: float
) -> None:
    drawing = viewer.get(f"{ADDRESS}slowdown.json?source={source}").json()
    table = viewer.get(f"{ADDRESS}slowdown.csv?source={source}").content.decode()
    assert table.startswith("source,schedule,micro_batch_size,network,slowdown,iteration_s")
    rows = list(csv.DictReader(table.splitlines()))
    (cell,) = [row for row in rows if CELL.items() <= row.items()]
    assert float(cell["slowdown"]) == pytest.approx(ratio, abs=0.001)
    assert f"{ratio:.2f}" in drawing["figure"]["data"][0]["text"]


@pytest.mark.slow
def test_another_experiment_can_stand_beside(viewer: Client, published: None, experiment: Experiment) -> None:
    Run.objects.filter(experiment__slug="gpt-3-small-on-three-nodes", number__gt=12).update(experiment=experiment)
    assert "1f1b</h2>" not in viewer.get(ADDRESS).content.decode()
    assert "1f1b</h2>" in viewer.get(f"{ADDRESS}?with={experiment.slug}").content.decode()


def test_the_page_takes_few_queries_however_many_runs(
    viewer: Client, published: None, django_assert_max_num_queries: object
) -> None:
    with django_assert_max_num_queries(13):  # type: ignore[operator]
        viewer.get(ADDRESS)


def test_earlier_addresses_lead_to_the_comparison(viewer: Client, published: None) -> None:
    for earlier, now in (
        (ADDRESS.replace("compare/networks", "network"), ADDRESS),
        ("/timelines/", "/compare/timelines/"),
        ("/timelines/figure.json", "/compare/timelines/figure.json"),
    ):
        answer = viewer.get(f"{earlier}?a=1")
        assert (answer.status_code, answer.headers["Location"]) == (308, f"{now}?a=1")
