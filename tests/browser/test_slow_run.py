"""A run made slow on purpose: its waterfall, its trace, its advice, and the gain of the fix beside the prediction."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from .conftest import TRAINING_MS, screenshots

SLOW = "/experiments/slow-on-purpose/"
CHANGE = "Recomputation none instead of full"


@pytest.mark.slow
def test_the_fix_of_a_slow_run_is_launched_from_its_page_and_its_gain_appears(page: Page) -> None:
    page.goto(SLOW)
    page.locator("#launch").click()
    expect(page.locator('tr[data-state="finished"]')).to_have_count(1, timeout=TRAINING_MS)

    page.goto(f"{SLOW}runs/1/traces/")
    expect(page.get_by_role("link", name="View").first).to_be_visible()
    screenshots(page, "slow-traces")

    page.goto(f"{SLOW}runs/1/time/")
    expect(page.locator('[data-figure="waterfall"][data-drawn="1"]')).to_be_visible()
    expect(page.get_by_role("region", name="Advice").get_by_text(CHANGE)).to_be_visible()
    screenshots(page, "slow-advice")
    page.get_by_role("button", name=f"Try: {CHANGE}").click()

    # The table follows the changed run without a reload.
    row = page.get_by_role("region", name="Tried advice").get_by_role("row", name=CHANGE)
    expect(row.get_by_text("finished")).to_be_visible(timeout=TRAINING_MS)
    cells = ("Run 2", "finished", r"\+[\d.]+ %", r"[+\u2212][\d.]+ %", "predicted|within")
    expect(row.get_by_role("cell")).to_have_text([re.compile(cell) for cell in cells])
    expect(page.locator("#advice-tried")).not_to_have_attribute("hx-get", re.compile("."))
    screenshots(page, "slow-tried")

    page.goto("/advice/")
    expect(page.get_by_role("region", name="Record by kind").get_by_role("row", name="Recomputation")).to_be_visible()
