"""Curves of a comparison: another axis, and smoothing that follows the slider and stays in the address."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from .conftest import TRAINING_MS, Demo, screenshots

LONGEST = "element => element.data.map((trace) => trace.y).sort((a, b) => b.length - a.length)[0]"


def test_curves_are_smoothed_and_drawn_over_tokens(page: Page, demo: Demo) -> None:
    page.goto("/experiments/four-ways-in/")
    # Scripts report these runs while the demo starts, in any order.
    expect(page.locator('tr[data-state="finished"]')).to_have_count(4, timeout=TRAINING_MS)
    for box in page.locator('input[name="run"]').all():
        box.check()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/compare/**")
    page.wait_for_selector('[data-figure="curves"][data-drawn="1"]')
    plot = page.locator('[data-figure="curves"]')
    page.locator('input[name="curve"][value="samples"]').check()
    page.locator('input[name="curve"][value="step-time"]').uncheck()
    expect(plot.locator(".main-svg").first).to_be_visible()
    raw = plot.evaluate(LONGEST)
    page.locator("#smoothing").fill("90")
    page.locator("#smoothing").dispatch_event("change")
    expect(page.locator("#smoothing-value")).to_have_text("0.90")
    smooth = plot.evaluate(LONGEST)
    spread = [max(values) - min(values) for values in (raw, smooth)]
    assert spread[1] < spread[0]
    expect(page).to_have_url(re.compile("smooth=90"))
    screenshots(page, "comparison-smoothed")
