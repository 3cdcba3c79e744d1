"""The whole way of a question: experiment, sweep, runs, dashboard, link, and another person who opens it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from .conftest import PATIENCE_MS, TRAINING_MS, Demo, add_viewer, screenshots


@pytest.mark.slow
def test_a_question_becomes_a_dashboard_that_another_person_opens(page: Page, demo: Demo, browser: Browser) -> None:
    # A new experiment, and a sweep built without JSON.
    page.goto("/experiments/")
    page.locator("header summary").filter(has_text="New").click()
    page.get_by_role("link", name="Experiment", exact=True).click()
    page.wait_for_url("**/sweeps/new/")
    page.get_by_label("Name", exact=True).fill("Which batch")
    page.get_by_label("Question", exact=True).fill("Which micro batch is faster on this machine?")
    page.locator("#f-parallel-engine").select_option("zero")
    page.get_by_label("Vary Micro batch size", exact=True).click()
    page.locator("#a-train-micro_batch_size").fill("1..2 ×2")
    page.get_by_label("Iterations", exact=True).fill("3")
    expect(page.locator(".matrix tbody tr")).to_have_count(2)

    # Launched as it stands, and watched until both runs have numbers.
    page.get_by_role("button", name="Save and launch").click()
    page.wait_for_url("**/experiments/which-batch/")
    expect(page.get_by_text("Launched 2 runs.")).to_be_visible()
    expect(page.locator('.rl[data-state="finished"]')).to_have_count(2, timeout=TRAINING_MS)
    expect(page.locator("[data-verdict]")).to_contain_text("samples/s")

    # A dashboard of these results, saved and shared.
    page.locator(".hd .acts summary").click()
    page.get_by_role("button", name="New dashboard").click()
    page.wait_for_url("**/edit/")
    page.get_by_label("Name").fill("Micro batches at a glance")
    page.get_by_label("New panel").select_option("text")
    contents = page.get_by_label("Content")
    before = contents.count()
    page.get_by_role("button", name="Add panel").click()
    expect(contents).to_have_count(before + 1)
    page.get_by_label("Content").last.fill("Measured on **this machine**.")
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_url(lambda url: url.rstrip("/").rpartition("/")[2].isdecimal())
    page.wait_for_selector('[data-figure][data-drawn="1"]')
    screenshots(page, "whole-way")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator('summary[title="More"]').first.click()
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")

    # Another person opens the link: the same panels, with numbers, and a way to the experiment.
    add_viewer(page, "reader", "opens what others share")
    other = browser.new_context(base_url=demo.url, viewport={"width": 390, "height": 844})
    other.set_default_timeout(PATIENCE_MS)
    reader = other.new_page()
    reader.goto(link)
    reader.get_by_label("Username").fill("reader")
    reader.get_by_label("Password").fill("opens what others share")
    reader.get_by_role("button", name="Log in").click()
    expect(reader.get_by_role("heading", name="Micro batches at a glance")).to_be_visible()
    expect(reader.get_by_text("Measured on this machine.")).to_be_visible()
    reader.wait_for_selector('[data-figure][data-drawn="1"]')
    expect(reader.locator("main")).to_contain_text(re.compile(r"\d\s?samples/s"))
    assert reader.evaluate("document.documentElement.scrollWidth") <= 390
    reader.goto("/experiments/which-batch/")
    expect(reader.get_by_text("Which micro batch is faster on this machine?")).to_be_visible()
    expect(reader.locator("#launch")).to_have_count(0)
    other.close()
