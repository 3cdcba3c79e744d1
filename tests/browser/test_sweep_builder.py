"""The sweep builder as a person uses it: built and launched, mistaken, by keyboard alone, and on a phone."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from .conftest import Demo, screenshots


def fill(page: Page, label: str, text: str) -> None:
    page.get_by_label(label, exact=True).fill(text)


@pytest.mark.slow
def test_a_new_experiment_is_built_undone_and_launched(page: Page, demo: Demo) -> None:
    page.goto("/experiments/")
    page.locator("header summary").filter(has_text="New").click()
    page.get_by_role("link", name="Experiment", exact=True).click()
    page.wait_for_url("**/sweeps/new/")
    fill(page, "Name", "Built by hand")
    fill(page, "Question", "Which batch is faster?")
    page.locator("#f-parallel-engine").select_option("zero")
    expect(page.locator("#points")).to_contain_text("1 point, 2 GPUs or processes")
    page.get_by_label("Vary ZeRO stage", exact=True).click()
    values = page.locator("#a-parallel-zero_stage")
    expect(values).to_be_focused()
    values.fill("0..9")
    expect(page.locator("#mistakes")).to_contain_text("ZeRO stage")
    values.fill("0, 1")
    expect(page.locator("#mistakes")).to_be_empty()
    expect(page.locator(".matrix tbody tr")).to_have_count(2)
    page.get_by_role("button", name="+ 3").click()
    expect(page.locator(".matrix tbody tr")).to_have_count(3)
    page.go_back()
    expect(page.locator(".matrix tbody tr")).to_have_count(2)
    page.go_forward()
    expect(values).to_have_value("0, 1, 3")
    page.get_by_role("button", name="Remove 3").click()
    expect(page.locator(".matrix tbody tr")).to_have_count(2)
    fill(page, "Iterations", "3")
    screenshots(page, "sweep-builder")
    page.get_by_role("button", name="Save and launch").click()
    page.wait_for_url("**/experiments/built-by-hand/")
    expect(page.get_by_text("Saved as v1. Launched 2 runs.")).to_be_visible()
    expect(page.get_by_text("Which batch is faster?")).to_be_visible()


def test_three_kinds_of_mistakes_stand_at_their_fields_and_in_a_list(page: Page, demo: Demo) -> None:
    page.goto("/sweeps/new/")
    fill(page, "Iterations", "0")  # out of range
    fill(page, "Hidden size", "wide")  # wrong type
    page.locator("#paste summary").click()
    page.locator("#pasted").fill('{"model": {"hiden_size": 64}}')  # unknown name
    page.get_by_role("button", name="Apply").click()
    mistakes = page.locator("#mistakes li")
    expect(mistakes.filter(has_text="did you mean model.hidden_size?")).to_have_count(1)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(mistakes.filter(has_text="needs a name")).to_have_count(1)
    expect(page.get_by_label("Iterations", exact=True)).to_have_value("0")
    expect(page.get_by_label("Hidden size", exact=True)).to_have_value("wide")
    expect(page.locator('[id="error-train.iterations"]')).to_contain_text("greater than or equal to 1")
    screenshots(page, "sweep-mistakes")
    mistakes.get_by_role("link", name="Hidden size").click()
    expect(page.get_by_label("Hidden size", exact=True)).to_be_focused()
    page.keyboard.type("128")
    fill(page, "Iterations", "4")
    expect(page.locator("#error-name")).not_to_be_empty()
    fill(page, "Name", "Mended")
    expect(page.locator("#error-name")).to_be_empty()
    # Now only some points cannot run; they are saved after a confirmation.
    page.locator("#a-train-micro_batch_size").fill("1, 3")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("points cannot run").first).to_be_visible()
    page.get_by_role("button", name="Save anyway").click()
    page.wait_for_url("**/experiments/mended/")


@pytest.mark.slow
def test_a_sweep_is_built_with_the_keyboard_alone(page: Page, demo: Demo) -> None:
    page.goto("/experiments/zero-stages-of-two-ranks/sweep/")
    page.keyboard.press("f")
    expect(page.locator("#field-search")).to_be_focused()
    page.keyboard.type("seed")
    page.keyboard.press("Enter")
    expect(page.locator("#f-train-seed")).to_be_focused()
    page.keyboard.press("Alt+v")
    expect(page.locator("#a-train-seed")).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("1..2")
    expect(page.locator("#differences").locator("..")).to_contain_text("sweep.train.seed")
    page.keyboard.press("Control+z")
    expect(page.locator("#a-train-seed")).not_to_have_value("1..2")
    page.keyboard.press("Control+Shift+z")
    expect(page.locator("#a-train-seed")).to_have_value("1..2")
    page.keyboard.press("Control+s")
    page.wait_for_url("**/experiments/zero-stages-of-two-ranks/")
    expect(page.get_by_text(re.compile(r"Saved as v\d"))).to_be_visible()


@pytest.mark.slow
def test_the_builder_works_on_a_phone(page: Page, demo: Demo) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/sweeps/new/")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    expect(page.get_by_role("button", name="Save", exact=True)).to_be_in_viewport()
    page.locator("#field-search").fill("recompute")
    page.get_by_label("Vary Recompute", exact=True).click()
    page.get_by_role("button", name="+ full").click()
    expect(page.locator("#builder-count")).to_contain_text("runs")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
