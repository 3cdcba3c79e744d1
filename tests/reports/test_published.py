"""Published reports: frozen, exported, shared by links and revoked."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Callable

import docutils.core
import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from parlab.lab.models import Finding, Report, ReportFile, ReportLink, ReportVersion, Run, StoredFile
from parlab.lab.services.reports import report_create

pytestmark = pytest.mark.django_db

Publish = Callable[[str], ReportVersion]
TEXT = """# Schedules & <networks>

Best is **{{ value samples_per_s run=3 }}**, see `code` and [a page](https://example.org/a_b).

{{ figure throughput }}

- one
- two with {{ value step_time_s run=1 decimals=2 }}

{{ table pivot rows=schedule columns=micro_batch_size value=step_time_s unit=s decimals=2 title="Step_time & more" }}

> quoted

```
{{ figure memory }}
```

| a | b |
|---|--:|
| x | {{ value state run=1 }} |
"""


def file(client: Client, version: ReportVersion, name: str) -> bytes:
    response = client.get(reverse("report-file", args=[version.report.slug, version.number, name]))
    assert response.status_code == 200, response.content
    return bytes(response.content)


def doubted(run: Run) -> Finding:
    return Finding.objects.create(
        experiment=run.experiment,
        run=run,
        rule="step-time",
        severity="warning",
        message="0.5 s, but its phases take 0.9 s | <b>",
        where={"figure": "step_time_s"},
    )


def test_a_published_version_does_not_change(page: Client, four_runs: list[Run], make_version: Publish) -> None:
    version = make_version(TEXT)
    before = page.get(version.get_absolute_url()).content.decode()
    article = before[before.index("<article") : before.index("</article>")]
    figure = file(page, version, "figure-1.json")

    Run.objects.update(samples_per_s=1.0, step_time_s=9.0, summary={})
    four_runs[2].delete()
    Report.objects.update(text="something else", title="Other")

    after = page.get(version.get_absolute_url()).content.decode()
    assert article == after[after.index("<article") : after.index("</article>")]
    assert figure == file(page, version, "figure-1.json")
    assert "20.0" in article
    with pytest.raises(TypeError, match="are immutable"):
        ReportVersion.objects.update(title="x")
    with pytest.raises(TypeError, match="cannot be deleted individually"):
        ReportVersion.objects.all().delete()


def test_publishing_unchanged_content_creates_no_version(
    page: Client, four_runs: list[Run], make_version: Publish
) -> None:
    version = make_version(TEXT)
    url = reverse("report-publish", args=[version.report.slug])

    page.post(url, {"revision": 1})
    assert ReportVersion.objects.count() == 1
    Run.objects.filter(number=3).update(samples_per_s=21.0)
    page.post(url, {"revision": 1})

    assert list(ReportVersion.objects.values_list("number", flat=True)) == [2, 1]


def test_a_text_changed_in_the_meantime_is_not_published(page: Client, make_version: Publish) -> None:
    version = make_version("first")
    slug = version.report.slug
    page.post(reverse("report-save", args=[slug]), {"title": "T", "text": "second", "revision": 1})

    response = page.post(reverse("report-publish", args=[slug]), {"revision": 1}, follow=True)

    assert "Nothing was published: ada saved this report at" in response.content.decode()
    assert ReportVersion.objects.count() == 1


def test_markdown_contains_the_text_with_numbers(page: Client, four_runs: list[Run], make_version: Publish) -> None:
    doubted(four_runs[0])
    text = file(page, make_version(TEXT), "report.md").decode()

    assert text.startswith("# Schedules & <networks>")
    assert "| Schedule | Micro batch size: 1 | Micro batch size: 2 |" in text
    assert "| gpipe | 0.50 ▲1 | **0.40** |" in text
    assert "| x | finished |" in text
    assert "```\n{{ figure memory }}\n```" in text  # code stays as it is
    assert "1. ▲1 **warning** 0.5 s, but its phases take 0.9 s \\| \\<b\\>" in text
    assert "- two with 500.00 ms ▲1" in text


def test_rst_is_parsed_by_docutils_without_warnings(page: Client, four_runs: list[Run], make_version: Publish) -> None:
    doubted(four_runs[0])
    text = file(page, make_version(TEXT), "report.rst").decode()
    warnings = io.StringIO()

    docutils.core.publish_doctree(text, settings_overrides={"warning_stream": warnings, "report_level": 1})

    assert warnings.getvalue() == ""
    assert "Micro batch size: 2" in text
    assert "`a page <https://example.org/a_b>`__" in text
    assert "▲1" in text


def test_imported_texts_are_no_rst_directives_and_end_no_code_block(
    page: Client, four_runs: list[Run], make_version: Publish
) -> None:
    """Axis values and texts may look like markup of the format that they are exported to."""
    run = four_runs[0]
    run.point = {**run.point, "parallel.schedule": ".. include:: /etc/hostname", "note": "``` <script>"}
    run.resolved["model"]["note"] = "```\n.. raw:: html"
    run.save()
    text = (
        "{{ table pivot rows=schedule columns=micro_batch_size value=step_time_s }}\n\n"
        "{{ config run=1 only=model }}\n\n.. include:: /etc/hostname\n\nEnds like a head::\n\n- - a\n\n:field: b\n"
    )
    version = make_version(text)

    rst = file(page, version, "report.rst").decode()
    warnings = io.StringIO()
    settings = {"warning_stream": warnings, "report_level": 1, "file_insertion_enabled": False}
    tree = docutils.core.publish_doctree(rst, settings_overrides=settings)

    assert warnings.getvalue() == ""  # a refused include would be reported here
    assert tree.astext().count(".. include:: /etc/hostname") == 2
    assert "````json\n" in file(page, version, "report.md").decode()


def test_html_is_one_file_without_scripts_or_external_resources(
    page: Client, four_runs: list[Run], make_version: Publish
) -> None:
    doubted(four_runs[0])
    text = file(page, make_version(TEXT), "report.html").decode()

    assert "<script" not in text
    assert not re.findall(r'(?:src|href)="(?!data:|#|https://example.org)', text)
    assert "Schedules &amp; &lt;networks&gt;" in text
    assert "0.40" in text
    assert "▲1" in text


def test_latex_tables_have_rules_and_escaped_texts(page: Client, four_runs: list[Run], make_version: Publish) -> None:
    doubted(four_runs[0])
    text = file(page, make_version(TEXT), "report.tex").decode()

    assert "\\toprule" in text
    assert "\\multicolumn{2}{c}{Micro batch size}" in text
    assert "gpipe & 0.50$^{\\triangle 1}$ & \\textbf{0.40} \\\\" in text
    assert "\\caption{Step\\_time \\& more. Step time in s.}" in text
    assert "$^{\\triangle 1}$ 0.5 s, but its phases take 0.9 s \\textbar{} \\textless{}b\\textgreater{}" in text
    assert text.count("{") == text.count("}")


def test_csv_contains_all_digits_of_tables_and_figures(
    page: Client, four_runs: list[Run], make_version: Publish
) -> None:
    version = make_version(TEXT)

    table = list(csv.reader(io.StringIO(file(page, version, "table-1.csv").decode())))
    figure = list(csv.reader(io.StringIO(file(page, version, "figure-1.csv").decode())))

    assert table[0] == ["parallel.schedule", "step_time_s at 1", "step_time_s at 2"]
    assert table[1] == ["gpipe", "0.5", "0.4"]
    assert len(figure) == 5


def test_the_archive_contains_every_format(page: Client, four_runs: list[Run], make_version: Publish) -> None:
    archive = zipfile.ZipFile(io.BytesIO(file(page, make_version(TEXT), "report.zip")))

    expected = {"report.md", "report.rst", "report.html", "report.tex", "tables/table-1.csv", "figures/figure-1.csv"}
    assert expected <= set(archive.namelist())


def test_a_report_over_two_experiments_names_both(
    page: Client, four_runs: list[Run], make_version: Publish, make_report: Callable[[str], Report]
) -> None:
    slug = four_runs[0].experiment.slug
    version = make_version(f"{{{{ table pivot rows=experiment value=samples_per_s experiment={slug},{slug} }}}}")

    text = file(page, version, "report.md").decode()

    assert "| Pipeline schedules |" in text


def test_a_shared_link_needs_no_login_shows_nothing_else_and_ends_when_revoked(
    page: Client, four_runs: list[Run], make_version: Publish
) -> None:
    version = make_version(TEXT)
    slug = version.report.slug
    page.post(reverse("report-share", args=[slug, 1]))
    page.post(reverse("report-share", args=[slug, 1]))  # a second click gives the same link
    link = ReportLink.objects.get()
    stranger = Client()
    url = reverse("shared", args=[link.token])

    response = stranger.get(url)
    html = response.content.decode()
    json.loads(stranger.get(f"{url}figure-1.json").content)
    assert stranger.get(f"{url}report.md").status_code == 200

    assert response.status_code == 200
    assert len(link.token) >= 43
    assert "20.0" in html
    assert set(re.findall(r'(?:href|src|action)="(/[^"]*)"', html)) <= {
        link for link in re.findall(r'"(/[^"]*)"', html) if link.startswith(("/static/", url))
    }
    assert response.headers["Referrer-Policy"] == "no-referrer"
    assert "no-store" in response.headers["Cache-Control"]
    assert stranger.get(reverse("report-version", args=[slug, 1])).status_code == 302

    page.post(reverse("report-revoke", args=[slug, 1, link.pk]))
    assert stranger.get(url).status_code == 404
    assert stranger.get(f"{url}figure-1.json").status_code == 404
    assert stranger.get(f"{url}report.html").status_code == 404
    # A new link is another one.
    page.post(reverse("report-share", args=[slug, 1]))
    assert ReportLink.objects.filter(revoked_at=None).get().token != link.token


def test_an_unknown_token_is_not_found(client: Client) -> None:
    for token in ("x", "a" * 43, "../", "%00"):
        assert client.get(f"/shared/{token}/").status_code == 404


def test_a_reader_neither_shares_nor_revokes(
    reader: Client, page: Client, make_version: Publish, four_runs: list[Run]
) -> None:
    version = make_version(TEXT)
    page.post(reverse("report-share", args=[version.report.slug, 1]))
    link = ReportLink.objects.get()

    assert reader.post(reverse("report-share", args=[version.report.slug, 1])).status_code == 403
    assert reader.post(reverse("report-revoke", args=[version.report.slug, 1, link.pk])).status_code == 403
    assert not ReportLink.objects.get().is_revoked
    assert reader.get(version.get_absolute_url()).status_code == 200


def test_deleting_a_report_ends_its_links(page: Client, make_version: Publish, user: User) -> None:
    version = make_version("text")
    page.post(reverse("report-share", args=[version.report.slug, 1]))
    token = ReportLink.objects.get().token

    page.post(reverse("report-delete", args=[version.report.slug]))

    assert not Report.objects.exists()
    assert Client().get(reverse("shared", args=[token])).status_code == 404


@pytest.mark.parametrize("text", ["{{ figure nonsense }}", "{{ florp }}", "{{ value samples_per_s aggregate=best }}"])
def test_a_text_that_names_what_does_not_exist_is_not_published(page: Client, four_runs: list[Run], text: str) -> None:
    owner = four_runs[0].experiment.owner
    report = report_create(title="Draft", text=text, experiment=four_runs[0].experiment, user=owner)
    shown = page.get(report.get_absolute_url()).content.decode()
    assert "1 unknown name" in shown
    assert "disabled" in shown.split("report-bar")[1].split("</div>")[0]
    answer = page.post(reverse("report-publish", args=[report.slug]), {"revision": report.revision}, follow=True)
    assert "Nothing was published: unknown" in answer.content.decode()
    assert not ReportVersion.objects.exists()


def test_what_is_not_measured_does_not_stop_a_publication(page: Client, four_runs: list[Run]) -> None:
    Run.objects.filter(pk=four_runs[0].pk).update(samples_per_s=None, summary={})
    owner = four_runs[0].experiment.owner
    report = report_create(
        title="Draft",
        text="{{ value samples_per_s run=1 }}",
        experiment=four_runs[0].experiment,
        user=owner,
    )
    page.post(reverse("report-publish", args=[report.slug]), {"revision": report.revision})
    assert ReportVersion.objects.count() == 1


def test_a_pdf_is_a_link_once_it_is_drawn(page: Client, four_runs: list[Run], make_version: Publish) -> None:
    version = make_version("{{ value step_time_s run=1 }}")
    pdf = reverse("report-file", args=[version.report.slug, 1, "report.pdf"])
    assert f'href="{pdf}"' not in page.get(version.get_absolute_url()).content.decode()
    stored = StoredFile.objects.create(sha256="0" * 64, media_type="application/pdf", data=b"%PDF", size=4)
    ReportFile.objects.create(version=version, name="report.pdf", file=stored)
    assert f'href="{pdf}"' in page.get(version.get_absolute_url()).content.decode()


def test_a_shared_version_may_be_framed_only_where_it_is_embedded(
    client: Client, page: Client, four_runs: list[Run], make_version: Publish
) -> None:
    version = make_version("{{ value step_time_s run=1 }}")
    page.post(reverse("report-share", args=[version.report.slug, 1]))
    address = reverse("shared", args=[ReportLink.objects.get().token])
    plain, embedded = client.get(address), client.get(f"{address}?embed=1")
    assert plain.headers["X-Frame-Options"] == "DENY"
    assert "frame-ancestors 'none'" in plain.headers["Content-Security-Policy"]
    assert "X-Frame-Options" not in embedded.headers
    assert "frame-ancestors *" in embedded.headers["Content-Security-Policy"]
    assert "<footer" not in embedded.content.decode()
    assert "Embed" in page.get(version.get_absolute_url()).content.decode()
