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
    page.get_by_role("link", name="Edit in the admin").click()
    expect(page.locator("svg.device-map rect")).to_have_count(32)
    screenshots(page, "config-shards")
    page.get_by_label("Sharding size").fill("3")
    expect(page.locator("#error-sharding__sharding_size")).to_contain_text("does not divide hidden_size")
    page.get_by_label("Sharding size").fill("4")
    expect(page.locator("#error-sharding__sharding_size")).to_be_empty()
    expect(page.locator("#changes")).to_contain_text("No changes.")

    # The engine decides what is shown.
    expect(page.get_by_label("Operation")).to_be_hidden()
    page.locator("#preset").focus()  # a field in use is not replaced
    page.locator("#preset").select_option("allreduce")
    expect(page.get_by_label("Operation")).to_be_visible()
    expect(page.get_by_label("Sharding size")).to_be_hidden()
    expect(page.locator("#changes")).to_contain_text("parallel.engine")
    expect(page.locator("#points")).to_contain_text("1 point, 2 GPUs or processes each")

    # Nothing was saved by looking, and the keyboard saves.
    page.locator("#preset").select_option("pipeline")
    expect(page.locator("#points")).to_contain_text("6 points")
    page.get_by_label("Note").fill("from a preset")
    page.keyboard.press("Control+s")
    expect(page.get_by_text("Saved as v1 of Eight stages of four shards.")).to_be_visible()
    expect(page.get_by_label("Engine").first).to_have_value("pipeline")


@pytest.mark.slow
def test_the_form_of_a_configuration_works_on_a_phone(page: Page, demo: Demo) -> None:
    page.goto("/experiments/zero-stages-of-two-ranks/configuration/")
    page.get_by_role("link", name="Edit in the admin").click()
    expect(page.get_by_label("Iterations")).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_label("Iterations").fill("0")
    expect(page.locator("#error-train__iterations")).to_contain_text("greater than or equal to 1")
    expect(page.get_by_role("button", name="Save", exact=True)).to_be_in_viewport()
