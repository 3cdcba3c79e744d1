"""Who may only look changes nothing, whatever address they send it to; operators leave what others wrote."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.serializers import serialize
from django.test import Client
from django.urls import URLPattern, reverse

from parlab.lab.models import Config, Experiment, Node, Preference, Report, Run
from parlab.lab.services.access.groups import groups_refresh
from parlab.lab.services.reports import report_create
from parlab.pages import urls
from parlab.tuner.models import Study

pytestmark = pytest.mark.django_db

THEIR_OWN = {
    "login",
    "account_login",
    "logout",
    "account_logout",
    "columns",
    "password",
    "token-make",
    "mail-address",
    "experiment-star",
}
"""Addresses where users change their own objects only."""
TABLES = (Experiment, Config, Run, Report, Node, Study, User)


@pytest.fixture
def member() -> Callable[[str, str], Client]:
    """Log in as a member of a group: member("operator", "bob")."""

    def make(group: str, name: str) -> Client:
        groups_refresh()
        person = User.objects.create_user(name, password="member of a group")
        person.groups.add(Group.objects.get(name=group))
        client = Client()
        client.force_login(person)
        return client

    return make


def addresses(slug: str) -> Iterator[tuple[str, str]]:
    """Name every address of the pages, with the first row of everything in its places."""
    values = {"slug": slug, "number": 1, "version": 1, "pk": 1, "first": 1, "last": 2}
    texts = {
        "key": "tokens-per-second",
        "name": "throughput",
        "action": "cancel",
        "sha256": "0",
        "token": "none",
        "path": "a.txt",
        "kind": "experiment",
    }
    for pattern in flat(urls.urlpatterns):
        if pattern.name is None:  # an address of earlier versions, which leads on
            continue
        names = re.findall(r"<\w+:(\w+)>", str(pattern.pattern))
        places = {name: (values | texts)[name] for name in names}
        yield str(pattern.name), reverse(str(pattern.name), kwargs=places)


def flat(patterns: Sequence[Any]) -> Iterator[URLPattern]:
    """Name the patterns, with those of logins; allauth's own are about second factors of the one who asks."""
    for pattern in patterns:
        inner = [pattern] if isinstance(pattern, URLPattern) else pattern.url_patterns
        yield from (each for each in inner if isinstance(each, URLPattern))


def everything() -> dict[str, str]:
    return {model.__name__: serialize("json", model._default_manager.order_by("pk")) for model in TABLES}


def test_who_may_only_look_changes_nothing_at_any_address(
    member: Callable[[str, str], Client], make_attempt: Callable[..., Any], user: User
) -> None:
    run = make_attempt(state="queued").run
    slug = run.experiment.slug
    report = report_create(title=slug, text="words", experiment=run.experiment, user=user)
    assert (report.slug, run.number) == (slug, 1)
    client = member("viewer", "eve")
    before = everything()
    fields = {"slugs": slug, "slug": slug, "rows": run.pk, "run": 1, "title": "x", "text": "x", "revision": 1}
    fields |= {"reason": "x", "do": "archive", "action": "archive", "tag": "x", "name": "x", "experiment": slug}

    answers = {name: client.post(url, fields).status_code for name, url in addresses(slug) if name not in THEIR_OWN}

    assert everything() == before
    assert {name: status for name, status in answers.items() if status >= 500} == {}
    assert len(answers) > 80
    assert not Preference.objects.exists()


def test_operators_write_their_own_reports_and_leave_those_of_others(
    member: Callable[[str, str], Client], experiment: Experiment, user: User
) -> None:
    theirs = report_create(title="Theirs", text="words", experiment=experiment, user=user)
    bob = member("operator", "bob")
    fields = {"title": "Mine now", "text": "x", "revision": 1}

    assert bob.get(reverse("written-report", args=[theirs.slug])).status_code == 200
    for name in ("report-save", "report-publish", "report-delete", "report-editing", "report-preview"):
        assert bob.post(reverse(name, args=[theirs.slug]), fields).status_code == 403
    made = bob.post(reverse("report-new"), {"title": "Mine", "template": "blank", "experiment": experiment.slug})
    mine = Report.objects.get(title="Mine")
    assert made.headers["Location"] == reverse("report-edit", args=[mine.slug])
    assert bob.post(reverse("report-save", args=[mine.slug]), fields).status_code == 200
    assert bob.post(reverse("report-publish", args=[mine.slug]), {"revision": 2}).status_code == 302
    shared = bob.post(reverse("report-share", args=[mine.slug, 1]))
    assert shared.status_code == 302
    assert bob.post(reverse("report-delete", args=[mine.slug])).status_code == 302
    assert [report.title for report in Report.objects.all()] == ["Theirs"]
