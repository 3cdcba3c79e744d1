"""A sample of the pictures that `make screenshots` takes, for CI's output; no page is wider than its window."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from .conftest import Demo
from .screenshots import PAGES, opened, shoot

SAMPLE = ("home", "runs", "experiment", "run", "plan")


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light"), (2560, "dark")])
def test_pages_fit_their_window(browser: Browser, demo: Demo, width: int, scheme: str) -> None:
    with opened(browser, demo.url, demo.user, demo.password, width, scheme) as page:
        wider = {name: shoot(page, name, PAGES[name], width, scheme) for name in SAMPLE}
    assert not any(wider.values()), f"wider than a window of {width} px: {wider}"
