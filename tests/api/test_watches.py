"""Watches over HTTP."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from parlab.watch import services
from parlab.watch.models import Watch
from tests.watch.test_watches import HISTORIES


@pytest.fixture
def watch(user: User) -> Watch:
    return services.watch_create(name="Elsewhere", user=user, key="bert")


def test_a_history_is_imported(page: Client, watch: Watch) -> None:
    file = SimpleUploadedFile("history", next(iter(HISTORIES.values())).encode())
    answer = page.post(f"/api/watches/{watch.pk}/history/", {"file": file})
    assert (answer.status_code, answer.json()) == (200, {"results": 25, "new_alerts": 1, "problems": []})
    (item,) = page.get("/api/watches/").json()
    assert (item["results"], item["open_alerts"], item["url"]) == (25, 1, watch.get_absolute_url())


def test_a_wrong_history_is_refused_with_the_remedy(page: Client, watch: Watch) -> None:
    address = f"/api/watches/{watch.pk}/history/"
    answer = page.post(address, {"file": SimpleUploadedFile("history", b"a,b\n1,2\n")})
    assert answer.status_code == 400
    (error,) = answer.json()["errors"]
    assert error["field"] == "file"
    assert "use CSV with a column time" in json.dumps(error)
    assert page.post(address).status_code == 400
    assert page.post(address, {"experiment": "nothing-here"}).status_code == 400
