"""The page of an experiment: what a person does with a run acts on all panels, and the address holds it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from .conftest import LAYOUT, Demo, drag, screenshots

PUBLISHED = "/experiments/gpt-3-small-on-three-nodes/"


@pytest.mark.slow
def test_a_run_is_hidden_shown_alone_highlighted_and_pinned_in_all_panels(page: Page, demo: Demo) -> None:
    page.goto(PUBLISHED)
    row = page.locator('.rl[data-run="1"]')
    marks = page.locator('.panels svg [data-run="1"]')
    expect(marks.first).to_be_visible()
    row.locator(".eye").click()
    expect(marks.first).to_be_hidden()
    expect(page).to_have_url(re.compile("hide=1$"))
    expect(page.locator("[data-run-count]")).to_have_text("24 of 25 runs")
    row.locator(".eye").click()
    row.locator(".eye").click(modifiers=["Alt"])
    expect(page.locator("[data-run-count]")).to_have_text("1 of 25 runs")
    row.locator(".eye").click(modifiers=["Alt"])
    expect(page.locator("[data-run-count]")).to_have_text("25 runs")
    row.hover()
    expect(marks.first).to_have_class(re.compile("hot"))
    page.locator('[data-panel="sweep"] .cell[data-run="1"]').click()
    expect(row).to_have_class(re.compile("pin"))
    page.reload()
    expect(row).to_have_class(re.compile("pin"))
    screenshots(page, "experiment-pinned")


@pytest.mark.slow
def test_choices_are_undone_by_going_back_and_keys_choose_runs(page: Page, demo: Demo) -> None:
    page.goto(PUBLISHED)
    page.locator("[data-choice=group]").select_option("parallel.schedule")
    expect(page.locator(".gh")).to_have_count(2)
    page.go_back()
    expect(page.locator(".gh")).to_have_count(0)
    page.keyboard.press("/")
    page.keyboard.type("1f1b mb>1")
    expect(page.locator(".rl:visible")).to_have_count(8)
    page.keyboard.type(" -color:red")
    expect(page.locator("[data-no-match]")).to_contain_text("No field color. Fields: ")
    expect(page.locator(".rl:visible")).to_have_count(0)
    page.locator("#runs [data-filter]").fill("1f1b mb>1")
    expect(page.locator("[data-no-match]")).to_be_hidden()
    page.keyboard.press("Escape")
    for key in ("j", "c", "j", "c"):
        page.keyboard.press(key)
    expect(page.locator("[data-compare-text]")).to_have_text("Compare 2")
    page.locator("[data-compare]").click()
    expect(page.locator(".chosen .chip")).to_have_count(2)
    expect(page.locator(".rl").first).to_be_visible()


@pytest.mark.slow
def test_panels_are_moved_resized_added_and_reset(page: Page, demo: Demo) -> None:
    page.goto(PUBLISHED)
    usual = page.evaluate(LAYOUT)
    assert usual == ["throughput", "sweep"]
    sweep = page.locator('[data-panel="sweep"]')
    sweep.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Shift+ArrowRight")
    assert page.evaluate(LAYOUT) == ["sweep", "throughput"]
    expect(sweep).to_have_attribute("data-w", "7")
    page.locator("[data-add-panel] summary").click()
    page.keyboard.type("heatmap")
    page.keyboard.press("Enter")
    expect(page.locator('[data-panel="figure:heatmap"]')).to_be_visible()
    assert page.evaluate(LAYOUT) == ["sweep", "throughput", "figure:heatmap"]
    expect(page.locator('[data-figure="figure:heatmap"][data-drawn]')).to_be_visible()
    # Long names under an axis are broken into lines, so that all of them have room.
    names = page.locator('[data-figure="figure:heatmap"] .xtick')
    expect(names).to_have_text([re.compile(rate) for rate in ("10Gbps", "5Gbps", "2Gbps", "1Gbps")])
    page.locator("[data-add-panel] summary").click()
    page.locator("[data-layout=reset]").click()
    expect(page.locator('[data-panel="figure:heatmap"]')).to_have_count(0)
    assert page.evaluate(LAYOUT) == usual
    # An offer that is dragged into the grid stays where it is dropped; Escape ends a drag without a change.
    for key, layout in (("Escape", usual), (None, ["throughput", "figure:heatmap", "sweep"])):
        page.locator("[data-add-panel] summary").click()
        page.keyboard.type("heatmap")
        drag(page, page.locator("[data-offer]:visible").first, sweep, key)
        expect(page.locator(".panel.target")).to_have_count(0)
        page.goto(PUBLISHED)
        assert page.evaluate(LAYOUT) == layout
