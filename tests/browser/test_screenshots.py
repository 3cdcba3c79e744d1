"""Pictures of pages in both themes at three widths, for CI's output; no page breaks the rules of axe,
the policy or the frame of its window."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from .conftest import Demo
from .screenshots import PAGES, opened, shoot, shoot_all

SAMPLE = ("home", "runs", "experiment", "plan")


@pytest.mark.slow
def test_pages_fit_their_window(browser: Browser, demo: Demo) -> None:
    with opened(browser, demo.url, demo.user, demo.password) as page:
        wider = [wide for name in SAMPLE for wide in shoot(page, name, PAGES[name])]
    assert not wider


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_every_page_leaves_pictures_fits_its_window_and_keeps_the_rules_of_axe_and_the_policy(
    browser: Browser, demo: Demo
) -> None:
    problems = shoot_all(browser, demo.directory, demo.url, demo.user, demo.password, with_rules=True)
    assert not problems, "\n".join(problems)
