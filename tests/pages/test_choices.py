"""What a person chooses to see of an experiment: the shape of its table, the axes of its figures, notes as Markdown."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import Attempt, Run
from parlab.lab.services.experiments import experiment_create
from parlab.pages.reads.notes import notes_html

from .conftest import finish
from .test_experiments import EXPERIMENT, TABLE, bold, cells, text

pytestmark = pytest.mark.django_db

EVIL = "<script>alert(1)</script>"
BY_SIZE = "?rows=train.micro_batch_size&columns=parallel.schedule&value=samples_per_s"


def test_a_table_takes_the_shape_that_the_address_asks_for(page: Client, four_runs: list[Run]) -> None:
    response = page.get(TABLE + BY_SIZE)
    assert cells(response) == [
        ["Micro batch size", "Schedule"],
        ["gpipe", "1f1b"],
        ["1", "8.00", "20.00"],
        ["2", "10.00", "13.33"],
    ]
    assert bold(response) == ["20.00", "13.33"]
    assert "Throughput in samples/s. The best value of each row is bold." in text(response)


def test_two_fields_may_stand_before_the_rows(page: Client, four_runs: list[Run]) -> None:
    response = page.get(f"{TABLE}?rows=parallel.schedule&rows=train.micro_batch_size&value=step_time_s")
    assert cells(response)[1:] == [
        ["gpipe", "1", "500"],
        ["gpipe", "2", "400"],
        ["1f1b", "1", "200"],
        ["1f1b", "2", "300"],
    ]


def test_several_runs_of_a_cell_say_of_how_many_it_was_made(page: Client, four_runs: list[Run]) -> None:
    response = page.get(f"{TABLE}?rows=parallel.schedule&value=samples_per_s&of=max")
    assert cells(response)[1:] == [["gpipe", "10.00"], ["1f1b", "20.00"]]
    assert 'title="max of 2, from 8 to 10 samples/s"' in response.content.decode()


def test_a_shaped_table_shows_out_of_memory(
    page: Client, four_runs: list[Run], make_attempt: Callable[..., Attempt]
) -> None:
    point = {"parallel.schedule": "gpipe", "train.micro_batch_size": 4}
    finish(make_attempt(config=four_runs[0].config, point=point), state="oom")
    shown = cells(page.get(TABLE + BY_SIZE))
    assert shown[-1] == ["4", "OOM", "\N{EN DASH}"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("?rows=nobody.has_this", "unknown field 'nobody.has_this'; use one of run, label"),
        ("?rows=parallel.schedule&columns=parallel.schedule", "duplicate field"),
        ("?rows=parallel.schedule&value=samples_per_s&of=guess", "unknown aggregate 'guess'"),
        (f"?rows={EVIL}", "unknown field"),
    ],
)
def test_a_shape_that_makes_no_sense_is_explained(page: Client, four_runs: list[Run], query: str, message: str) -> None:
    response = page.get(TABLE + query)
    assert response.status_code == 200
    assert message in text(response)
    assert "Reset the table" in text(response)
    assert EVIL not in response.content.decode()


def test_a_poll_keeps_the_number_of_the_list(
    page: Client, four_runs: list[Run], make_attempt: Callable[..., Attempt]
) -> None:
    make_attempt(config=four_runs[0].config, point={"x": 1})
    content = page.get(f"{EXPERIMENT}?number=step_time").content.decode()
    match = re.search(r'hx-get="([^"]*live[^"]*)"', content)
    assert match
    Run.objects.filter(pk=four_runs[0].pk).update(reason="changed")
    live = page.get(html.unescape(match[1]), headers={"HX-Request": "true"}).content.decode()
    assert re.findall(r'<b class="v"[^>]*>(.*?)</b>', live) == ["200", "300", "400", "500", "\N{EN DASH}"]
    assert '<option value="step_time" selected' in live


def test_the_head_answers_the_question_and_the_list_starts_with_the_fastest_run(
    page: Client, four_runs: list[Run]
) -> None:
    response = page.get(EXPERIMENT)
    assert "20.0 samples/s" in text(response).replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "data-verdict" in response.content.decode()
    assert re.findall(r'class="rl" data-run="(\d)"', response.content.decode()) == ["3", "4", "2", "1"]
    assert re.findall(r'class="grow ell t"[^>]*>(.*?)</a>', response.content.decode())[0] == (
        "1f1b \N{MIDDLE DOT} mb 1"
    )


def test_the_experiment_shows_why_a_run_failed(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    finish(make_attempt(), state="failed", reason=f"rank 1: {EVIL}")
    response = page.get(EXPERIMENT)
    assert f"rank 1: {EVIL}" in text(response)
    assert EVIL not in response.content.decode()


def test_figures_follow_the_address_in_page_json_and_numbers(page: Client, four_runs: list[Run]) -> None:
    query = "y=ms_per_sample&x=parallel.schedule&by=train.micro_batch_size&y_scale=log"
    page.post(f"{EXPERIMENT}layout/", {"panels": [{"name": "figure:throughput"}]}, "application/json")
    content = html.unescape(page.get(f"{EXPERIMENT}?{query}").content.decode())
    url = re.search(r'data-figure-url="([^"]*throughput.json[^"]*)"', content)
    assert url
    assert "x=parallel.schedule" in url[1]
    assert '<option value="ms_per_sample" selected>' in content
    figure = json.loads(page.get(url[1]).content)["figure"]
    assert figure["layout"]["title"]["text"] == "Time per sample"
    assert figure["layout"]["yaxis"]["type"] == "log"
    assert [trace["name"] for trace in figure["data"]] == ["micro batch size 1", "micro batch size 2"]


@pytest.mark.parametrize("name", ["throughput", "efficiency", "heatmap", "roofline"])
def test_nonsense_in_the_address_of_a_figure_is_left_to_the_figure(
    page: Client, four_runs: list[Run], name: str
) -> None:
    query = {"y": EVIL, "x": EVIL, "by": [EVIL] * 9, "x_scale": "sideways"}
    response = page.get(f"{EXPERIMENT}figures/{name}.json", query)
    assert response.status_code == 200
    assert EVIL not in response.content.decode()


def test_a_heatmap_is_shown_where_two_axes_were_swept(page: Client, four_runs: list[Run]) -> None:
    content = page.get(EXPERIMENT).content.decode()
    assert 'data-panel="sweep"' in content
    assert content.count('class="cell" data-run=') == 4
    assert "Scaling efficiency: needs runs on different numbers of processes." in content
    drawn = json.loads(page.get(f"{EXPERIMENT}figures/heatmap.json").content)
    assert drawn["caption"].startswith("Best: 20.0 samples/s, schedule 1f1b, micro batch size 1 (run 3).")


@pytest.mark.parametrize(
    ("notes", "shown"),
    [
        ("**bold** and `code`", "<p><strong>bold</strong> and <code>code</code></p>"),
        ("# Title", "<h3>Title</h3>"),
        ("- one\n- two", "<li>one</li>"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "<td>1</td>"),
        ("[paper](https://example.org/x)", '<a href="https://example.org/x" rel="noopener nofollow">paper</a>'),
    ],
)
def test_notes_are_markdown(notes: str, shown: str) -> None:
    assert shown in notes_html(notes)


@pytest.mark.parametrize(
    "notes",
    [
        EVIL,
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1))",
        "![x](https://example.org/track.png)",
        '<a href="x" onclick="alert(1)">x</a>',
        "<svg onload=alert(1)>",
        "[x](data:text/html;base64,PHNjcmlwdD4=)",
        "<style>*{display:none}</style>",
    ],
)
def test_hostile_notes_bring_nothing_that_runs_or_loads(page: Client, user: User, notes: str) -> None:
    rendered = notes_html(notes)
    assert not re.search(r"<(?!/?(?:p|br|a|code|em|strong)\b)|href=\"(?:javascript|data):|<a[^>]* on", rendered)
    experiment = experiment_create(name="Hostile", notes=notes, owner=user)
    content = page.get(f"{experiment.get_absolute_url()}report/").content.decode()
    assert "<script>alert" not in content
    assert "onerror=alert(1)>" not in content


def test_very_long_notes_are_shown_as_they_are() -> None:
    assert notes_html("*" * 300_000).startswith("<pre>")
