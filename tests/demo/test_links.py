"""All links work: every kind of page reachable from the home page, as viewer and as operator."""

from __future__ import annotations

import html
import re
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from parlab.demo import content
from parlab.lab.services.access.groups import groups_refresh

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

LINK = re.compile(r'<a\b[^>]*?\bhref="([^"#]*)')


def kind(url: str) -> str:
    """Return the same text for addresses that differ only in a name, a number or the value of a parameter."""
    parts = urlsplit(url)
    path = re.sub(r"/\d+(?=[/.]|$)", "/N", re.sub(r"/(experiments|reports)/(?!new/)[^/]+/", r"/\1/X/", parts.path))
    return f"{path}?{','.join(sorted({choice.partition('=')[0] for choice in parts.query.split('&')}))}"


@pytest.mark.parametrize("group", ["viewer", "operator"])
def test_no_link_is_broken(group: str, admin_user: User) -> None:
    groups_refresh()
    content.demo_experiments(admin_user)
    person = User.objects.create_user("newcomer", password="just looking around", is_staff=group != "viewer")
    person.groups.set([Group.objects.get(name=group)])
    client = Client()
    client.force_login(person)
    waiting, seen, broken = [("/", "")], set(), []
    while waiting:
        url, seen_on = waiting.pop(0)
        if kind(url) in seen:
            continue
        seen.add(kind(url))
        answer = client.get(url)
        # Without a worker, the PDF of the report is not available yet (409).
        if answer.status_code >= 400 and not (answer.status_code == 409 and url.endswith("report.pdf")):
            broken.append(f"{answer.status_code} {url}, linked by {seen_on}")
        if answer.status_code == 200 and "html" in answer.headers["Content-Type"] and not answer.streaming:
            links = (html.unescape(link) for link in LINK.findall(answer.content.decode()))
            base = urlsplit(url).path
            waiting += [(base + to if to.startswith("?") else to, url) for to in links if to[:1] in ("/", "?")]
    assert len(seen) > 30
    assert not broken, "\n".join(broken)
