"""A run over the three nodes of the demo: its nodes, the heat map, the slowest rank, the log of one rank."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from .conftest import TRAINING_MS, screenshots

pytestmark = pytest.mark.slow

EXPERIMENT = "/experiments/a-pipeline-over-three-nodes/"
HEAT_MAP = "[data-figure='ranks'][data-drawn]"
READ_ROWS = """() => {
    const element = document.querySelector("[data-figure='ranks']");
    return (element.data || []).filter(trace => trace.hovertemplate).map(trace => trace.hovertemplate.split("<br>")[0]);
}"""


def test_a_run_over_three_nodes_shows_its_nodes_and_each_of_its_ranks(page: Page) -> None:
    page.goto(EXPERIMENT)
    page.locator("#launch").click()
    expect(page.locator('tr[data-state="finished"]')).to_have_count(2, timeout=TRAINING_MS)
    page.goto(f"{EXPERIMENT}runs/1/")

    nodes = page.get_by_role("region", name="Nodes", exact=True).last  # its table
    for number in range(3):
        expect(nodes).to_contain_text(f"demo-{number}")
    expect(page.locator(HEAT_MAP)).to_be_visible()
    rows = page.evaluate(READ_ROWS)
    assert sorted(re.sub(r"demo-\d", "demo", row) for row in rows) == [f"rank {rank} on node demo" for rank in range(3)]
    slowest = page.get_by_role("region", name="Slowest ranks over time")
    expect(slowest).to_contain_text(re.compile(r"rank \d on node demo-\d"))
    expect(slowest).to_contain_text("Slowest node")
    screenshots(page, "run-over-nodes")

    page.get_by_label("Ranks of").select_option(index=2)
    expect(page).to_have_url(re.compile("ranks_of=1"))
    expect(page.locator(HEAT_MAP)).to_be_visible()
    page.wait_for_function(f"({READ_ROWS})().length === 1")
    assert page.evaluate(READ_ROWS)[0].startswith("rank 1 on node ")
    expect(slowest).to_have_count(0)  # its only rank

    page.get_by_label("Rank", exact=True).fill("2")
    page.get_by_label("Rank", exact=True).press("Enter")
    expect(page.get_by_text(re.compile(r"Output of rank 2 on node demo-\d\."))).to_be_visible()
    expect(page).to_have_url(re.compile("rank=2"))
    with page.expect_download() as download:
        page.get_by_role("link", name=re.compile("Download the log of rank 2")).click()
    text = download.value.path().read_text()
    assert '"event":"step"' in text
    assert set(re.findall(r'"rank":(\d+)', text)) == {"2"}
