"""Curves of a comparison: another axis, and smoothing that follows the slider and stays in the address."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.patience import TRAINING_S, wait_for

from .conftest import Demo, screenshots

LONGEST = "element => element.data.map((trace) => trace.y).sort((a, b) => b.length - a.length)[0]"
PLOT = """document.querySelector('[data-figure="curves"]')"""
MOVE = f"""() => {{
  const lines = [...{PLOT}.querySelectorAll(".js-line")], slider = document.getElementById("smoothing");
  const paths = () => lines.map((line) => line.getAttribute("d")).join();
  const before = paths();
  slider.value = 60;
  slider.dispatchEvent(new Event("input", {{bubbles: true}}));
  return [before, paths()];
}}"""


@pytest.mark.slow
def test_curves_are_smoothed_and_drawn_over_tokens(page: Page, demo: Demo) -> None:
    def have_finished() -> bool:
        # A page whose runs have all ended asks for no more, so a run that begins later appears only when it is loaded.
        page.goto("/experiments/four-ways-in/table/")
        return page.locator('tr[data-state="finished"]').count() == 4

    # Scripts report these runs while the demo starts, in any order.
    wait_for(have_finished, "four runs of scripts", TRAINING_S)
    for box in page.locator('input[name="run"]').all():
        box.check()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/compare/**")
    page.wait_for_selector('[data-figure="curves"][data-drawn="1"]')
    plot = page.locator('[data-figure="curves"]')
    page.locator('input[name="curve"][value="samples"]').check()
    page.locator('input[name="curve"][value="step-time"]').uncheck()
    # The figure of before stands until the new one is drawn, and one with both between them.
    of_samples = f'({PLOT}.layout?.yaxis?.title?.text || "").includes("samples") && !{PLOT}.layout.yaxis2'
    wait_for(lambda: page.evaluate(of_samples), "the figure of the samples")
    raw = plot.evaluate(LONGEST)
    # While the slider moves, the line on the screen follows at once; Plotly draws the figure anew after that.
    before, moved = page.evaluate(MOVE)
    assert before != moved
    page.wait_for_function(f"JSON.stringify(({LONGEST})({PLOT})) !== {json.dumps(json.dumps(raw))}")
    page.locator("#smoothing").fill("90")
    page.locator("#smoothing").dispatch_event("change")
    expect(page.locator("#smoothing-value")).to_have_text("0.90")
    smooth = plot.evaluate(LONGEST)
    spread = [max(values) - min(values) for values in (raw, smooth)]
    assert spread[1] < spread[0]
    expect(page).to_have_url(re.compile("smooth=90"))
    screenshots(page, "comparison-smoothed")
