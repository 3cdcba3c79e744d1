"""Parts of pages in dashboards and reports: what a page shows is shown elsewhere to who may see the page."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from parlab.lab.models import Attempt, Dashboard, Experiment, Membership, Node, Project, Report, ReportVersion, Run
from parlab.lab.services.public_links import link_create
from parlab.lab.services.reports import report_create
from parlab.publishing.exports import export
from tests.conftest import place

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("catalogue")]
PLAN = "/plan/model/?name=Llama 3.2 1B&gpus=64&gpu=H100 SXM&limit=20"
OFFER = re.compile(r'data-to-dashboard="([\w-]+)" data-page="([^"]+)" data-title="([^"]*)"')
READ = re.compile(r'(?:hx-get|data-figure-url)="(/dashboards/[^"]+)"')


def offers(markup: str) -> list[dict[str, str]]:
    """Return what the buttons of a page would send."""
    rows = [map(html.unescape, row) for row in OFFER.findall(markup)]
    return [dict(zip(("panel", "page", "title"), row, strict=True)) for row in rows]


def shown(client: Client, dashboard: Dashboard) -> Iterator[str]:
    """Return what the panels of a dashboard read."""
    for address in READ.findall(client.get(dashboard.get_absolute_url()).content.decode()):
        yield client.get(html.unescape(address)).content.decode()


@pytest.fixture
def worked(make_node: Callable[..., Node], make_attempt: Callable[..., Attempt]) -> Attempt:
    """A node with two GPUs and a run."""
    attempt = make_attempt(state="running")
    place(attempt, make_node("gpu1", gpus=2), environment={"gpus_used": [{"index": 0}]})
    return attempt


def added(page: Client, panel: str, address: str) -> Dashboard:
    answer = page.post("/parts/add/", {"panel": panel, "page": address, "title": "Shown"})
    assert answer.status_code == 200, answer.content
    return Dashboard.objects.get(pk=answer.json()["url"].strip("/").rpartition("/")[2])


@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("/nodes/?colour=memory", {"answer", "nodes", "queue"}),
        (PLAN, {"answer", "frontier", "layout", "speed", "memory", "time"}),
        ("/compare/?runs={0},{1},{2}", {"answer", "matrix", "differences", "numbers", "figure"}),
        ("/experiments/{3}/compare/", {"differences", "numbers", "figure"}),
    ],
)
def test_every_part_of_a_page_is_shown_on_a_dashboard(
    page: Client, worked: Attempt, four_runs: list[Run], address: str, names: set[str]
) -> None:
    keys = [*(str(run.pk) for run in four_runs[:3]), four_runs[0].experiment.slug]
    offered = offers(page.get(address.format(*keys), follow=True).content.decode())
    assert names <= {offer["panel"] for offer in offered}
    for offer in offered:
        assert page.post("/parts/add/", offer).status_code == 200, offer
    parts = [part for dashboard in Dashboard.objects.all() for part in shown(page, dashboard)]
    assert len(parts) == len(offered)
    assert [part[:300] for part in parts if "Not shown" in part or "unknown p" in part] == []


def test_a_part_is_drawn_as_on_its_page_without_its_controls(page: Client, worked: Attempt) -> None:
    [part] = shown(page, added(page, "nodes", "/nodes/?colour=memory"))
    assert '<div class="clm" data-colour="memory">' in part
    assert "css/cluster.css" in part
    squares = re.findall(r'<i class="g [^"]*" title="[^"]*">', part)
    assert squares == re.findall(r'<i class="g [^"]*" title="[^"]*">', page.get("/nodes/").content.decode())
    assert "hx-" not in part
    assert "<button" not in part


def test_a_panel_says_that_its_page_is_not_visible_and_names_nothing_of_it(
    page: Client, viewer: Client, four_runs: list[Run], admin: User
) -> None:
    run = four_runs[0]
    dashboard = added(page, "step", run.get_absolute_url())
    Dashboard.objects.filter(pk=dashboard.pk).update(experiment=None)
    private = Project.objects.create(name="Ours", slug="ours", visibility="private")
    Membership.objects.create(project=private, user=admin, role="maintainer")
    Experiment.objects.update(project=private)
    [part] = shown(viewer, dashboard)
    assert "was deleted, or belongs to a project that you do not see" in part
    assert run.experiment.name not in part
    Run.objects.filter(pk=run.pk).delete()
    assert "was deleted" in next(shown(page, dashboard))


@pytest.mark.parametrize(
    "address",
    ["/admin/", "/account/", "//example.org/nodes/", "https://a.org/nodes/", "/nodes", "/dashboards/1/"],
)
def test_only_pages_with_parts_are_read(page: Client, admin: User, address: str) -> None:
    answer = page.post("/parts/add/", {"panel": "answer", "page": address})
    assert (answer.status_code, Dashboard.objects.count()) == (400, 0), answer.content
    text = f'{{{{ part answer page="{address}" }}}}'
    report = report_create(title="R", text=text, experiment=None, user=admin)
    assert "unknown page" in page.get(report.get_absolute_url()).content.decode()


def test_a_report_keeps_a_part_as_it_was_published(page: Client, worked: Attempt, admin: User) -> None:
    answer = page.post("/parts/add/", {"panel": "nodes", "page": "/nodes/", "title": "Nodes", "to": "report"})
    report = Report.objects.get(title=answer.json()["title"])
    assert page.post(reverse("report-publish", args=[report.slug]), {"revision": report.revision}).status_code == 302
    version = ReportVersion.objects.get()
    Node.objects.update(name="renamed")
    assert "GPU 1: no run" in page.get(version.get_absolute_url()).content.decode()
    file = export(version, "html").data.decode()
    assert "GPU 1: no run" in file
    assert ".gs.n16" in file  # the rules of its page
    assert "href=" not in file.split("<article")[1].split("</article>")[0]  # of pages that its reader may not reach
    assert "Nodes: " in export(version, "md").data.decode()
    assert "Nodes: " in export(version, "rst").data.decode()


def test_a_name_that_a_page_lacks_stops_publishing(page: Client, worked: Attempt, admin: User) -> None:
    report = report_create(title="R", text="{{ part taste page=/nodes/ }}", experiment=None, user=admin)
    answer = page.post(reverse("report-publish", args=[report.slug]), {"revision": 1}, follow=True)
    assert "unknown part &#x27;taste&#x27; of /nodes/; it has answer, nodes" in answer.content.decode()
    assert not ReportVersion.objects.exists()


def test_a_public_link_does_not_show_parts_of_pages(page: Client, client: Client, worked: Attempt, admin: User) -> None:
    dashboard = added(page, "nodes", "/nodes/")
    link = link_create(subject=dashboard, user=admin)
    read = Client().get(reverse("shared", args=[link.token])).content.decode()
    assert "/nodes/ is shown only to people who have logged in" in read
    assert "gpu1" not in read


def test_who_may_not_write_dashboards_is_not_offered_them(viewer: Client, worked: Attempt) -> None:
    assert offers(viewer.get("/nodes/").content.decode()) == []
    assert viewer.post("/parts/add/", {"panel": "nodes", "page": "/nodes/"}).status_code == 403
