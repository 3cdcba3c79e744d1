"""Writing reports: what directives become, who may save, and who comes second."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from parlab.lab.models import Config, Experiment, Finding, PictureJob, Report, ReportVersion, Run
from parlab.lab.services.experiments import experiment_delete
from parlab.lab.services.reports import report_create
from parlab.reports.templates import TEMPLATES

pytestmark = pytest.mark.django_db

Make = Callable[[str], Report]
PIVOT = "{{ table pivot rows=schedule columns=micro_batch_size value=step_time_s unit=s decimals=2 }}"


def shown(client: Client, report: Report) -> str:
    return client.get(report.get_absolute_url()).content.decode()


def test_a_report_shows_current_figures_tables_and_values(
    page: Client, four_runs: list[Run], make_report: Make
) -> None:
    text = f"# Schedules\n\nBest: {{{{ value samples_per_s run=3 }}}}.\n\n{{{{ figure throughput }}}}\n\n{PIVOT}\n"
    report = make_report(text)

    html = shown(page, report)

    assert "<h1>Schedules</h1>" in html
    assert "What we found</h1>" not in html  # the text brings its own title
    assert ">20.0" in html
    assert "0.50</td>" in html
    assert "<b>0.20</b>" in html
    url = f"{reverse('report-figure', args=[report.slug])}?d=figure%20throughput"
    assert f'data-figure-url="{url}"' in html
    figure = json.loads(page.get(url).content)
    assert figure["figure"]["data"]
    assert page.get(f"{url}&format=csv").content.startswith(b"run,")


def test_a_value_of_an_imported_run_keeps_the_digits_of_its_file(
    page: Client, four_runs: list[Run], make_report: Make
) -> None:
    runs = Run.objects.filter(pk=four_runs[2].pk)
    runs.update(samples_per_s=2502.236)
    report = make_report("Best: {{ value samples_per_s run=3 }}.")
    assert ">2,500" in shown(page, report)

    runs.update(origin=Run.Origin.IMPORTED)

    assert ">2,502.236" in shown(page, report)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ chart throughput }}", "unknown directive &#x27;chart&#x27;; use one of figure, table, value, config"),
        ("{{ figure nonsense }}", "unknown figure &#x27;nonsense&#x27;; use one of throughput"),
        ("{{ figure throughput experiment=gone }}", "experiment &#x27;gone&#x27; does not exist, or it was deleted"),
        ("{{ figure step-time run=99 }}", "has no run 99 in this version, or it was deleted"),
        ("{{ table pivot rows=nobody_has value=step_time_s }}", "unknown field &#x27;nobody_has&#x27;"),
        ("{{ table pivot rows=schedule }}", "table pivot requires value="),
        ("{{ table heap }}", "unknown table heap; use one of pivot, run, runs"),
        ("{{ value step_time_s }}", "4 runs have step_time_s; select one with run="),
        ("{{ value step_time_s run=1 colour=red }}", "unknown option &#x27;colour&#x27; of value"),
        ("{{ value step_time_s run=1 run=2 }}", "duplicate option &#x27;run&#x27;"),
        ('{{ value step_time_s where="schedule~gpipe" }}', "invalid condition &#x27;schedule~gpipe&#x27;"),
        ("{{ figure throughput where=schedule=nothing }}", "no run matches where="),
        ("{{ value step_time_s run=one }}", "run=&#x27;one&#x27; is not a whole number"),
        ("{{ picture ../../etc/passwd }}", "does not exist, or it was deleted"),
        ("{{ picture abc }}", "is too short"),
        ("{{ }}", "empty directive"),
        ("{{ figure throughput", "the closing }} of this directive is missing"),
        ("In a sentence {{ figure throughput }}.", "must be on a line of its own"),
    ],
)
def test_an_invalid_directive_is_reported_in_its_place(
    page: Client, four_runs: list[Run], make_report: Make, text: str, message: str
) -> None:
    report = make_report(f"Before.\n\n{text}\n\nAfter.")

    response = page.get(report.get_absolute_url())

    assert response.status_code == 200
    html = response.content.decode()
    assert "Before." in html
    assert f"Not shown: {message}" in html or message in html.split("Not shown: ")[1][:400]


def test_the_options_of_a_figure_select_axes_and_scales(page: Client, four_runs: list[Run], make_report: Make) -> None:
    report = make_report("")
    url = reverse("report-figure", args=[report.slug])

    def drawn(options: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(page.get(url, {"d": f"figure throughput {options}"}).content)
        return answer

    log_figure = drawn("y=step_time x=micro_batch_size by=schedule y_scale=log")
    layout = log_figure["figure"]["layout"]
    assert layout["yaxis"]["type"] == "log"
    assert "Step time" in layout["yaxis"]["title"]["text"]
    assert drawn("y=speed")["empty"].startswith("unknown y='speed'; use one of samples_per_s")
    assert drawn("x=nothing")["empty"].startswith("unknown field 'nothing'")
    assert drawn("x_scale=cubic")["empty"].startswith("unknown x_scale='cubic'; use one of auto, linear, log")
    assert json.loads(page.get(url, {"d": "figure utilisation y=step_time"}).content)["empty"].startswith(
        "figure utilisation has fixed axes"
    )


@pytest.mark.parametrize("name", ["predicted", "bandwidth"])
def test_a_figure_without_data_has_the_same_message_as_on_the_experiment_page(
    page: Client, four_runs: list[Run], make_report: Make, name: str
) -> None:
    report = make_report(f"{{{{ figure {name} }}}}")

    answer = page.get(reverse("report-figure", args=[report.slug]), {"d": f"figure {name}"}).json()
    there = page.get(reverse("experiment-figure", args=[four_runs[0].experiment.slug, name])).json()

    assert answer["empty"] == there["empty"]
    assert answer["empty"]


def test_a_new_version_without_results_leaves_the_report_with_the_results_of_the_last(
    page: Client, four_runs: list[Run], make_report: Make, make_config: Callable[..., Config]
) -> None:
    report = make_report(f"{{{{ value samples_per_s run=3 }}}}\n\n{{{{ figure throughput }}}}\n\n{PIVOT}")
    assert "Results of version" not in shown(page, report)

    make_config(sweep={})

    html = shown(page, report)
    assert "20.0" in html
    assert html.count("Results of version 1; version 2 has none.") == 2
    figure = page.get(f"{reverse('report-figure', args=[report.slug])}?d=figure%20throughput").json()
    assert figure["caption"].endswith("Results of version 1; version 2 has none.")
    assert "Results of version" not in shown(page, make_report("{{ table runs version=1 columns=run }}"))


def test_a_deleted_run_is_reported_in_its_place(page: Client, four_runs: list[Run], make_report: Make) -> None:
    report = make_report('{{ value step_time_s run=2 }}\n\n{{ figure throughput where="run!=2" }}')
    four_runs[1].delete()

    html = shown(page, report)

    assert "has no run 2 in this version, or it was deleted" in html
    assert "data-figure-url" in html


def test_a_draft_reports_its_deleted_experiment_and_published_versions_stay(
    page: Client, four_runs: list[Run], make_version: Callable[[str], ReportVersion]
) -> None:
    version = make_version("{{ value step_time_s run=1 }} a step")
    url = reverse("report-version", args=[version.report.slug, 1])
    before = page.get(f"{url}report.md").content

    experiment_delete(experiment=four_runs[0].experiment)

    draft = page.get(reverse("written-report", args=[version.report.slug])).content.decode()
    assert "has no default experiment, or it was deleted; add experiment=slug" in draft
    assert page.get(url).status_code == 200
    assert page.get(f"{url}report.md").content == before
    assert b"500" in before


def test_hostile_text_is_never_executed(page: Client, experiment: Experiment, make_report: Make) -> None:
    report = make_report(
        "# <script>alert(1)</script>\n\n<img src=x onerror=alert(2)>\n\n[click](javascript:alert(3))"
        " [data](data:text/html;base64,PHNjcmlwdD4=) ![beacon](https://elsewhere.example/pixel.png)\n\n"
        '<div data-block="0">x</div>\n\n| <svg onload=alert(4)> | b |\n|---|---|\n| `<script>` | d |\n\n'
        '{{ value "<script>alert(5)</script>" }}\n\n{{ figure <script> title="<b>bold</b>" }}\n'
    )
    experiment.name = "<script>alert(6)</script>"
    experiment.save()

    html = shown(page, report)
    body = html[html.index('<article class="report') : html.index("</article>")]

    tags = re.findall(r"<[^>]*>", body)
    assert not [tag for tag in tags if re.match(r"<(script|img|svg|iframe|object|style)", tag)]
    assert not [tag for tag in tags if re.search(r"\son\w+=|javascript:|data:|style=", tag)]
    assert "<script>alert" not in html
    # A picture elsewhere is a link: a report loads nothing from other places.
    assert 'href="https://elsewhere.example/pixel.png"' in body


def test_directives_in_code_and_escaped_directives_are_text(
    page: Client, four_runs: list[Run], make_report: Make
) -> None:
    html = shown(page, make_report("`{{ value x }}` and \\{{ value y }}\n\n```\n{{ figure throughput }}\n```\n"))

    assert "<code>{{ value x }}</code>" in html
    assert "{{ value y }}" in html
    assert "data-figure-url" not in html


def test_a_number_with_a_finding_is_marked_and_the_finding_is_listed(
    page: Client, four_runs: list[Run], make_report: Make
) -> None:
    run = four_runs[0]
    message = "8 samples/s, but batch / time is 4"
    Finding.objects.create(
        experiment=run.experiment,
        run=run,
        rule="samples-per-s",
        severity="error",
        message=message,
        where={"figure": "samples_per_s"},
    )

    html = shown(
        page,
        make_report("{{ value samples_per_s run=1 }} {{ value samples_per_s run=2 }}\n\n{{ figure throughput }}\n"),
    )

    assert html.count("\N{BLACK UP-POINTING TRIANGLE}1") == 2  # at the number and at the figure that draws it
    assert '<li id="finding-1"><b>error</b>' in html
    assert message in html


def test_a_conflicting_save_is_refused_and_keeps_the_text(page: Client, make_report: Make, user: User) -> None:
    report = make_report("first")
    url = reverse("report-save", args=[report.slug])

    saved = page.post(url, {"title": "T", "text": "mine", "revision": 1})
    two = page.post(url, {"title": "T", "text": "theirs", "revision": 1})

    assert saved.json()["revision"] == 2
    assert two.status_code == 409
    assert two.json()["text"] == "mine"
    assert two.json()["problem"].startswith("Not saved: ada saved this report at")
    assert Report.objects.get().text == "mine"
    assert (
        page.post(url, {"title": "", "text": "x", "revision": 2})
        .json()["problem"]
        .startswith("Not saved: title is empty")
    )
    assert page.post(url, {"title": "T", "text": "x", "revision": "new"}).status_code == 400


def test_opening_a_report_that_is_being_edited_shows_a_warning(
    page: Client, make_report: Make, user: User, django_user_model: type[User]
) -> None:
    report = make_report("text")
    second = django_user_model.objects.create_user("grace", password="another long one", is_superuser=True)
    client = Client()
    client.force_login(second)

    first = page.get(reverse("report-edit", args=[report.slug])).content.decode()
    other = client.get(reverse("report-edit", args=[report.slug])).content.decode()

    assert 'role="alert" hidden' in first
    assert "ada also has this report open" in other
    assert client.post(reverse("report-editing", args=[report.slug])).json()["other"] == "ada"


def test_a_preview_shows_a_text_without_saving_it(page: Client, four_runs: list[Run], make_report: Make) -> None:
    report = make_report("old")

    answer = page.post(reverse("report-preview", args=[report.slug]), {"title": "New", "text": "**new** text"})

    assert "<h1>New</h1>" in answer.content.decode()
    assert "<strong>new</strong>" in answer.content.decode()
    assert Report.objects.get().text == "old"


def test_a_text_that_is_too_long_is_refused(page: Client, make_report: Make) -> None:
    report = make_report("x" * 200_001)

    assert "the text has 200001 characters, more than 200000" in shown(page, report)


@pytest.mark.parametrize("template", list(TEMPLATES))
def test_each_template_creates_a_report_without_problems(page: Client, four_runs: list[Run], template: str) -> None:
    slug = four_runs[0].experiment.slug
    form = {"title": "Mine", "experiment": slug, "template": template}

    response = page.post(reverse("report-new"), form)

    report = Report.objects.get()
    assert response.headers["Location"] == reverse("report-edit", args=[report.slug])
    problems = re.findall(r"Not shown: ([^<]*)", shown(page, report))
    # Panels are being drawn.
    assert [problem for problem in problems if "has not been drawn yet" not in problem] == []
    assert PictureJob.objects.count() == (4 if template == "case" else 0)


def test_a_new_report_requires_valid_fields(page: Client, experiment: Experiment) -> None:
    for form, message in (
        ({"title": "", "template": "blank"}, "title is empty; enter a title"),
        ({"title": "A", "template": "none"}, "Unknown template &#x27;none&#x27;"),
        ({"title": "A", "template": "blank", "experiment": "gone"}, "Experiment gone no longer exists"),
    ):
        response = page.post(reverse("report-new"), form)
        assert response.status_code == 400
        assert message in response.content.decode()
    assert not Report.objects.exists()


def test_a_reader_cannot_write(reader: Client, make_report: Make) -> None:
    report = make_report("text")

    assert reader.get(report.get_absolute_url()).status_code == 200
    assert reader.get(reverse("reports")).status_code == 200
    for name in ("report-edit", "report-save", "report-preview", "report-publish", "report-delete", "report-editing"):
        method = reader.get if name == "report-edit" else reader.post
        assert method(reverse(name, args=[report.slug]), {"revision": 1}).status_code == 403, name
    assert reader.get(reverse("report-new")).status_code == 403


def test_reports_with_the_same_title_have_different_addresses(user: User) -> None:
    reports = [report_create(title="Same", text="", experiment=None, user=user) for _ in range(3)]

    assert [report.slug for report in reports] == ["same", "same-2", "same-3"]
    assert report_create(title="New", text="", experiment=None, user=user).slug == "new-2"


def test_an_escaped_comma_belongs_to_its_value(page: Client, four_runs: list[Run], make_report: Make) -> None:
    run = four_runs[0]
    run.point = {**run.point, "network": "slow, far"}
    run.save()

    html = shown(page, make_report('{{ value step_time_s where="network=slow\\, far, schedule=gpipe" unit=s }}'))

    assert 'title="0.5' in html


def test_a_nul_character_in_a_request_is_no_error(page: Client, four_runs: list[Run], make_report: Make) -> None:
    report = make_report("text")
    text = "{{ figure throughput experiment=a\0b }} {{ value a\0 run=1 }}\n\n{{ picture a\0bcdefg }}\n"

    assert page.get(reverse("reports"), {"q": "a\0b"}).status_code == 200
    assert page.post(reverse("report-preview", args=[report.slug]), {"text": text}).status_code == 200
    assert page.get(reverse("report-figure", args=[report.slug]), {"d": text[3:40]}).status_code == 200
    assert page.post(reverse("report-new"), {"title": "a\0b", "experiment": "a\0b"}).status_code == 400
    form = {"title": "a\0b", "text": text, "revision": 1}
    assert page.post(reverse("report-save", args=[report.slug]), form).status_code == 200
