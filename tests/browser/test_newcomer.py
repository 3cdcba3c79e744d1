"""The newcomer's walk: a click from a list to what was measured, why a run failed, whether a number is doubtful."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect


def row(page: Page, name: str) -> Locator:
    """Find an experiment in the list of experiments."""
    page.goto("/experiments/")
    return page.locator("[data-row]").filter(has_text=name)


@pytest.mark.slow
def test_the_list_answers_each_question_and_the_page_says_more(page: Page) -> None:
    scaling = row(page, "Megatron BERT 345M on 1 to 128 A100")
    expect(scaling).to_contain_text("Does not scale to 8 GPUs")
    expect(scaling).to_contain_text("44.7 samples/s per GPU")
    expect(scaling).to_contain_text("2 findings")
    scaling.get_by_role("link", name="Megatron BERT 345M").click()
    expect(page.locator("[data-verdict]")).to_contain_text("20 % at 128")
    expect(page.locator(".rl").first).to_contain_text("128 GPUs")
    row(page, "GPT-3 small on three nodes").get_by_role("link", name="GPT-3 small").click()
    expect(page.locator("[data-verdict]")).to_contain_text("costs 1F1B 71")
    # A table that states nothing but FLOP/s has a best row too.
    expect(row(page, "Layouts of GPT from 1.7B to 1T")).to_contain_text("163 TFLOP/s")


@pytest.mark.slow
def test_the_list_of_runs_and_the_run_page_show_why_a_run_failed(page: Page) -> None:
    page.goto("/experiments/?show=runs&q=state:oom")
    stopped = page.get_by_role("row").filter(has_text="GPT-3 small on three nodes")
    expect(stopped).to_contain_text("OOM")
    expect(stopped).to_contain_text("Fail due to running out of DRAM")
    stopped.get_by_role("link", name="#25").click()
    expect(page.get_by_role("main")).to_contain_text("Fail due to running out of DRAM")


@pytest.mark.slow
def test_home_asks_for_a_decision_and_the_evidence_and_the_number_show_it(page: Page) -> None:
    page.goto("/")
    page.get_by_role("region", name="Needs a decision").get_by_role("link", name="Samples off by 10").click()
    evidence = page.get_by_role("region", name="Evidence")
    expect(evidence).to_contain_text("1,280 samples are stated, but 100 iterations x 128 samples = 12,800")
    expect(evidence.locator(".lg.hit")).to_contain_text("over 100 iterations = 1280 samples")
    evidence.get_by_role("link", name="Judge").click()
    expect(page.get_by_role("main")).to_contain_text("12,800")
    page.goto("/experiments/megatron-bert-345m-on-1-to-128-a100/")
    page.locator('.rl[data-run="3"] a[data-doubt]').click()
    panel = page.get_by_role("dialog", name="Findings about this number")
    expect(panel).to_contain_text("9.71 times slower")
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
