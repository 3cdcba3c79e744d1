"""Triangles beside doubted numbers, the lists of findings, acknowledging, and the page of rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.findings import RULES
from parlab.findings.sweep_points import Off, Point, off
from parlab.lab.models import Experiment, Finding, Run, Source
from runners.config import digest

from .conftest import finish
from .test_experiments import CONFIGURATION, EXPERIMENT, TABLE, text

pytestmark = pytest.mark.django_db

EVIL = "<script>alert(1)</script>"
MakeFinding = Callable[..., Finding]


@pytest.fixture
def make_finding(experiment: Experiment) -> MakeFinding:
    """Make a finding as the rules would: make_finding(run=run, figure="samples_per_s")."""

    def make(
        *,
        run: Run | None = None,
        source: Source | None = None,
        rule: str = "samples-per-second",
        severity: str = "error",
        message: str = "8 samples/s are stated, but 4 samples / 0.4 s = 10 samples/s.",
        lines: tuple[int, ...] = (),
        **where: Any,
    ) -> Finding:
        return Finding.objects.create(
            experiment=experiment,
            run=run,
            source=source,
            rule=rule,
            severity=severity,
            message=message,
            numbers={"samples_per_s": 8.0, "expected_samples_per_s": 10.0},
            where=where,
            where_digest=digest([where, run and run.pk, source and source.pk, rule]),
            lines=list(lines),
        )

    return make


def triangles(content: bytes, part: str) -> list[str]:
    """List the ids in the links of the triangles of an element."""
    element = re.search(part, content.decode(), re.S)
    assert element
    return re.findall(r'class="doubt doubt-\w+" href="[^"]*\?id=([\d,]+)"', element[0])


def row_of(run: Run) -> str:
    return rf'<tr data-run="{run.number}".*?</tr>'


def test_a_number_with_findings_has_a_triangle(page: Client, four_runs: list[Run], make_finding: MakeFinding) -> None:
    doubted = make_finding(run=four_runs[1], figure="samples_per_s")
    content = page.get(TABLE).content
    assert triangles(content, row_of(four_runs[1])) == [str(doubted.pk)]
    assert triangles(content, row_of(four_runs[0])) == []
    cell = re.search(r'10\.0+</span><a class="doubt doubt-error"', content.decode())
    assert cell, "the triangle is not behind the throughput"
    assert triangles(content, r'<table class="sweep">.*?</table>') == []
    response = page.get(f"{TABLE}?metric=samples").content
    assert triangles(response, r'<table class="sweep">.*?</table>') == [str(doubted.pk)]
    assert triangles(page.get(EXPERIMENT).content, r'<li class="rl" data-run="2".*?</li>') == [str(doubted.pk)]


def test_a_finding_of_a_whole_run_is_shown_at_its_number_and_in_every_sweep(
    page: Client, four_runs: list[Run], make_finding: MakeFinding
) -> None:
    doubted = make_finding(rule="hidden-setting", severity="warning", run=None)
    of_sweep = make_finding(rule="off-neighbours", severity="warning", figure="launch")
    Finding.objects.filter(pk=of_sweep.pk).update(where={"run": four_runs[2].number})
    content = page.get(TABLE).content
    assert triangles(content, row_of(four_runs[2])) == [str(of_sweep.pk)]
    assert triangles(content, r'<table class="sweep">.*?</table>') == [str(of_sweep.pk)]
    assert f'id="finding-{doubted.pk}"' in page.get(CONFIGURATION).content.decode()


def test_several_findings_about_a_number_share_a_triangle(
    page: Client, four_runs: list[Run], make_finding: MakeFinding
) -> None:
    first = make_finding(run=four_runs[0], figure="step_time_s", severity="warning")
    second = make_finding(run=four_runs[0], figure="ms_per_sample", rule="time-per-sample")
    links = triangles(page.get(TABLE).content, row_of(four_runs[0]))
    assert links == [f"{second.pk},{first.pk}"]


@pytest.mark.database
def test_a_finding_about_a_launch_is_shown_at_its_run(
    page: Client, four_runs: list[Run], make_finding: MakeFinding, make_source: Callable[..., Source]
) -> None:
    source = make_source()
    Run.objects.filter(pk=four_runs[3].pk).update(source=source, place={"segment": 2}, origin="imported")
    Run.objects.filter(pk=four_runs[1].pk).update(source=source, place={"table": 0, "row": 1}, origin="imported")
    Run.objects.filter(pk=four_runs[0].pk).update(
        source=source, place={"table": 0, "row": 2, "column": 1}, origin="imported"
    )
    launch = make_finding(source=source, segment=2, figure="tokens_per_s", lines=(3,))
    cell = make_finding(source=source, table=0, row=2, column=1)
    row = make_finding(source=source, table=0, row=1, column=3)
    content = page.get(TABLE).content
    assert triangles(content, row_of(four_runs[3])) == [str(launch.pk)]
    assert triangles(content, row_of(four_runs[0])) == [str(cell.pk)]
    assert triangles(content, row_of(four_runs[1])) == [str(row.pk)]
    assert triangles(content, row_of(four_runs[2])) == []
    run = page.get(f"{EXPERIMENT}runs/{four_runs[3].number}/")
    details = page.get(f"{EXPERIMENT}runs/{four_runs[3].number}/details/").content.decode()
    assert f'id="finding-{launch.pk}"' in details
    assert f'id="finding-{cell.pk}"' not in details
    assert triangles(run.content, r"<dt>(?:<a[^>]*>)?Throughput.*?</div>") == [str(launch.pk)]


def test_the_panel_shows_both_numbers_the_rule_and_the_place_in_the_log(
    page: Client, make_finding: MakeFinding, make_source: Callable[..., Source]
) -> None:
    source = make_source(b"first\nsecond\nelapsed 4 s\nfourth\n")
    doubted = make_finding(source=source, segment=0, figure="samples_per_s", lines=(3,))
    panel = page.get(f"{EXPERIMENT}findings/?id={doubted.pk}", headers={"HX-Request": "true"})
    assert "<html" not in panel.content.decode()
    page_text = text(panel)
    assert "8 samples/s are stated, but 4 samples / 0.4 s = 10 samples/s." in page_text
    assert "Throughput 8 samples/s Expected throughput 10 samples/s" in page_text
    assert f'href="/findings/rules/#{doubted.rule}"' in panel.content.decode()
    assert '<span class="meant"><i>3</i> elapsed 4 s' in panel.content.decode()
    assert "second" in page_text
    assert "first" not in page_text
    assert f"/sources/{source.pk}/lines/3-3/" in panel.content.decode()
    whole = page.get(f"{EXPERIMENT}findings/?id={doubted.pk}")
    assert "<html" in whole.content.decode()
    assert "Show all 1" in text(whole)


def test_the_numbers_of_an_outlier_have_the_unit_of_its_source(page: Client, make_finding: MakeFinding) -> None:
    outlier = off(Off(Point(1, 16, 22.272), 216.23, Point(0, 8, 120.5), Point(2, 32, 377.0)), "GPUs")
    finding = make_finding(rule="off-neighbours", message=outlier.message)
    Finding.objects.filter(pk=finding.pk).update(numbers=outlier.numbers)
    panel = text(page.get(f"{EXPERIMENT}findings/?id={finding.pk}", headers={"HX-Request": "true"}))
    assert "Factor 9.71 Throughput 22.272 samples/s Expected throughput 216.23 samples/s" in panel


@pytest.mark.parametrize("ids", ["999999", "x", "1,,2", "\u0662", "9" * 40])
def test_odd_ids_break_nothing(page: Client, make_finding: MakeFinding, ids: str) -> None:
    make_finding()
    assert page.get(f"{EXPERIMENT}findings/", {"id": ids}).status_code == 200
    assert page.get(f"{EXPERIMENT}findings/", {"id": ids}, headers={"HX-Request": "true"}).status_code == 200


def test_acknowledging_needs_a_reason_and_turns_the_triangle_grey(
    page: Client, four_runs: list[Run], make_finding: MakeFinding
) -> None:
    doubted = make_finding(run=four_runs[0], figure="samples_per_s")
    url = f"{EXPERIMENT}findings/{doubted.pk}/acknowledge/"
    refused = page.post(url, {"reason": "  ", "next": EXPERIMENT}, follow=True)
    assert "reason is empty" in text(refused)
    assert not Finding.objects.get().is_acknowledged
    answer = page.post(url, {"reason": f"Warm-up {EVIL}", "next": f"{EXPERIMENT}#finding-{doubted.pk}"})
    assert answer.headers["Location"] == f"{EXPERIMENT}#finding-{doubted.pk}"
    assert "doubt-known" in page.get(TABLE).content.decode()
    content = page.get(CONFIGURATION).content.decode()
    assert "0 open, 1 in total" in content
    assert "ada, <time" in content.replace("\n", "")
    assert "<script>alert" not in content
    assert page.post(f"{EXPERIMENT}findings/{doubted.pk}/reopen/").headers["Location"] == f"{EXPERIMENT}findings/"
    assert "doubt-error" in page.get(EXPERIMENT).content.decode()


def test_a_way_back_to_another_site_is_not_taken(page: Client, make_finding: MakeFinding) -> None:
    doubted = make_finding()
    url = f"{EXPERIMENT}findings/{doubted.pk}/acknowledge/"
    for target in ("https://evil.example/", "//evil.example/", "javascript:alert(1)"):
        assert page.post(url, {"reason": "fine", "next": target}).headers["Location"] == f"{EXPERIMENT}findings/"


def test_acknowledging_needs_the_right_and_a_post(
    viewer: Client, allowed: Callable[..., Client], make_finding: MakeFinding
) -> None:
    doubted = make_finding()
    for action in ("acknowledge", "reopen"):
        url = f"{EXPERIMENT}findings/{doubted.pk}/{action}/"
        assert viewer.post(url, {"reason": "fine"}).status_code == 403
        assert viewer.get(url).status_code == 405
    assert "Acknowledge" not in text(viewer.get(f"{EXPERIMENT}findings/"))
    url = f"{EXPERIMENT}findings/{doubted.pk}/acknowledge/"
    assert allowed("change_finding").post(url, {"reason": "fine"}).status_code == 302
    assert Finding.objects.get().is_acknowledged


def test_a_finding_is_only_found_under_its_own_experiment(page: Client, user: User, make_finding: MakeFinding) -> None:
    doubted = make_finding()
    Experiment.objects.create(name="Other", slug="other", owner=user)
    url = f"/experiments/other/findings/{doubted.pk}/acknowledge/"
    assert page.post(url, {"reason": "fine"}).status_code == 404


def test_the_list_of_experiments_counts_open_findings(
    page: Client, four_runs: list[Run], make_finding: MakeFinding
) -> None:
    assert "/findings/" not in page.get("/experiments/").content.decode()
    findings = [make_finding(run=run, figure="samples_per_s") for run in four_runs]
    page.post(f"{EXPERIMENT}findings/{findings[0].pk}/acknowledge/", {"reason": "fine"})
    assert f'href="{EXPERIMENT}findings/">3 findings</a>' in page.get("/experiments/").content.decode()


def test_a_page_takes_as_many_queries_for_many_findings_as_for_one(
    page: Client, four_runs: list[Run], make_finding: MakeFinding, django_assert_num_queries: Any
) -> None:
    make_finding(run=four_runs[0], figure="samples_per_s")
    page.get(EXPERIMENT)  # the first visit records itself
    # session, person, experiment, versions, runs, findings, tags, files, reports, saved views, dashboards, marks,
    # surroundings with nodes, visit, comments on the experiment and on findings, archived runs
    with django_assert_num_queries(21):
        page.get(EXPERIMENT)
    for number in range(30):
        make_finding(run=four_runs[number % 4], figure="samples_per_s", column=number)
    with django_assert_num_queries(21):
        response = page.get(EXPERIMENT)
    assert "31 open findings" in text(response)
    assert "Show all 31" in text(page.get(CONFIGURATION))
    # session, person, experiment, projects, findings, comments, and what the frame counts
    with django_assert_num_queries(10):
        page.get(f"{EXPERIMENT}findings/")


def test_a_new_finding_changes_what_a_poll_answers(
    page: Client, four_runs: list[Run], make_finding: MakeFinding
) -> None:
    seen = page.get(f"{EXPERIMENT}live/").context["seen"]
    assert page.get(f"{EXPERIMENT}live/?seen={seen}").status_code == 204
    make_finding(run=four_runs[0], figure="samples_per_s")
    assert page.get(f"{EXPERIMENT}live/?seen={seen}").status_code == 200


def test_what_a_hostile_log_put_into_a_message_is_text(
    page: Client, four_runs: list[Run], make_finding: MakeFinding, make_source: Callable[..., Source]
) -> None:
    source = make_source(f"{EVIL}\n".encode(), name=f"{EVIL}.log")
    doubted = make_finding(
        source=source, run=four_runs[0], message=f"{EVIL} is not 4", figure=f'"{EVIL}', lines=(1,), rule=f'"{EVIL}'
    )
    run = four_runs[0].get_absolute_url()
    for url in (EXPERIMENT, run, f"{EXPERIMENT}findings/", f"{EXPERIMENT}findings/?id={doubted.pk}"):
        content = page.get(url).content.decode()
        assert "<script>alert" not in content
        assert "&lt;script&gt;alert" in content


def test_every_rule_is_explained_where_its_name_leads(page: Client) -> None:
    content = page.get("/findings/rules/").content.decode()
    missing = [rule for rule in RULES if f'id="{rule}"' not in content]
    assert not missing


def test_explanations_are_rendered_without_running_anything_in_them(tmp_path: Any, settings: Any, page: Client) -> None:
    settings.SHIPPED_DIR = tmp_path
    (tmp_path / "docs" / "understand").mkdir(parents=True)
    (tmp_path / "docs" / "understand" / "findings.md").write_text(
        f"# Findings\n\n{EVIL}\n\n[x](javascript:alert(1))\n\n## `best-row`\n\nWhy.\n"
    )
    content = page.get("/findings/rules/").content.decode()
    assert "<script>alert" not in content
    assert 'href="javascript' not in content
    assert '<h2 id="best-row"><code>best-row</code></h2>' in content


def test_a_finished_run_without_findings_has_no_triangle(page: Client, make_attempt: Callable[..., Any]) -> None:
    run = finish(make_attempt())
    assert "data-doubt" not in page.get(run.get_absolute_url()).content.decode()
    assert "No findings" in text(page.get(f"{EXPERIMENT}findings/"))
