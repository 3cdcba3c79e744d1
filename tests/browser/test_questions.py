"""Questions, the demo's button and the form of a configuration, as a person uses them."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from .conftest import TRAINING_MS, Demo, screenshots


@pytest.mark.slow
def test_a_question_is_checked_while_typing_launched_and_answered(page: Page, demo: Demo) -> None:
    page.goto("/questions/")
    page.get_by_role("link", name="Ask").nth(3).click()
    page.wait_for_load_state()
    expect(page.get_by_role("heading", level=1)).to_have_text("What all-reduce bandwidth do the ranks have?")
    ranks = page.get_by_label("GPUs or processes")
    ranks.fill("1")
    expect(page.locator("#error-ranks")).to_contain_text("requires several ranks")
    expect(page.locator("#ask")).to_be_disabled()
    ranks.fill("2")
    page.get_by_text("More settings").click()
    page.get_by_label("Largest message (B)").fill("16384")
    page.get_by_label("Trials").fill("2")
    expect(page.locator("#ask")).to_have_text("Launch 1 run")
    expect(page.locator("#error-ranks")).to_be_empty()
    page.locator("#ask").click()
    page.wait_for_url("**/experiments/*/")
    expect(page.locator("#runs .states")).to_contain_text("1 finished", timeout=TRAINING_MS)
    expect(page.locator("[data-verdict]")).to_contain_text("GB/s")
    page.reload()
    page.wait_for_selector('[data-figure="figure:bandwidth"][data-drawn="1"]')
    screenshots(page, "answer")


@pytest.mark.slow
def test_a_configuration_follows_what_is_typed(page: Page, demo: Demo) -> None:
    page.goto("/experiments/eight-stages-of-four-shards/configuration/")
    page.get_by_role("link", name="Edit", exact=True).click()
    expect(page.locator("svg.device-map rect")).to_have_count(32)
    screenshots(page, "config-shards")
    shards = page.get_by_label("Sharding size", exact=True)
    shards.fill("3")
    shards.press("Tab")
    expect(page.locator("#mistakes")).to_contain_text("does not divide hidden_size")
    shards.fill("4")
    shards.press("Tab")
    expect(page.locator("#mistakes")).to_be_empty()
    expect(page.get_by_text("No changes.")).to_be_visible()

    # The engine decides what is shown.
    expect(page.get_by_label("Operation", exact=True)).to_be_hidden()
    page.locator("#preset").select_option("allreduce")
    expect(page.get_by_label("Operation", exact=True)).to_be_visible()
    expect(shards).to_be_hidden()
    expect(page.locator("table.list").filter(has_text="parallel.engine")).to_be_visible()
    expect(page.get_by_text("1 point, 2 GPUs or processes each")).to_be_visible()

    # Nothing was saved by looking, and the keyboard saves.
    page.locator("#preset").select_option("pipeline")
    expect(page.get_by_text("6 points, 2 GPUs or processes each")).to_be_visible()
    page.get_by_label("Note").fill("from a preset")
    page.keyboard.press("Control+s")
    expect(page.get_by_text("Saved as v")).to_be_visible()
