"""The page Cluster: nodes as squares, the queue, what hours became, and one node beside the others."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Attempt, Exclusion, Node, Project, ProjectPool, Run
from parlab.series import store
from parlab.series.columns import Columns
from tests.conftest import place

pytestmark = pytest.mark.django_db
PARTIAL = {"HX-Request": "true"}


def text(response: Any) -> str:
    """Return the visible text of an answer."""
    content = re.sub(r"<title>.*?</title>|<script.*?</script>|<style.*?</style>", "", response.content.decode())
    return " ".join(re.sub(r"<[^>]+>", " ", content).split())


def measured(attempt: Attempt, metric: str, value: float, rank: int, ago_s: float = 5) -> None:
    at = np.array([timezone.now().timestamp() - ago_s])
    store.append(attempt.pk, {(metric, rank): Columns(np.array([1]), at, np.array([value]))})


@pytest.fixture
def busy(make_attempt: Callable[..., Attempt], make_node: Callable[..., Node]) -> Attempt:
    """A run on two of four GPUs."""
    node = make_node("gpu1", gpus=4)
    attempt = make_attempt(state="running")
    Attempt.objects.filter(pk=attempt.pk).update(started_at=timezone.now() - timedelta(minutes=2))
    place(attempt, node, environment={"gpus_used": [{"index": 2}, {"index": 0}]}, started_at=timezone.now())
    for rank, (share, heat) in enumerate([(97.0, 88.0), (10.0, 40.0)]):
        measured(attempt, "gpu_util_pct", share, rank)
        measured(attempt, "temperature_celsius", heat, rank)
    return attempt


def test_each_gpu_is_a_square_with_what_it_measured_last(page: Client, busy: Attempt) -> None:
    shown = page.get("/nodes/").content.decode()
    squares = re.findall(r'<i class="g ([^"]*)" title="([^"]*)"', shown)
    assert [title.split(":")[0] for _, title in squares] == ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]
    assert squares[0][0].split()[0] == "u0"
    assert squares[1][1] == "GPU 1: no run"
    assert squares[2][0].split()[0] == "u5"
    assert "88" in squares[2][1]
    assert "1 of 1 node works, nothing waits." in text(page.get("/nodes/"))


def test_scales_are_offered_for_what_is_measured(page: Client, busy: Attempt) -> None:
    shown = page.get("/nodes/").content.decode()
    assert re.findall(r'data-colour-by="(\w+)"', shown) == ["utilisation", "memory", "temperature", "health"]
    assert 'data-colour="temperature"' in page.get("/nodes/?colour=temperature").content.decode()
    assert 'data-colour="utilisation"' in page.get("/nodes/?colour=taste").content.decode()


def test_who_waits_reads_for_what_and_until_when(
    page: Client, user: User, busy: Attempt, make_attempt: Callable[..., Attempt]
) -> None:
    Node.objects.update(slots=1)
    make_attempt(state="queued", point={"train.seed": 2})
    shown = text(page.get("/nodes/"))
    assert "1 run waits." in shown
    assert "node gpu1 is busy with #1" in shown
    assert re.search(r"Starts about \d\d:\d\d, after Pipeline schedules #1\.", shown)
    assert page.get("/nodes/").content.decode().count('class="starts"') == 1


def test_nodes_without_new_runs_and_reserved_pools_stand_below_the_queue(
    page: Client, user: User, busy: Attempt, make_node: Callable[..., Node]
) -> None:
    make_node("gpu2", is_draining=True)
    project = Project.objects.create(name="Ours", slug="ours", visibility="internal")
    ProjectPool.objects.create(project=project, pool=Node.objects.get(name="gpu1").pool)
    figure = page.get("/nodes/").content.decode().split('id="queue"')[1].split("</section>")[0]
    assert "drains: no new runs" in figure
    assert "reserved for Ours" in figure
    assert figure.count('class="closed"') == 2


def test_without_runs_the_last_day_is_shown(page: Client, busy: Attempt) -> None:
    now = timezone.now()
    busy.members.update(state="finished", ended_at=now)
    Attempt.objects.update(state="finished", ended_at=now)
    Run.objects.update(state="oom", started_at=now - timedelta(minutes=2), ended_at=now)
    shown = page.get("/nodes/").content.decode()
    assert "last 24 hours" in shown
    assert 'class="run-oom"' in shown


def test_hours_are_divided_into_steps_and_causes_of_loss(
    page: Client, make_attempt: Callable[..., Attempt], make_node: Callable[..., Node]
) -> None:
    make_node("n1")
    now = timezone.now()
    summary = {"steps": {"count": 90, "left_out": list(range(10))}, "step_time_s": {"mean": 18.0}}
    for seed, (state, hours, own) in enumerate([("finished", 1, summary), ("oom", 2, {}), ("lost", 1, {})]):
        attempt = make_attempt(state=state, point={"train.seed": seed})
        Attempt.objects.filter(pk=attempt.pk).update(started_at=now - timedelta(hours=hours), ended_at=now, summary=own)
    shown = text(page.get("/nodes/"))
    assert "12.5 %" in shown, "half an hour of four"
    assert re.search(r"Out of memory .* Lost .* Start and between steps", shown)


def test_a_node_opens_beside_the_others_with_its_day(page: Client, busy: Attempt) -> None:
    whole = page.get("/nodes/gpu1/").content.decode()
    panel = page.get("/nodes/gpu1/", headers=PARTIAL).content.decode()
    assert 'class="cl is-open"' in whole
    assert "<html" not in panel
    for shown in (whole, panel):
        assert "Last 24 h" in shown
        assert busy.run.get_absolute_url() in shown
    assert 'class="hotr"' in panel, "88 degrees"
    assert re.search(r"Leave out after \d\d:\d\d", panel), "its run goes on until then"


def test_an_installation_without_nodes_says_how_one_joins(page: Client) -> None:
    assert "python -m runners.node.daemon" in text(page.get("/nodes/"))
    assert page.get("/nodes/nobody/").status_code == 404


def test_a_silent_node_is_hatched_with_the_time(page: Client, make_node: Callable[..., Node]) -> None:
    make_node("n1", online=False, gpus=2)
    shown = page.get("/nodes/")
    assert shown.content.decode().count(' off"') == 2
    assert "offline" in text(shown)
    assert "seen" in text(shown)


def test_nodes_show_what_they_have_and_how_busy_they_are(
    page: Client, make_attempt: Callable[..., Attempt], django_assert_max_num_queries: Any
) -> None:
    gpus = [{"index": i, "name": "NVIDIA <b>H200</b>", "memory_bytes": 2**37} for i in range(4)]
    matmul = {"flops": {"fp32": {"1": 5e10, "64": 2.5e12}, "bf16": {}, "odd": "x"}, "torch": "2.13.0"}
    reduced = [[65536, 4e-5], [2**28, 2 * 3 / 4 * 2**28 / 360e9]]
    rates = {"devices": 4, "matrix": {"bf16": 7.5e14}, "memory": 4.24e12, "host": None, "all_reduce": {"4": reduced}}
    hardware = {"gpus": gpus, "cpu_cores": 64, "matmul": matmul, "rates": rates}
    node = Node.objects.create(name="gpu-1", slots=2, last_heartbeat_at=timezone.now(), hardware=hardware)
    Node.objects.create(name="old", is_enabled=False)
    place(make_attempt(state="running"), node)
    with django_assert_max_num_queries(22):
        shown = page.get("/nodes/")
    assert "1 of 2 nodes works" in text(shown)
    assert "offline" in text(shown)
    assert "seen never" in text(shown)
    assert "<html" not in page.get("/nodes/", headers=PARTIAL).content.decode()
    own = html.unescape(text(page.get("/nodes/gpu-1/", headers=PARTIAL)))
    assert "1 of 2 slots busy" in own
    assert "4 \N{MULTIPLICATION SIGN} NVIDIA <b>H200</b> (128 GiB)" in own
    measured = own.replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "measured 750 TFLOP/s in bf16, 4.24 TB/s in memory, " in measured
    assert "GB/s between them" in measured
    assert "64 cores, measured 2.50 TFLOP/s in fp32" in own
    assert "Disabled:" in text(page.get("/nodes/old/", headers=PARTIAL))


@pytest.mark.parametrize(("kind", "title"), [("slurm", "Slurm"), ("kubernetes", "Kubernetes")])
def test_a_pool_is_named_after_the_system_that_its_nodes_come_from(
    page: Client, make_node: Callable[..., Node], kind: str, title: str
) -> None:
    make_node("login", pool="hpc", slots=8, abilities={"kind": kind})
    assert f"hpc {title} 1 node" in text(page.get("/nodes/"))


def test_a_day_of_goodput_opens_its_events(
    page: Client, make_attempt: Callable[..., Attempt], make_node: Callable[..., Node]
) -> None:
    node, noon = make_node("n1"), timezone.localtime().replace(hour=12, minute=0) - timedelta(days=2)
    for seed, (state, days) in enumerate([("finished", 0), ("oom", 0), ("lost", 1)]):
        attempt = make_attempt(state=state, point={"train.seed": seed})
        began = noon - timedelta(days=days)
        Attempt.objects.filter(pk=attempt.pk).update(started_at=began, ended_at=began + timedelta(hours=1))
    Exclusion.objects.create(node=node, reason="leaf switch 3 down", at=noon)
    figure = page.get("/nodes/").content.decode()
    day = f"/nodes/?day={noon:%Y-%m-%d}#events"
    assert f'href="{day}"' in figure
    listed = text(page.get(day)).split(f"{noon:%-d %B}")[1]
    assert listed.index("leaf switch 3 down") < listed.index("Out of memory")
    assert "#2" in listed
    assert "Lost" not in listed.split("Close")[1].split("Recovery")[0]
    assert f"?day={noon:%Y-%m-%d}" in page.get(day).content.decode().split('id="cluster"')[1].split(">")[0]
    assert 'id="events"' not in page.get("/nodes/?day=yesterday").content.decode()


def test_a_hot_gpu_has_a_ring_whatever_the_colour_shows(page: Client, busy: Attempt) -> None:
    squares = re.findall(r'<i class="g ([^"]*)" title="([^"]*)"', page.get("/nodes/").content.decode())
    assert [("ring" in classes.split(), "hot" in title) for classes, title in squares] == [
        (False, False),
        (False, False),
        (True, True),
        (False, False),
    ]
