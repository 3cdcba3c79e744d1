"""The audit log over the API: for users who may change users."""

from __future__ import annotations

import pytest
from django.test import Client

pytestmark = pytest.mark.django_db


def test_administrators_read_who_changed_what(api: Client, reader: Client) -> None:
    api.post("/api/experiments/", {"name": "Audited"})
    (entry,) = api.get("/api/audit/").json()["results"]
    assert (entry["user"], entry["action"], entry["path"]) == ("ada", "change", "/api/experiments/")
    assert (entry["token"], entry["status"]) == ("a script", 201)
    assert api.get("/api/audit/?action=launch&user=ada").json()["count"] == 0
    assert api.get("/api/audit/?user=ADA").json()["count"] == 1
    assert api.get("/api/audit/?action=x").json()["errors"][0]["field"] == "action"
    assert reader.get("/api/audit/").status_code == 403
