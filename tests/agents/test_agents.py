"""`parlab mcp`: a scripted agent asks 30 questions about 500 runs, and starts only what its budget allows."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer

from parlab.agents.answers import MAX_BYTES, thinned, written
from parlab.agents.budget import Budget, Refusal, Started
from parlab.lab.models import AuditEntry, InboxItem, LaunchApproval, Role, Run
from parlab.lab.services.access.budgets import budget_set
from parlab.lab.services.access.projects import member_set, project_create
from parlab.lab.services.access.tokens import token_create
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.runs import config_launch
from parlab.tracking.point import Point
from parlab.tracking.runs import parameters_set, points_append, tags_set, tracked_run_start, tracked_run_update
from tests.client.conftest import ROOT
from tests.conftest import SMALL

RUNS = 500
Check = Callable[[Any], bool]


def _rows(count: int) -> Check:
    return lambda answer: answer["matches"] == count


def _failed(text: str) -> Check:
    return lambda answer: text in answer["error"]


QUESTIONS: list[tuple[str, dict[str, Any], Check]] = [
    ("experiments", {}, lambda answer: {row["slug"] for row in answer} >= {"sweep-0", "sweep-4"}),
    ("experiments", {"query": "Sweep 3"}, lambda answer: [row["runs"] for row in answer] == [100]),
    ("experiments", {"query": "nothing"}, lambda answer: answer == []),
    ("search_runs", {}, _rows(500)),
    ("search_runs", {"experiment": "sweep-1"}, _rows(100)),
    ("search_runs", {"filter": "loss < 10.5"}, _rows(11)),
    ("search_runs", {"filter": "params.lr = 0.1"}, _rows(250)),
    ("search_runs", {"filter": "params.lr > 0.15 and loss >= 490"}, _rows(5)),
    ("search_runs", {"filter": "state = 'failed'"}, _rows(50)),
    ("search_runs", {"filter": "state IN ('failed', 'running')"}, _rows(500)),
    ("search_runs", {"filter": "tags.owner = 'ada'", "experiment": "sweep-0"}, _rows(100)),
    ("search_runs", {"filter": "params.model = 'bert' and state = 'running'"}, _rows(450)),
    ("search_runs", {"filter": "loss > 1e9"}, _rows(0)),
    ("search_runs", {"sort": "metrics.loss", "limit": 1}, lambda answer: answer["runs"][0]["label"] == "run 0"),
    ("search_runs", {"sort": "-metrics.loss", "limit": 3}, lambda answer: answer["runs"][0]["metrics.loss"] == 499),
    ("search_runs", {"columns": ["params.lr"], "limit": 2}, lambda answer: answer["runs"][0]["params.lr"] == "0.2"),
    ("search_runs", {"limit": 100}, lambda answer: answer["matches"] == 500),
    ("search_runs", {"filter": "loss <"}, _failed("filter")),
    ("run", {"run": "sweep-0:1"}, lambda answer: answer["parameters"] == {"lr": "0.1", "model": "bert"}),
    ("run", {"run": "id-499"}, lambda answer: answer["experiment"] == "sweep-4"),
    ("run", {"run": "missing"}, _failed("see the list")),
    ("compare", {"runs": ["sweep-0:1", "sweep-0:2"]}, lambda answer: answer[0]["name"] == "state"),
    ("difference", {"run": "sweep-0:1", "other": "2"}, lambda answer: isinstance(answer, dict)),
    ("metrics", {"run": "sweep-2:7"}, lambda answer: answer["loss"] == {"ranks": 1, "points": 40}),
    ("series", {"runs": ["id-3", "id-4"], "metric": "loss", "points": 5}, lambda answer: len(answer["id-3"]) == 5),
    ("series", {"runs": ["id-3"], "metric": "nothing"}, _failed("no series")),
    ("log", {"run": "sweep-0:1", "text": "loss"}, lambda answer: isinstance(answer, list)),
    ("findings", {"experiment": "sweep-0"}, lambda answer: answer == []),
    ("plan", {"fields": {"layers": 24, "hidden": 2048, "nodes": 2}}, lambda answer: answer["fits"] is True),
    ("budget", {}, lambda answer: (answer["runs"], answer["gpu_hours"]) == (2, 8.0)),
    ("launch", {"experiment": "sweep-0", "hours_each": 20_000}, _failed("hours_each 20000 is less than")),
    ("launch", {"experiment": "nothing"}, _failed("No Experiment matches")),
    ("cancel", {"run": "sweep-0:1"}, _failed("was not launched by this agent")),
]


@pytest.fixture
def runs(admin: User) -> None:
    experiments = [experiment_create(name=f"Sweep {number}", owner=admin) for number in range(5)]
    for number in range(RUNS):
        tracked = tracked_run_start(
            experiment=experiments[number // 100], user=admin, name=f"run {number}", run_uuid=f"id-{number}"
        )
        parameters_set(tracked=tracked, parameters={"lr": "0.2" if number % 2 else "0.1", "model": "bert"})
        tags_set(tracked=tracked, tags={"owner": "ada"})
        values = [Point("loss", float(number + 39 - step), 1_000 * step, step) for step in range(40)]
        points_append(tracked=tracked, points=values)
        if number % 10 == 0:
            tracked_run_update(tracked=tracked, status="FAILED", end_ms=1_000_000)


async def ask(
    environ: dict[str, str], questions: list[tuple[str, dict[str, Any]]], runs: int = 2, gpu_hours: float = 8
) -> list[str]:
    """Ask the tools of a real server process; return the texts of its answers."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    budget = ["--runs", str(runs), "--gpu-hours", str(gpu_hours)]
    arguments = ["-m", "parlab", "mcp", "--agent", "scripted", *budget]
    place = StdioServerParameters(command=sys.executable, args=arguments, env=environ)
    texts = []
    async with stdio_client(place) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        for name, fields in questions:
            answer = await session.call_tool(name, fields)
            texts.append("".join(getattr(part, "text", "") for part in answer.content))
    return texts


@pytest.fixture
def environ(live_server: LiveServer, admin: User, tmp_path: Path) -> dict[str, str]:
    pytest.importorskip("mcp")
    token = token_create(user=admin, name="laptop", by=admin)[1]
    own = {"PARLAB_URL": live_server.url, "PARLAB_TOKEN": token, "PARLAB_HOME": str(tmp_path)}
    return {**os.environ, **own, "PYTHONPATH": str(ROOT), "NO_PROXY": "*"}


@pytest.mark.slow
@pytest.mark.usefixtures("runs", "catalogue")
@pytest.mark.django_db(transaction=True)
def test_an_agent_answers_thirty_questions_about_500_runs_from_at_most_20_kb_each(environ: dict[str, str]) -> None:
    texts = anyio.run(ask, environ, [(name, fields) for name, fields, _ in QUESTIONS])
    assert len(texts) == len(QUESTIONS) >= 30
    assert max(len(text.encode()) for text in texts) <= MAX_BYTES
    wrong = [
        (name, fields, text[:300])
        for (name, fields, check), text in zip(QUESTIONS, texts, strict=True)
        if not _holds(check, text)
    ]
    assert not wrong


def _holds(check: Check, text: str) -> bool:
    try:
        return check(json.loads(text))
    except (KeyError, TypeError, IndexError, ValueError):
        return False


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_an_agent_launches_within_both_budgets_and_cancels_only_what_it_started(
    environ: dict[str, str], admin: User
) -> None:
    project = budget_set(project=project_create(name="Vision", user=admin), hours=3.0, user=admin)
    worker = User.objects.create_user("worker")
    member_set(project=project, user=worker, role=Role.OPERATOR)
    for name, hours in (("small", 1), ("large", 4), ("by-a-person", 1)):
        experiment = experiment_create(name=name, owner=worker, project=project)
        data = {
            **SMALL,
            "cluster": {"device": "cuda", "gpus_per_node": 2},
            "launcher": {"timeout_s": 3600 * hours, "max_attempts": 1},
        }
        config = config_save(experiment=experiment, data=data, sweep={}, user=worker)
    config_launch(config=config, user=admin)
    environ = {**environ, "PARLAB_TOKEN": token_create(user=worker, name="agents", by=worker, project=project)[1]}
    questions: list[tuple[str, dict[str, Any]]] = [
        ("launch", {"experiment": "vision--small", "hours_each": 0.5}),
        ("launch", {"experiment": "vision--small"}),
        ("launch", {"experiment": "vision--large", "hours_each": 9}),
        ("launch", {"experiment": "vision--large"}),
        ("cancel", {"run": "vision--by-a-person:1"}),
        ("cancel", {"run": "vision--small:1"}),
        ("budget", {}),
    ]
    short, small, beyond, large, foreign, cancelled, left = map(json.loads, anyio.run(ask, environ, questions, 2, 10.0))
    assert "launcher.timeout_s" in short["error"]
    assert (small["launched"], small["gpu_hours_used"], "needs_approval" in small) == (["vision--small:1"], 2, False)
    assert "18 GPU hours are beyond the budget: 2 of 10 are used" in beyond["error"]
    assert (large["launched"], large["gpu_hours_used"], "inbox" in large["needs_approval"]) == (
        ["vision--large:1"],
        10,
        True,
    )
    item = InboxItem.objects.get(kind="launch.asked")
    approval = LaunchApproval.objects.get(runs__experiment__name="large")
    assert (item.data["user"], approval.is_approved) == ("worker", None)
    assert "was not launched by this agent" in foreign["error"]
    assert (cancelled["state"], Run.objects.get(experiment__name="by-a-person").state) == ("cancelled", "queued")
    assert (left["runs_used"], left["gpu_hours_used"]) == (2, 8)
    acts = AuditEntry.objects.filter(token="agents, agent scripted")
    assert [entry.action for entry in acts.order_by("pk")] == ["launch", "launch", "cancel"]


@pytest.mark.django_db(transaction=True)
def test_acts_of_an_agent_are_in_the_audit_log_under_its_name(environ: dict[str, str], admin: User) -> None:
    from parlab.client.server.api import Api

    api = Api(environ["PARLAB_URL"], environ["PARLAB_TOKEN"])
    api.connection.agent = "scripted"
    api.create_experiment("Made by an agent")
    assert AuditEntry.objects.latest("pk").token == "laptop, agent scripted"


def test_a_budget_counts_runs_and_hours_over_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLAB_HOME", str(tmp_path))
    states: dict[int, dict[str, Any]] = {1: {"state": "running"}}

    def read(_experiment: str, number: int) -> dict[str, Any]:
        return states[number]

    def budget() -> Budget:
        return Budget("an/agent", runs=3, gpu_hours=20.0)

    budget().check(1, 4, 4.0, read)
    budget().add([Started("sweep", 1, 4, 4.0)])
    with pytest.raises(Refusal, match="beyond the budget: 16 of 20"):
        budget().check(1, 4, 4.0, read)
    # What has ended counts with the time that it took.
    states[1] = {
        "state": "finished",
        "started_at": "2026-01-01T00:00:00+00:00",
        "ended_at": "2026-01-01T00:30:00+00:00",
    }
    assert budget().spent(read) == 2.0
    budget().check(1, 4, 4.0, read)
    with pytest.raises(Refusal, match="1 of 3 runs are used"):
        budget().check(3, 1, 0.1, read)
    with pytest.raises(Refusal):
        Budget("another", runs=0, gpu_hours=0.0).check(1, 1, 0.1, read)


def test_answers_are_bounded_and_say_what_they_leave_out() -> None:
    text = written([{"number": number, "text": "x" * 200, "empty": None} for number in range(5_000)])
    assert len(text.encode()) <= MAX_BYTES
    assert json.loads(text)[-1]["left_out"] > 4_000
    assert json.loads(written({"value": 1 / 3, "nothing": ""})) == {"value": 0.333333}
    assert thinned(list(range(100)), 3) == [0, 50, 99]
