"""Nodes, columns, goodput, slopes, questions and pasted configurations over the API."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from parlab.ingest.batches.output import output_append
from parlab.lab.models import Attempt, AuditEntry, Experiment, Node, Run, Visit
from tests.api.conftest import error
from tests.pages.conftest import finish
from tests.pages.test_timelines import TIMERS

pytestmark = pytest.mark.django_db

EXPERIMENT = "/api/experiments/pipeline-schedules/"
JSON = "application/json"


def test_nodes_are_listed_with_their_slots(reader: Client) -> None:
    Node.objects.create(name="n1", slots=2, hardware={"cpu_cores": 8})
    (node,) = reader.get("/api/nodes/").json()
    assert (node["name"], node["slots"], node["used"], node["is_online"]) == ("n1", 2, 0, False)
    assert node["hardware"] == {"cpu_cores": 8}


def test_a_node_is_left_out_and_put_back_with_its_reason(api: Client, reader: Client) -> None:
    node = Node.objects.create(name="n1", slots=2)
    assert reader.get("/api/nodes/n1/").json()["rates"] == []
    leave_out = {"action": "leave-out", "reason": "slow link"}
    assert reader.post("/api/nodes/n1/", leave_out, JSON).status_code == 403
    assert error(api.post("/api/nodes/n1/", {"action": "leave-out"}, JSON))["field"] == "reason"
    assert error(api.post("/api/nodes/n1/", {"action": "forget"}, JSON))["field"] == "action"
    assert api.post("/api/nodes/n1/", leave_out, JSON).json()["left_out"] == "slow link"
    assert reader.get("/api/nodes/").json()[0]["left_out"] == "slow link"
    assert api.post("/api/nodes/n1/", {"action": "put-back"}, JSON).json()["left_out"] == ""
    node.refresh_from_db()
    assert not node.left_out
    assert AuditEntry.objects.count() >= 2
    assert reader.get("/api/nodes/n2/").status_code == 404


def test_a_log_is_searched_for_a_text_and_for_errors(reader: Client, run: Run) -> None:
    output_append(run.current_attempt(), b"NCCL INFO ring\nstep 1\nValueError: no\n")
    address = f"{EXPERIMENT}runs/{run.number}/log/search/"
    assert reader.get(f"{address}?text=nccl").json() == {
        "lines": [{"number": 1, "text": "NCCL INFO ring"}], "is_more": False,
    }  # fmt: skip
    assert [line["number"] for line in reader.get(f"{address}?errors=true").json()["lines"]] == [3]
    assert error(reader.get(address))["field"] == "text"
    assert error(reader.get(f"{address}?text=a&rank=x"))["field"] == "rank"


def test_what_differs_between_two_runs_is_named(reader: Client, make_attempt: Callable[..., Attempt], run: Run) -> None:
    other = make_attempt(state="finished", point={"train.micro_batch_size": 4}).run
    address = f"{EXPERIMENT}runs/{run.number}/difference/"
    answer = reader.get(f"{address}?with={other.number}").json()
    assert (answer["left"], answer["right"]) == (f"Run {run.number}", f"Run {other.number}")
    assert [row["name"] for row in answer["settings"]] == ["train.micro_batch_size"]
    assert answer["environment"] is None
    assert error(reader.get(f"{address}?with=99"))["field"] == "with"


def test_columns_of_a_list_are_chosen(reader: Client) -> None:
    columns = reader.get("/api/columns/runs/").json()
    assert set(columns["shown"]) < set(columns["columns"])
    name = columns["shown"][0]
    assert reader.put("/api/columns/runs/", {"shown": [name]}, JSON).json()["shown"] == [name]
    assert reader.get("/api/columns/runs/").json()["shown"] == [name]
    assert error(reader.put("/api/columns/runs/", {"shown": ["colour"]}, JSON))["field"] == "shown"
    assert reader.get("/api/columns/nothing/").status_code == 404


def test_changes_are_taken_as_seen(api: Client, run: Run) -> None:
    page = Client()
    page.force_login(run.experiment.owner)
    page.get(run.experiment.get_absolute_url())
    before = Visit.objects.get(experiment=run.experiment).last_at
    assert api.post("/api/seen/", {"experiment": "pipeline-schedules"}, JSON).status_code == 204
    assert Visit.objects.get(experiment=run.experiment).last_at > before
    assert api.post("/api/seen/", {}, JSON).status_code == 204
    assert error(api.post("/api/seen/", {"experiment": "nothing"}, JSON))["field"] == "experiment"
    assert not AuditEntry.objects.exists()


def test_goodput_and_slopes_of_a_run(api: Client, reader: Client, run: Run) -> None:
    goodput = reader.get(f"{EXPERIMENT}runs/{run.number}/goodput/").json()
    assert bool(goodput["reason"]) != bool(goodput["parts"])
    assert reader.get(f"{EXPERIMENT}runs/{run.number}/schedule/").status_code == 404  # its step time is unknown
    run = finish(run.current_attempt())
    run.summary["timers_s"] = TIMERS
    run.save()
    slopes = reader.get(f"{EXPERIMENT}runs/{run.number}/schedule/").json()
    assert {row["wire"] for row in slopes} == {"same", "bf16"}
    assert all(row["iteration_s"] > 0 for row in slopes)
    address = f"{EXPERIMENT}runs/{run.number}/schedule/"
    assert reader.post(address, {"code": slopes[0]["code"]}, JSON).status_code == 403
    assert error(api.post(address, {"code": "same:99"}, JSON))["field"] == "code"
    saved = api.post(address, {"code": slopes[0]["code"]}, JSON).json()
    assert f"Slope {slopes[0]['slope']}" in saved["note"]
    assert api.get(f"{EXPERIMENT}configurations/").json()[0]["version"] == saved["version"]


def test_a_question_is_asked_with_its_inputs(api: Client, reader: Client) -> None:
    rows = {row["key"]: row for row in reader.get("/api/questions/").json()}
    key, row = next(iter(rows.items()))
    assert {each["name"] for each in row["inputs"]}
    assert reader.post(f"/api/questions/{key}/", {}, JSON).status_code == 403
    asked = api.post(f"/api/questions/{key}/", {}, JSON)
    assert asked.status_code == 201, asked.content
    answer = asked.json()
    assert Experiment.objects.get(slug=answer["experiment"]).runs.count() == len(answer["created"]) > 0
    assert api.get(answer["url"]).status_code in (200, 302)
    assert AuditEntry.objects.get().action == "launch"
    assert error(api.post(f"/api/questions/{key}/", {"colour": 1}, JSON))["field"] == "colour"
    assert error(api.post(f"/api/questions/{key}/", {row["inputs"][0]["name"]: "x"}, JSON))
    assert api.post("/api/questions/nothing/", {}, JSON).status_code == 404


def test_a_command_line_becomes_values_of_the_form(api: Client, reader: Client) -> None:
    text = "torchrun pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12"
    answer = api.post("/api/configurations/read/", {"text": text}, JSON).json()
    assert 12 in [int(value) for name, value in answer["values"].items() if name.endswith("num_layers")]
    assert answer["summary"]
    assert error(api.post("/api/configurations/read/", {"text": '{"a": 1}'}, JSON))["field"] == "text"
    assert reader.post("/api/configurations/read/", {"text": text}, JSON).status_code == 403
