"""The tour of the documentation can be walked, and has the pictures that its text names."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page

from .conftest import PROJECT, SCREENSHOTS
from .tour import ALWAYS, MEASURED, PICTURES, walk

pytestmark = pytest.mark.slow


def test_the_pages_of_a_new_demo_can_be_walked(page: Page) -> None:
    assert len(walk(page, SCREENSHOTS / "tour", ALWAYS)) == len(ALWAYS)


def test_each_picture_is_named_once_in_the_tour_and_is_small() -> None:
    text = (PROJECT / "docs" / "use" / "tour.md").read_text(encoding="utf-8")
    named = re.findall(r"!\[[^]]+\]\(images/([^)]+)\)", text)
    assert sorted(named) == sorted(f"{step.__name__}.png" for step in ALWAYS + MEASURED)
    assert {path.name for path in PICTURES.iterdir()} == set(named)
    assert max(path.stat().st_size for path in PICTURES.iterdir()) < 150_000
