"""What pages show of imported files, and how their bytes leave the server."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import AsyncClient, Client

from parlab.lab.models import Experiment, Picture, Run, Source
from parlab.lab.selectors.sources import source_lines

from .test_experiments import EXPERIMENT, text

pytestmark = pytest.mark.django_db

DOCUMENT = b"""# Case

| Network | Size 1 | Size 2 |
|:--------|-------:|:------:|
| fast | 6.64 s | OOM |
| slow (gas = 4) | | n/a |

GPU util: ~85%

- batch size = 12

```json
{"stages": 8, "note": "<b>"}
```

![a picture](figures/one.png)
![another](figures/two.svg)
"""
MakeSource = Callable[..., Source]


def raw(user: User, path: str) -> tuple[Any, bytes]:
    """Fetch as an ASGI server does, in pieces."""

    async def fetch() -> tuple[Any, bytes]:
        client = AsyncClient()
        await client.aforce_login(user)
        response: Any = await client.get(path)
        return response, b"".join([piece async for piece in response.streaming_content])

    return async_to_sync(fetch)()


def test_the_page_of_an_experiment_shows_its_documents_complete(page: Client, make_source: MakeSource) -> None:
    source = make_source(DOCUMENT, name="case.md")
    content = page.get(f"{EXPERIMENT}configuration/").content.decode()
    table = re.search(r'<div class="scroll card document".*?</table>', content, re.S)
    assert table
    rows = [
        [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)]
        for row in re.findall(r"<tr>(.*?)</tr>", table[0], re.S)
    ]
    assert rows == [
        ["Network", "Size 1", "Size 2"],
        ["fast", "6.64 s", "OOM"],
        ["slow (gas = 4)", "\N{EN DASH}", "n/a"],
    ]
    assert '<td class="to-right document-number" title="6.64 s">' in table[0]
    assert '<td class="to-center document-failure"' in table[0]
    assert '<td class="to-right document-blank" title="Blank in the document">' in table[0]
    page_text = text(page.get(f"{EXPERIMENT}configuration/"))
    assert "85.0 %" in page_text
    assert "GPU util: ~85%" in page_text
    assert "&quot;stages&quot;: 8" in content
    assert "&lt;b&gt;" in content
    assert "figures/one.png" in page_text
    assert "Not imported: the file was not included with the document." in page_text
    assert f'href="{EXPERIMENT}sources/{source.pk}/raw/"' in content


@pytest.mark.slow
def test_many_documents_are_left_to_pages_of_their_own(
    page: Client, make_source: MakeSource, django_assert_num_queries: Any
) -> None:
    rows = b"\n".join(b"| %d | %d |" % (number, number) for number in range(900))
    for number in range(3):
        make_source(b"# T%d\n\n| a | b |\n|---|---|\n%s\n" % (number, rows), name=f"{number}.md")
    page.get(f"{EXPERIMENT}configuration/")  # the first visit records itself
    # session, person, projects, experiment, versions, runs, findings, tags, files, pictures, comments, archived runs,
    # and what the frame counts; the stars of the person
    with django_assert_num_queries(17):
        content = page.get(f"{EXPERIMENT}configuration/").content.decode()
    assert content.count('class="scroll card document"') == 1
    last = Source.objects.order_by("-pk")[0]
    assert f'href="{EXPERIMENT}sources/{last.pk}/"' in content
    assert "899" in text(page.get(f"{EXPERIMENT}sources/{last.pk}/"))


def test_the_runs_of_a_file_are_marked_and_lead_to_their_lines(
    page: Client, make_source: MakeSource, four_runs: list[Run]
) -> None:
    source = make_source(b"one\ntwo\nthree\n")
    Run.objects.filter(pk=four_runs[0].pk).update(
        origin="imported",
        source=source,
        first_line=2,
        last_line=3,
        resolved={"train": {"micro_batch_size": 4}},
        launch={"arguments": {"micro_batch_size": 4, "lr": "<b>1e-4</b>"}},
        summary={"figures": {"avg_step_fps": {"value": 2.59, "unit": "", "text": "2.59"}}},
    )
    listed = page.get(f"{EXPERIMENT}table/")
    assert '<span class="origin" title="imported from a file">imported</span>' in listed.content.decode()
    assert "Throughput (avg_step_fps)" in text(listed)
    assert "2.59" in text(listed)
    run = page.get(f"{four_runs[0].get_absolute_url()}details/")
    assert f'href="{EXPERIMENT}sources/{source.pk}/lines/2-3/">lines 2 to 3</a>' in run.content.decode()
    assert "Values from the imported file" in text(run)
    assert "&lt;b&gt;1e-4&lt;/b&gt;" in run.content.decode()
    assert 'id="relaunch"' not in run.content.decode()


def test_an_experiment_of_files_offers_no_launch(page: Client, four_runs: list[Run]) -> None:
    Run.objects.update(origin="imported")
    content = page.get(EXPERIMENT).content.decode()
    assert 'id="launch"' not in content
    assert "These are published results" not in content


def test_columns_that_no_imported_run_fills_are_left_out(page: Client, four_runs: list[Run]) -> None:
    Run.objects.update(
        origin="imported", summary={}, step_time_s=None, samples_per_s=None, tokens_per_s=None, memory_max_bytes=None
    )
    response = page.get(f"{EXPERIMENT}table/")
    heading = re.search(r'<table class="rows runs-table">.*?</thead>', response.content.decode(), re.S)
    assert heading
    assert "tokens/s" not in heading[0]
    assert "Step time" not in heading[0]
    assert response.content.decode().count('class="figure card') == response.content.decode().count("data-missing=")


def test_a_file_is_downloaded_as_it_was_and_never_shown(user: User, make_source: MakeSource) -> None:
    content = b"<script>alert(1)</script>\r\n\x00\xff" * 20
    source = make_source(content, name='../evil\\"\u202egpj.html')
    response, got = raw(user, f"{EXPERIMENT}sources/{source.pk}/raw/")
    assert got == content
    assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in response.headers["Content-Security-Policy"]
    disposition = response.headers["Content-Disposition"]
    assert disposition.startswith("attachment")
    assert "/" not in disposition.partition("filename")[2].removeprefix("*=utf-8''")
    assert "\u202e" not in disposition
    assert int(response.headers["Content-Length"]) == len(content)


def test_a_file_is_only_found_under_its_own_experiment(page: Client, user: User, make_source: MakeSource) -> None:
    source = make_source()
    Experiment.objects.create(name="Other", slug="other", owner=user)
    for path in ("", "raw/", "lines/1-1/"):
        assert page.get(f"/experiments/other/sources/{source.pk}/{path}").status_code == 404


@pytest.mark.parametrize(
    ("media_type", "served", "disposition"),
    [
        ("image/png", "image/png", "inline"),
        ("image/svg+xml", "application/octet-stream", "attachment"),
        ("text/html", "application/octet-stream", "attachment"),
    ],
)
def test_only_pictures_that_run_nothing_are_shown(
    page: Client, make_source: MakeSource, media_type: str, served: str, disposition: str
) -> None:
    source = make_source(DOCUMENT, name="case.md")
    picture = Picture.objects.create(
        source=source, reference="figures/one.png", media_type=media_type, sha256="0", data=b"\x89PNG"
    )
    assert (
        f'<img src="{EXPERIMENT}pictures/{picture.pk}/" alt="a picture"'
        in page.get(f"{EXPERIMENT}configuration/").content.decode()
    )
    response = page.get(f"{EXPERIMENT}pictures/{picture.pk}/")
    assert response.headers["Content-Type"] == served
    assert response.headers["Content-Disposition"].startswith(disposition)
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in response.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (1, 1, [(1, "zero", True), (2, "one\N{MIDDLE DOT}two", False)]),
        (3, 4, [(2, "one\N{MIDDLE DOT}two", False), (3, "", True), (4, "three", True), (5, "four", False)]),
        (5, 5, [(4, "three", False), (5, "four", True)]),
        (9, 9, []),
    ],
)
def test_lines_are_found_across_pieces(
    make_source: MakeSource, first: int, last: int, expected: list[tuple[int, str, bool]]
) -> None:
    source = make_source(b"zero\none\rtwo\n\nthree\nfour")
    assert [tuple(line) for line in source_lines(source, first, last, around=1)] == expected


def test_a_line_without_end_is_cut(make_source: MakeSource) -> None:
    source = make_source(b"x" * 3000 + b"\nnext\n")
    [endless, after] = source_lines(source, 1, 1, around=1)
    assert len(endless.text) == 401
    assert after.text == "next"


def test_lines_that_are_not_there_are_a_404(page: Client, make_source: MakeSource) -> None:
    source = make_source(b"one\n")
    assert "one" in text(page.get(f"{EXPERIMENT}sources/{source.pk}/lines/1-1/"))
    assert page.get(f"{EXPERIMENT}sources/{source.pk}/lines/900-901/").status_code == 404


def test_unread_lines_are_counted_with_examples(page: Client, make_source: MakeSource) -> None:
    source = make_source()
    Source.objects.filter(pk=source.pk).update(
        document={**source.document, "unread": {"lines": 7, "examples": [{"line": 3, "reason": "why", "text": "<i>"}]}}
    )
    content = page.get(f"{EXPERIMENT}sources/{source.pk}/").content.decode()
    assert "7 lines could not be read" in content
    assert "<code>&lt;i&gt;</code>" in content


def test_the_text_of_a_number_is_marked_in_its_line(page: Client, make_source: MakeSource) -> None:
    source = make_source(b"loss: 2.5\nloss: 2.5 <b>\n")
    shown = page.get(f"{EXPERIMENT}sources/{source.pk}/lines/2-2/?find=2.5").content.decode()
    assert shown.count("<mark>2.5</mark>") == 1
    assert "&lt;b&gt;" in shown
