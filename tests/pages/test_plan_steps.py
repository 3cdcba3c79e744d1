"""Predict, Search and Try are steps of one plan; two layouts stand side by side."""

from __future__ import annotations

import html
import re
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pytest
from django.test import Client

from parlab.pages.reads.planning.carried import carried_plan, simulated_query
from parlab.pages.reads.planning.versus import other_question, versus_text
from parlab.planner.job.cluster import device
from parlab.planner.requests.answer import outline
from parlab.planner.requests.request import PlanRequest
from parlab.planner.schedule import Scenario, answer

pytestmark = pytest.mark.usefixtures("catalogue")

PLAN: dict[str, str | int] = {
    "layers": 24, "hidden": 2048, "heads": 16, "global_batch": 256, "micro_batch": 4, "tensor_parallel": 1,
    "pipeline_parallel": 4, "nodes": 2, "tokens_billion": 10,
}  # fmt: skip


def steps(client: Client, address: str) -> dict[str, str]:
    """Read the steps of Plan: title -> address."""
    bar = client.get(address).content.decode().split('<nav class="among"')[1].split("</nav>")[0]
    return {title: html.unescape(url) for url, title in re.findall(r'<a href="([^"]*)"[^>]*>([^<]+)</a>', bar)}


def test_the_steps_hand_a_plan_on(viewer: Client, page: Client) -> None:
    own = steps(viewer, f"/plan/?{urlencode(PLAN)}")
    assert list(own) == ["Predict", "Search", "Try", "Training", "Simulate"]
    for step, action in (("Search", "Sweep its best layouts"), ("Try", "Test with a run")):
        text = html.unescape(page.get(own[step]).content.decode())
        assert "Own sizes on 16 A100" in text
        assert action in text
        assert f"/plan/?{urlencode(PLAN)}" in text
        assert steps(page, own[step])["Predict"] == f"/plan/?{urlencode(PLAN)}"


def test_without_a_plan_the_steps_are_plain_and_nonsense_is_no_plan(viewer: Client) -> None:
    assert steps(viewer, "/tune/") == {"Predict": "/plan/", "Search": "/tune/", "Try": "/questions/"}
    assert "Plan:" not in viewer.get(f"/tune/?plan={quote('layers=many&x=<script>')}").content.decode()
    assert carried_plan("") is None


def test_only_the_pages_of_plan_offer_training_and_simulation(page: Client) -> None:
    # A page of Settings that no tab leads to.
    assert "What is predicted" not in page.get("/projects/shared/").content.decode()
    assert "What is predicted" in page.get(f"/plan/?{urlencode(PLAN)}").content.decode()


def test_simulate_opens_with_the_pipeline_of_the_plan(viewer: Client) -> None:
    address = steps(viewer, f"/plan/?{urlencode(PLAN)}")["Simulate"]
    response = viewer.get(address)
    asked = parse_qs(urlsplit(response.headers["Location"]).query)
    prediction = outline(PlanRequest.model_validate(PLAN), device("A100 SXM4 80 GB")).prediction
    assert asked["stages"] == ["4"]
    assert asked["micro_batches"] == [str(prediction.job.num_micro_batches)]
    scenario = Scenario.model_validate({**{k: v[0] for k, v in parse_qs(simulated_query(prediction)).items()},
                                        "schedules": ["1f1b"]})  # fmt: skip
    simulated = answer(scenario).outcomes[0].simulation.iteration_s
    # Without gradients between replicas and overhead, which only the plan has.
    parts = prediction.parts
    assert simulated == pytest.approx(prediction.iteration_s - parts.data_s - parts.other_s, rel=0.1)
    assert "Own sizes on 16" in viewer.get(response.headers["Location"]).content.decode()


def test_a_plan_without_stages_has_no_pipeline_to_simulate(viewer: Client) -> None:
    address = steps(viewer, f"/plan/?{urlencode(PLAN | {'pipeline_parallel': 1})}")["Simulate"]
    assert viewer.get(address).status_code == 200


def test_a_layout_of_the_table_is_compared_with_the_plan(viewer: Client) -> None:
    table = viewer.get("/plan/layouts/", PLAN).content.decode()
    addresses = [html.unescape(found) for found in re.findall(r'hx-get="(/plan/versus/[^"]+)"', table)]
    assert addresses
    shown = viewer.get(addresses[0]).content.decode()
    assert "time a step" in shown
    assert shown.count('class="partsbar"') == 4
    assert "of such predictions" in shown
    # The address of the page keeps the comparison.
    query = urlsplit(addresses[0]).query
    assert 'hx-get="/plan/versus/?' in viewer.get(f"/plan/?{query}").content.decode()
    other = re.search(r'href="/plan/\?([^"]+)">Make B the plan', shown)
    assert other
    assert "versus" not in other[1]


def test_a_layout_is_written_into_an_address_and_read_again() -> None:
    question = PlanRequest.model_validate(PLAN)
    other = question.model_copy(update={"pipeline_parallel": 2, "recompute": "full"})
    assert other_question(question, versus_text(other.job())).job() == other.job()


@pytest.mark.parametrize("text", ["", "nonsense", "layers:4", "tensor_parallel:<b>", "pipeline_parallel:4"])
def test_what_is_no_layout_is_named(viewer: Client, text: str) -> None:
    shown = viewer.get("/plan/versus/", PLAN | {"versus": text})
    assert shown.status_code == 200
    assert 'role="alert"' in shown.content.decode()
    assert "<b>" not in shown.content.decode().split("alert")[1].split("</p>")[0]
