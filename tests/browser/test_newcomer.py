"""The newcomer's walk: two clicks from home to what is best, why a run failed, whether a number is doubtful."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect


def row(page: Page, name: str) -> Locator:
    """Find an experiment among the recent results of the home page, or one click behind: others may be more recent."""
    page.goto("/")
    recent = page.get_by_role("region", name="Recent results").get_by_role("row").filter(has_text=name)
    expect(page.locator("#home")).to_be_visible()
    if recent.count():
        return recent
    page.get_by_role("link", name="All experiments").click()
    return page.get_by_role("region", name="Experiments").get_by_role("row").filter(has_text=name)


def failed(page: Page, name: str) -> Locator:
    """Find a run that did not finish on the home page, or one click behind."""
    page.goto("/")
    section = page.locator("section[aria-labelledby=troubled]")
    recent = section.locator("li").filter(has_text=name)
    if recent.count():
        return recent
    section.get_by_role("link", name="All").click()
    return page.get_by_role("region", name="Runs").get_by_role("row").filter(has_text=name)


@pytest.mark.slow
def test_home_shows_the_best_configuration_and_its_lead(page: Page) -> None:
    scaling = row(page, "Megatron BERT 345M on 1 to 128 A100")
    expect(scaling).to_contain_text("samples/s")
    expect(scaling).to_contain_text("65.5 %")
    expect(scaling).to_contain_text("128 vs 64 GPUs")
    scaling.get_by_role("link", name="Megatron BERT 345M").click()
    expect(page.locator("[data-verdict]")).to_contain_text("128")
    expect(page.locator(".rl").first).to_contain_text("128 GPUs")
    row(page, "GPT-3 small on three nodes").get_by_role("link", name="GPT-3 small").click()
    expect(page.locator("[data-verdict]")).to_contain_text("costs 1F1B 71")
    # A table that states nothing but FLOP/s has a best row too.
    expect(row(page, "Layouts of GPT from 1.7B to 1T")).to_contain_text("163 TFLOP/s")


@pytest.mark.slow
def test_home_and_the_run_page_show_why_a_run_failed(page: Page) -> None:
    stopped = failed(page, "GPT-3 small on three nodes")
    expect(stopped).to_contain_text("OOM")
    expect(stopped).to_contain_text("Fail due to running out of DRAM")
    stopped.get_by_role("link", name="#25").click()
    expect(page.get_by_role("main")).to_contain_text("Fail due to running out of DRAM")


@pytest.mark.slow
def test_home_and_the_number_show_its_findings(page: Page) -> None:
    page.goto("/")
    waiting = page.locator("section[aria-labelledby=waiting]")
    doubt = waiting.locator("li").filter(has_text="1,280 samples are stated, but 100 iterations x 128 samples = 12,800")
    expect(doubt).to_contain_text("error")
    doubt.locator("a[data-doubt]").click()
    panel = page.get_by_role("dialog", name="Findings about this number")
    expect(panel).to_contain_text("12,800")
    expect(panel.locator(".meant")).to_contain_text("over 100 iterations = 1280 samples")
    page.keyboard.press("Escape")
    doubt.get_by_role("link", name="Megatron BERT 345M").click()
    beside = page.get_by_role("row").filter(has=page.locator("#run-3")).locator("a[data-doubt]").first
    beside.click()
    expect(panel).to_contain_text("9.71 times slower")
