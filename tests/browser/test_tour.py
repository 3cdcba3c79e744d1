"""The tour of the documentation can be walked, and shows what pages show."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page

from .conftest import PROJECT, SCREENSHOTS, Demo
from .tour import walk

pytestmark = pytest.mark.slow


def test_the_tour_can_be_walked_and_has_the_pictures_that_its_text_names(page: Page, demo: Demo) -> None:
    taken = walk(page, demo, SCREENSHOTS / "tour")
    text = (PROJECT / "docs" / "use" / "tour.md").read_text(encoding="utf-8")
    assert re.findall(r"!\[[^]]+\]\(images/([^)]+)\)", text) == taken
    for name in taken:
        assert (PROJECT / "docs" / "use" / "images" / name).stat().st_size < 150_000
