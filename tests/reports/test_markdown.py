"""Reports: what a reader gets, doubts included."""

from collections.abc import Callable
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from parlab.lab.models import Attempt, Finding
from parlab.reports.markdown import Cell, Doubt, Report, markdown


def test_a_number_with_a_finding_is_marked_and_the_finding_is_listed() -> None:
    text = markdown(
        Report(
            title="Scaling",
            question="How fast?",
            source="",
            columns=["Run", "Throughput"],
            rows=[[Cell("#1"), Cell("22 samples/s", [1])]],
            doubts=[Doubt("warning", "22 samples/s, but 216 between its neighbours", "off-neighbours", "slow node")],
        )
    )

    assert "| \\#1 | 22 samples/s ▲1 |" in text
    assert "1. ▲1 **warning** 22 samples/s, but 216 between its neighbours (rule off-neighbours)" in text
    assert text.rstrip().endswith("Acknowledged: slow node")


def test_names_are_escaped() -> None:
    text = markdown(Report("<script>*a*</script>", "", "", ["A|B"], [[Cell("x | y\n# z")]], []))

    assert "\\<script\\>\\*a\\*\\</script\\>" in text
    assert "| x \\| y \\# z |" in text


def test_the_report_of_an_experiment_is_offered_on_its_page_and_by_a_command(
    client: Client, make_attempt: Callable[..., Attempt]
) -> None:
    run = make_attempt(state="finished").run
    run.samples_per_s, run.label = 12.0, "micro_batch_size 1"
    run.save()
    finding = Finding.objects.create(
        experiment=run.experiment,
        run=run,
        rule="samples-per-s",
        severity="error",
        message="12 samples/s, but batch / time is 4",
        where={"figure": "samples_per_s"},
    )
    client.force_login(run.created_by)

    page = client.get(reverse("experiment", args=[run.experiment.slug])).content.decode()
    response = client.get(reverse("report", args=[run.experiment.slug]))
    out = StringIO()
    call_command("report", run.experiment.slug, stdout=out)

    assert reverse("report", args=[run.experiment.slug]) in page
    text = response.content.decode()
    assert response["Content-Disposition"] == f'attachment; filename="{run.experiment.slug}.md"'
    (row,) = [line for line in text.splitlines() if line.startswith("| \\#1")]
    assert row.split("|")[5].strip().startswith("12.0")
    assert row.split("|")[5].rstrip().endswith("samples/s ▲1")
    assert finding.message in text
    assert out.getvalue().strip() == text.strip()


def test_a_report_of_an_unknown_experiment_lists_the_existing_ones(db: None) -> None:
    with pytest.raises(CommandError, match="no experiment nowhere; existing experiments: none"):
        call_command("report", "nowhere")
