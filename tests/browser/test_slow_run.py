"""A run made slow on purpose: its waterfall, its trace, its advice, and the gain of the fix beside the prediction."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from .budgets import load_of
from .conftest import TRAINING_MS, screenshots

SLOW = "/experiments/slow-on-purpose/"
WORDS, CONTROLS = 130, 20
CHANGE = "Recomputation none instead of full"


@pytest.mark.slow
def test_the_fix_of_a_slow_run_is_launched_from_its_page_and_its_gain_appears(page: Page) -> None:
    page.goto(SLOW)
    page.locator("#launch").click()
    expect(page.locator('.rl[data-state="finished"]')).to_have_count(1, timeout=TRAINING_MS)

    page.goto(f"{SLOW}runs/1/traces/")
    expect(page.get_by_role("link", name="View").first).to_be_visible()
    screenshots(page, "slow-traces")

    page.goto(f"{SLOW}runs/1/")
    step = page.get_by_role("region", name="Step")
    expect(step.locator("svg.stepbar")).to_be_visible()
    load = load_of(page)
    assert load.words <= WORDS
    assert load.controls <= CONTROLS
    # A part of the bar shows its definition; the advice is below the part that it would shrink.
    step.locator('a[data-term="recompute"]').first.click()
    expect(page.get_by_text("forward time x (executed - model FLOPs)", exact=False).first).to_be_visible()
    page.keyboard.press("Escape")
    screenshots(page, "slow-advice")
    page.get_by_role("button", name=f"Try: {CHANGE}").first.click()

    # The chip becomes the realised change without a reload, and the bar of the changed run lies below.
    tried = step.get_by_role("link", name=re.compile("Recomputation none.*realised")).first
    expect(tried).to_be_visible(timeout=TRAINING_MS)
    expect(step.get_by_role("group", name=re.compile("#2 · recompute none"))).to_be_visible()
    screenshots(page, "slow-tried")

    page.goto(f"{SLOW}runs/1/time/")
    row = page.get_by_role("region", name="Tried advice").get_by_role("row", name=CHANGE)
    cells = ("Run 2", "finished", r"\+[\d.]+ %", r"[+\u2212][\d.]+ %", "predicted|within")
    expect(row.get_by_role("cell")).to_have_text([re.compile(cell) for cell in cells])
    expect(page.locator("#advice-tried")).not_to_have_attribute("hx-get", re.compile("."))

    page.goto(f"{SLOW}runs/1/ranks/")
    ranks = page.locator("#ranks")
    first = ranks.get_attribute("data-step")
    page.keyboard.press("ArrowRight" if ranks.get_attribute("data-right") else "ArrowLeft")
    expect(ranks).not_to_have_attribute("data-step", str(first))
    expect(page).to_have_url(re.compile(r"/ranks/\?step=\d+&rank=\d"))
    screenshots(page, "slow-ranks")

    page.goto("/advice/")
    expect(page.get_by_role("region", name="Record by kind").get_by_role("row", name="Recomputation")).to_be_visible()
