"""The addresses and names that the documentation states exist in a fresh demo."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from parlab.demo import content
from parlab.lab.models import Config

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "use"
PAGES = ("tour.md", "api.md", "sweeps.md")
REQUESTED = re.compile(r'"\$URL(/[^"\s]+)"')
"""The address of a request with curl."""
LOG = "".join(
    f"iteration {n}/ 9 | elapsed time per iteration (ms): {900 + n}.5 | lm loss: 9.{n}E+00 |\n" for n in range(1, 10)
)
ADDRESS = re.compile(r"`(?:(?:GET|POST|PATCH) )?(/[a-z][^`\s<>]*)`")


def test_addresses_and_experiments_of_the_documentation_exist_in_a_fresh_demo(admin: User, client: Client) -> None:
    content.demo_experiments(admin)
    client.force_login(admin)
    # api.md imports a file first, and then asks for its experiment.
    log = SimpleUploadedFile("train.log", LOG.encode(), "text/plain")
    assert client.post("/api/imports/", {"file": log}).status_code == 201
    texts = {name: (DOCS / name).read_text(encoding="utf-8") for name in PAGES}
    addresses = {address for text in texts.values() for address in (*ADDRESS.findall(text), *REQUESTED.findall(text))}
    assert len(addresses) >= 16
    # 405: an address of the API that only accepts other methods.
    statuses = {address: client.get(address, follow=True).status_code for address in addresses}
    assert {address: status for address, status in statuses.items() if status not in (200, 405)} == {}
    slug, baseline = re.findall(r"manage\.py tune (\S+) --baseline (\d+)", texts["sweeps.md"])[0]
    assert Config.objects.filter(experiment__slug=slug, version=baseline).exists()
    for slug in re.findall(r'"experiment": "([\w-]+)"', texts["api.md"]):
        assert client.get(f"/experiments/{slug}/").status_code == 200
