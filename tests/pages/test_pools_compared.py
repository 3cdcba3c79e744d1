"""Two pools side by side on the page Compare."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Attempt, Node, Run

from .test_cluster import text

pytestmark = pytest.mark.django_db
SPACE = "\u202f"


@pytest.fixture
def make_run(make_attempt: Callable[..., Attempt]) -> Callable[..., Run]:
    """Create a finished run: make_run("fast", 0.5, micro_batch_size=2)."""

    def make(pool: str, step_s: float, *, seed: int = 0, hours: float = 1.0, **train: Any) -> Run:
        attempt = make_attempt(state="finished")
        run, now = attempt.run, timezone.now()
        run.resolved["cluster"] |= {"pool": pool}
        run.resolved["train"] |= {"seed": seed, **train}
        run.summary = {
            "steps": {"count": 100, "left_out": []},
            "step_time_s": {"mean": step_s, "median": step_s, "p10": step_s * 0.99, "p90": step_s * 1.01},
        }
        run.origin, run.gpus = Run.Origin.MEASURED, 2
        run.started_at, run.ended_at = now - timedelta(hours=hours), now
        run.save()
        Attempt.objects.filter(pk=attempt.pk).update(
            started_at=run.started_at, ended_at=now, summary=run.summary, state="finished"
        )
        return run

    return make


@pytest.fixture
def pools(make_node: Callable[..., Node]) -> None:
    for name, pool, flops in (("a1", "old", 2e14), ("b1", "new", 6e14)):
        node = make_node(name, gpus=2)
        node.pool, node.hardware["rates"] = pool, {"matrix": {"bf16": flops}}
        node.save()


def cells(shown: Any, title: str) -> list[str]:
    return next(list(row[1:]) for row in shown.context["pools"].rows if row.title == title)


@pytest.mark.usefixtures("pools")
def test_settings_that_ran_on_both_pools_say_which_is_faster(page: Client, make_run: Callable[..., Run]) -> None:
    for seed in (1, 2):
        make_run("old", 1.0 + 0.001 * seed, seed=seed, micro_batch_size=2)
        make_run("new", 0.5 + 0.001 * seed, seed=seed, micro_batch_size=2)
    make_run("old", 9.0, micro_batch_size=4)
    shown = page.get("/compare/?pool=old&pool=new")
    compared = shown.context["pools"]
    assert compared.answer == f"new takes 50{SPACE}% less time a step."
    assert [(pair.first, pair.second, pair.is_noise) for pair in compared.pairs] == [
        (f"1.00{SPACE}s", f"502{SPACE}ms", False)
    ]
    assert f"/compare/?runs={compared.pairs[0].runs}" in shown.content.decode()
    assert cells(shown, "Matrix products, bf16 (median node)") == [
        f"200{SPACE}TFLOP/s", f"600{SPACE}TFLOP/s", f"+200.0{SPACE}%",
    ]  # fmt: skip
    assert cells(shown, "Device hours")[:2] == ["6.00", "4.00"]


@pytest.mark.usefixtures("pools")
def test_a_change_within_the_noise_is_no_answer(page: Client, make_run: Callable[..., Run]) -> None:
    make_run("old", 1.0)
    make_run("new", 1.005)
    compared = page.get("/compare/?pool=old&pool=new").context["pools"]
    assert compared.answer == "No difference is proven."
    assert compared.detail == f"new takes 0.5{SPACE}% more time a step, within noise; 1 setting that ran on both."


@pytest.mark.usefixtures("pools")
def test_pools_without_common_settings_say_what_to_launch(page: Client, make_run: Callable[..., Run]) -> None:
    make_run("old", 1.0, micro_batch_size=2)
    make_run("new", 1.0, micro_batch_size=4)
    assert "as a sweep over cluster.pool" in text(page.get("/compare/?pool=new&pool=old"))


def test_the_cluster_leads_to_two_pools_only_where_there_are_two(page: Client, make_node: Callable[..., Node]) -> None:
    node = make_node("a1")
    assert "Compare pools" not in text(page.get("/nodes/"))
    assert "Only one pool has nodes" in text(page.get("/compare/?pool="))
    Node.objects.create(name="b1", pool="other", last_heartbeat_at=timezone.now())
    assert "Compare pools" in text(page.get("/nodes/"))
    assert page.get("/compare/?pool=").context["pools"].names == (node.pool, "other")
