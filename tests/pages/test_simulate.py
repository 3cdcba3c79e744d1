"""Schedule simulation by page, figure, API and command: all give the same answer."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from parlab.planner.schedule import Scenario, written

ADDRESS = "/simulate/?stages=3&micro_batches=16&forward_ms=20&backward_ms=60&delay_ms=10&bandwidth_gbps=1&message_mb=4"


def drawn_schedules(drawing: dict[str, Any]) -> list[str]:
    """Read the titles in the figure, "2.45 s: 1f1b: 48 passes", from top to bottom."""
    return [text["text"].split(": ")[1] for text in drawing["figure"]["layout"]["annotations"]]


def test_the_page_shows_the_schedules_asked_for_with_what_binds(viewer: Client) -> None:
    text = viewer.get(f"{ADDRESS}&schedules=gpipe&schedules=best&more=zb-h1").content.decode()
    assert text.count("<tr><th scope=") == 1 + 3
    assert "zb-h1" in text
    assert "recommended" in text
    assert "compute of rank 2" in text
    assert "simulate/timeline.json?stages=3&amp;micro_batches=16" in text


def test_the_page_without_parameters_shows_the_default_scenario(viewer: Client) -> None:
    text = viewer.get("/simulate/").content.decode()
    assert 'name="stages" value="3"' in text
    assert "1f1b slope 3" in text


def test_a_poll_while_typing_gets_the_answer_alone(viewer: Client) -> None:
    text = viewer.get(ADDRESS, headers={"HX-Request": "true"}).content.decode()
    assert "<form" not in text
    assert 'id="live"' in text


def test_numbers_that_make_no_sense_are_named_and_stay_in_the_form(viewer: Client) -> None:
    text = viewer.get("/simulate/?stages=three&delay_ms=%3Cscript%3E").content.decode()
    assert "stages three is invalid" in text
    assert 'name="stages" value="three"' in text
    assert "<script>" not in text.split("<main")[1]


def test_the_figure_draws_two_schedules_and_the_table_holds_their_passes(viewer: Client) -> None:
    query = ADDRESS.partition("?")[2] + "&schedules=gpipe&schedules=1f1b&schedules=zb-h1&one=gpipe&two=zb-h1"
    drawing = viewer.get(f"/simulate/timeline.json?{query}").json()
    names = [trace["name"] for trace in drawing["figure"]["data"]]
    assert {"forward", "backward", "weight gradients", "activations on the link"} <= set(names)
    assert drawn_schedules(drawing) == ["gpipe", "zb-h1"]
    rows = viewer.get(f"/simulate/timeline.csv?{query}").content.decode().splitlines()
    assert rows[0] == "schedule,rank,kind,micro_batch,chunk,begin_s,end_s"
    assert sum(row.startswith("gpipe,0,forward,") for row in rows) == 16


@pytest.mark.parametrize(
    ("asked", "drawn"),
    [
        ("", ["1f1b", "zb-h1"]),
        ("&two=gpipe", ["zb-h1", "gpipe"]),
        ("&one=zb-h1", ["zb-h1", "1f1b"]),
        ("&one=zb-h1&two=zb-h1", ["zb-h1", "1f1b"]),
        ("&one=nonsense&two=gpipe", ["zb-h1", "gpipe"]),
    ],
)
def test_the_two_that_are_drawn_stand_where_they_were_asked_for(viewer: Client, asked: str, drawn: list[str]) -> None:
    query = ADDRESS.partition("?")[2] + "&schedules=gpipe&schedules=1f1b&schedules=zb-h1" + asked
    drawing = viewer.get(f"/simulate/timeline.json?{query}").json()
    assert drawn_schedules(drawing) == drawn


def test_a_figure_of_a_broken_question_says_what_is_wrong(viewer: Client) -> None:
    assert "stages 0 is invalid" in viewer.get("/simulate/timeline.json?stages=0").json()["empty"]


def test_a_stranger_sees_nothing(client: Client, db: None) -> None:
    assert client.get("/simulate/").status_code == 302
    assert client.post("/api/simulate/", {}, content_type="application/json").status_code == 401


def test_the_api_answers_what_the_planner_says(viewer: Client) -> None:
    question = {"stages": 2, "micro_batches": 4, "schedules": ["gpipe", "best"]}
    answer = viewer.post("/api/simulate/?timeline=true", question, content_type="application/json").json()
    expected = written(Scenario.model_validate(question), with_timeline=True).model_dump(exclude_none=True)
    assert answer == json.loads(json.dumps(expected))


def test_the_api_names_every_field_that_makes_no_sense(viewer: Client) -> None:
    response = viewer.post("/api/simulate/", {"stages": 0, "delay_ms": -1}, content_type="application/json")
    assert response.status_code == 400
    assert [error["field"] for error in response.json()["errors"]] == ["stages", "delay_ms"]
    assert set(response.json()["errors"][0]) == {"field", "value", "message", "remedy"}
    assert viewer.post("/api/simulate/", "[1]", content_type="application/json").status_code == 400


def test_the_command_reads_a_file_and_writes_json(tmp_path: Path) -> None:
    file, out = tmp_path / "question.json", StringIO()
    file.write_text('{"stages": 2, "schedules": ["1f1b"]}')
    call_command("simulate", str(file), stdout=out)
    assert json.loads(out.getvalue())["outcomes"][0]["schedule"] == "1f1b"


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ('{"stages": 0}', "stages 0 is invalid"),
        ("{broken", "is not valid JSON"),
        ("/nowhere/at/all.json", "cannot read the request from /nowhere/at/all.json"),
    ],
)
def test_the_command_says_what_is_wrong_with_a_question(question: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        call_command("simulate", question)
