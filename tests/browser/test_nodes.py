"""A run over the three nodes of the demo: its nodes, the heat map, the slowest rank, the log of one rank."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from .conftest import TRAINING_MS, screenshots

pytestmark = pytest.mark.slow

EXPERIMENT = "/experiments/a-pipeline-over-three-nodes/"


def test_a_run_over_three_nodes_shows_its_nodes_and_each_of_its_ranks(page: Page) -> None:
    page.goto(EXPERIMENT)
    page.locator("#launch").click()
    expect(page.locator('.rl[data-state="finished"]')).to_have_count(2, timeout=TRAINING_MS)
    page.goto(f"{EXPERIMENT}runs/1/system/")
    nodes = page.get_by_role("region", name="Nodes", exact=True).last  # its table
    for number in range(3):
        expect(nodes).to_contain_text(f"demo-{number}")

    page.goto(f"{EXPERIMENT}runs/1/ranks/")
    heat_map = page.get_by_role("region", name="Ranks over steps")
    rows = heat_map.locator("tbody th").all_inner_texts()
    assert [re.sub(r"\s+demo-\d", " demo", row) for row in rows] == [f"rank {rank} demo" for rank in range(3)]
    page.get_by_text("Slowest ranks over time").click()
    slowest = page.get_by_role("region", name="Slowest ranks over time")
    expect(slowest).to_contain_text(re.compile(r"rank \d on node demo-\d"))
    expect(slowest).to_contain_text("Slowest node")
    screenshots(page, "run-over-nodes")

    # One cursor: a cell moves it, and bars, timeline and log follow.
    heat_map.get_by_role("link", name=re.compile(r"\d")).nth(9).click()
    expect(page).to_have_url(re.compile(r"step=2&rank=1"))
    expect(page.get_by_role("region", name="Timeline of step 2").locator("li.here")).to_contain_text("rank 1")
    expect(page.get_by_role("region", name="Log of step 2").locator(".hit")).to_contain_text("step 2")
    page.keyboard.press("ArrowDown")
    expect(page).to_have_url(re.compile(r"step=2&rank=2"))
    page.go_back()
    expect(page.locator("#ranks")).to_have_attribute("data-rank", "1")

    page.get_by_label("Nodes", exact=False).select_option(index=2)
    expect(page).to_have_url(re.compile("ranks_of=1"))
    expect(heat_map.locator("tbody th")).to_have_count(1)
    expect(slowest).to_have_count(0)  # its only rank

    page.goto(f"{EXPERIMENT}runs/1/log/")
    page.get_by_label("Rank", exact=True).fill("2")
    page.get_by_label("Rank", exact=True).press("Enter")
    expect(page.get_by_text(re.compile(r"Output of rank 2 on node demo-\d\."))).to_be_visible()
    expect(page).to_have_url(re.compile("rank=2"))
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the log of rank 2").click()
    text = download.value.path().read_text()
    assert '"event":"step"' in text
    assert set(re.findall(r'"rank":(\d+)', text)) == {"2"}
