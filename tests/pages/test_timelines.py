"""Timelines of runs as measured and as simulated, any two of them; and the schedule that is picked from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils.html import escape

from parlab.demo.content import published_three_nodes
from parlab.lab.models import Attempt, Config, Experiment, Run
from parlab.series import operations
from parlab.series.operations import Operation, Printed

from .conftest import finish

PUBLISHED = "gpt-3-small-on-three-nodes"
TIMERS = {
    "forward-compute": {"by_rank": {"0": 0.04, "1": 0.04}},
    "backward-compute": {"by_rank": {"0": 0.08, "1": 0.08}},
    "optimizer": {"by_rank": {"0": 0.01, "1": 0.01}},
}


def printed(begin: float = 0.0) -> Printed:
    passes = [
        Operation("forward-compute", 0, begin, begin + 0.1),
        Operation("backward-recv", 0, begin + 0.1, begin + 0.3),
        Operation("backward-compute", 0, begin + 0.3, begin + 0.5),
        Operation("optimizer", -1, begin + 0.5, begin + 0.6),
    ]
    return Printed(passes, is_begin=True)


@pytest.fixture
def run(make_attempt: Callable[..., Attempt], experiment: Experiment) -> Run:
    """A finished run of two stages, whose steps 1 (warm-up), 2 and 3 have recorded operations."""
    attempt = make_attempt()
    for step in (1, 2, 3):
        operations.append(attempt.pk, {(step, rank): printed(rank / 10) for rank in range(2)})
    run = finish(attempt)
    run.summary["timers_s"] = TIMERS
    run.save()
    return run


@pytest.fixture
def published(user: User) -> None:
    published_three_nodes(user)


def draw(client: Client, a: str = "", b: str = "") -> dict[str, Any]:
    answer: dict[str, Any] = client.get("/compare/timelines/figure.json", {"a": a, "b": b}).json()
    return answer


def titles(answer: dict[str, Any]) -> list[str]:
    return [text["text"] for text in answer["figure"]["layout"]["annotations"]]


def test_a_run_shows_what_it_did_above_what_the_simulation_says(viewer: Client, run: Run) -> None:
    text = viewer.get(f"{run.get_absolute_url()}time/").content.decode()
    assert "/compare/timelines/?a=pipeline-schedules%2F1&amp;b=simulated%3Apipeline-schedules%2F1" in text
    answer = draw(viewer, "pipeline-schedules/1", "simulated:pipeline-schedules/1")
    assert [title.partition(": ")[2] for title in titles(answer)] == [
        "1f1b, measured, step 3 of run 1 of Pipeline schedules",
        "1f1b, simulated with the timers of run 1",
    ]
    traces = {trace["name"]: trace for trace in answer["figure"]["data"]}
    assert "waiting for gradients" in traces
    assert len(traces["optimizer"]["x"]) == 4
    # 0.4 s of 0.7 s of each rank are passes and the optimizer.
    assert "its ranks wait 42.9 % of it and store up to 2 micro batches" in answer["caption"]


def test_a_step_can_be_chosen(viewer: Client, run: Run) -> None:
    moved = viewer.get(f"{run.get_absolute_url()}?step=2")
    assert (moved.status_code, moved["Location"]) == (308, f"{run.get_absolute_url()}ranks/?step=2")
    assert "step 2" in draw(viewer, "pipeline-schedules/1@2")["caption"]


def test_addresses_of_pages_are_taken_as_they_are_pasted(viewer: Client, run: Run) -> None:
    page = f"http://testserver{run.get_absolute_url()}?step=1#timeline"
    simulation = (
        "http://testserver/simulate/?stages=2&micro_batches=4&schedules=gpipe&schedules=1f1b&one=gpipe&two=1f1b"
    )
    drawn = titles(draw(viewer, page, simulation))
    assert "step 1" in drawn[0]
    assert ": 1f1b, simulated" in drawn[1]


def test_a_published_run_is_simulated_with_another_schedule(viewer: Client, published: None) -> None:
    answer = draw(viewer, f"simulated:{PUBLISHED}/22", f"simulated:{PUBLISHED}/22:1f1b-3")
    assert "store up to 7 micro batches" in answer["caption"]
    text = viewer.get(f"/experiments/{PUBLISHED}/runs/22/time/").content.decode()
    assert f"/compare/timelines/?b=simulated%3A{PUBLISHED}%2F22" in text


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ("nonsense", "'nonsense' is not a run or a simulation; use experiment/3"),
        ("pipeline-schedules/9", "no run pipeline-schedules/9"),
        ("pipeline-schedules/1@7", "step 7 of run pipeline-schedules/1 is not recorded; use one of 1, 2, 3"),
        ("simulated:pipeline-schedules/1:2f2b", "unknown schedule '2f2b'; use gpipe"),
        ("simulated:pipeline-schedules/1:interleaved-1f1b-999999", "unknown schedule 'interleaved-1f1b-999999'"),
        ("simulated:nothing", "is not a run or a simulation"),
        ("/simulate/?stages=0", "stages 0 is invalid"),
        ("<script>alert(1)</script>", "is not a run or a simulation"),
    ],
)
def test_what_cannot_be_drawn_says_why(viewer: Client, run: Run, asked: str, problem: str) -> None:
    text = viewer.get("/compare/timelines/", {"a": asked}).content.decode()
    assert escape(problem) in text
    assert "<script>alert" not in text
    assert problem in draw(viewer, asked)["empty"]


def test_a_run_without_operations_offers_its_simulation(viewer: Client, published: None) -> None:
    assert "use simulated:" in draw(viewer, f"{PUBLISHED}/1")["empty"]


def test_a_run_that_is_no_pipeline_has_no_timeline(
    viewer: Client, make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]
) -> None:
    config = make_config(data={"parallel": {"engine": "allreduce", "data_parallel_size": 2}})
    run = finish(make_attempt(config=config))
    text = viewer.get(f"{run.get_absolute_url()}ranks/").content.decode()
    assert "Timeline of step" not in text
    assert "cannot be simulated" in draw(viewer, "simulated:pipeline-schedules/1")["empty"]
    assert viewer.get(f"{run.get_absolute_url()}simulate/").status_code == 404


def test_where_links_were_refused_the_simulation_is_offered(
    viewer: Client, make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="failed")
    Run.objects.filter(pk=attempt.run_id).update(state="failed", reason="network.apply emulate: links need root")
    text = viewer.get(attempt.run.get_absolute_url()).content.decode()
    assert 'href="/simulate/">Simulate on this network</a>' in text
    time = viewer.get(f"{attempt.run.get_absolute_url()}time/").content.decode()
    assert "The node cannot shape the links of this run" in time


def test_simulate_leads_to_the_page_with_the_times_of_the_run(viewer: Client, run: Run) -> None:
    answer = viewer.get(f"{run.get_absolute_url()}simulate/")
    assert answer.status_code == 302
    assert "forward_ms=10&backward_ms=20&weight_ms=10&optimizer_ms=10" in answer["Location"]
    assert "bandwidth_gbps=&" in answer["Location"]
    assert viewer.get(answer["Location"]).status_code == 200


def test_a_picked_slope_becomes_the_next_version(page: Client, run: Run) -> None:
    address = f"{run.get_absolute_url()}schedule/"
    assert 'value="same:1" checked' in page.get(address).content.decode()
    answer = page.post(address, {"choice": "bf16:1"})
    config = Config.objects.get(experiment=run.experiment, version=2)
    assert answer["Location"] == f"{run.experiment.get_absolute_url()}?version=2"
    assert config.data["parallel"]["wire_precision"] == "bf16"
    assert config.data["train"]["compute"] == "real"
    assert config.note.startswith("Slope 1 with 16-bit messages for links as they are: simulated")
    assert config.points()[0].problems == []


def test_a_slope_for_published_figures_is_emulated_on_their_network(page: Client, published: None) -> None:
    address = f"/experiments/{PUBLISHED}/runs/22/schedule/"
    assert 'value="same:3" checked' in page.get(address).content.decode()
    page.post(address, {"choice": "same:3"})
    config = Config.objects.get(experiment__slug=PUBLISHED, version=2)
    assert config.points()[0].problems == []
    resolved = config.base
    assert (resolved.parallel.warmup_slope, resolved.parallel.pipeline_parallel_size) == (3, 3)
    assert resolved.train.compute == "emulated"
    assert (resolved.network.apply, resolved.network.delay_ms, resolved.network.bandwidth_gbps) == ("emulate", 10, 1)
    assert resolved.emulation.forward_ms is not None
    assert resolved.emulation.forward_ms[0] == pytest.approx(22.35, abs=0.01)


def test_a_second_click_saves_nothing_twice_and_nonsense_saves_nothing(page: Client, run: Run) -> None:
    address = f"{run.get_absolute_url()}schedule/"
    for choice in ("same:2", "same:2", "same:99", ""):
        page.post(address, {"choice": choice})
    assert Config.objects.filter(experiment=run.experiment).count() == 2


def test_who_may_not_add_configurations_is_not_offered_to(viewer: Client, run: Run) -> None:
    assert "Pick a schedule" not in viewer.get(run.get_absolute_url()).content.decode()
    assert viewer.post(f"{run.get_absolute_url()}schedule/", {"choice": "same:1"}).status_code == 403
