"""`make docs` builds the documentation without a warning, and the site needs no other host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PROJECT

pytestmark = pytest.mark.slow

LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(https?://[^\"'\s>]+)")


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr

    site = tmp_path / "site"
    texts = {str(page.relative_to(site)): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    expected = {str(page.relative_to(DOCS).with_suffix(".html")) for page in DOCS.rglob("*.md")}
    assert {*expected, "contribute/contributing.html", "404.html"} == set(texts)
    assert {name: LOADED.findall(text) for name, text in texts.items() if LOADED.findall(text)} == {}
    assert 'id="parlab.Run.phase"' in texts["use/api.html"]

    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    locations = {entry["location"] for entry in index["docs"] if "Prepare and go" in entry["title"]}
    assert locations == {"understand/server-node.html#prepare-and-go"}
