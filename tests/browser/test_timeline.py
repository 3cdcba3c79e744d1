"""Schedules on a network, asked for and looked at in a browser."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.patience import PATIENCE_S

from .conftest import screenshots

PLOT = "[data-figure='timeline']"


def time_range(page: Page) -> list[float]:
    """Return the seconds that the time axis shows."""
    axis_range: list[float] = page.evaluate(f'document.querySelector("{PLOT}")?._fullLayout?.xaxis.range ?? []')
    return axis_range


def until(page: Page, is_so: Callable[[], bool]) -> None:
    """Poll until a condition holds; the content security policy forbids scripts of Playwright's own waits."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        page.wait_for_timeout(100)


def tooltip_text(page: Page) -> str:
    """Return the text of the tooltip."""
    return " ".join(page.locator(f"{PLOT} .hoverlayer .hovertext").all_text_contents())


def titles(page: Page) -> list[str]:
    """Return the titles of the schedules as they are drawn, from above."""
    return page.locator(f"{PLOT} .annotation-text").all_text_contents()


def area(page: Page) -> dict[str, float]:
    """Return where the lanes are drawn."""
    box: Any = page.locator(f"{PLOT} .nsewdrag").first.bounding_box()
    assert box is not None
    return {"x": box["x"], "y": box["y"], "width": box["width"], "height": box["height"]}


@pytest.mark.slow
def test_two_schedules_share_an_axis_and_can_be_zoomed(page: Page) -> None:
    page.goto("/simulate/")
    expect(page.locator(f"{PLOT}[data-drawn]")).to_be_visible()
    above, below = titles(page)
    assert above.replace("\u202f", " ").startswith("11.9 s: 1f1b")
    assert below.replace("\u202f", " ").startswith("6.84 s: 1f1b slope 3")
    whole = time_range(page)
    assert whole[0] == 0
    assert whole[1] > 11.9

    lanes = area(page)
    middle = lanes["y"] + lanes["height"] / 2
    page.mouse.move(lanes["x"] + 0.1 * lanes["width"], middle)
    page.mouse.down()
    page.mouse.move(lanes["x"] + 0.2 * lanes["width"], middle, steps=8)
    page.mouse.up()
    page.wait_for_function(f'document.querySelector("{PLOT}")._fullLayout.xaxis.range[1] < 4')
    near = time_range(page)
    assert 0 < near[0] < near[1] < 0.3 * whole[1]
    assert len(titles(page)) == 2

    # Some bar is under the mouse on the lane of the first rank: what it is stands in its tooltip.
    lane = lanes["y"] + 0.14 * lanes["height"]
    shares = itertools.cycle(range(20, 80, 3))

    def shows_operation() -> bool:
        page.mouse.move(lanes["x"] + next(shares) / 100 * lanes["width"], lane)
        tooltip = tooltip_text(page)
        return all(part in tooltip for part in ("rank 0", "micro batch", "takes"))

    until(page, shows_operation)

    page.mouse.dblclick(lanes["x"] + 0.5 * lanes["width"], lanes["y"] + 0.5 * lanes["height"])
    page.wait_for_function(f'document.querySelector("{PLOT}")._fullLayout.xaxis.range[1] > 11.9')


@pytest.mark.slow
def test_typing_another_network_changes_answer_figure_and_address(page: Page) -> None:
    page.goto("/simulate/")
    expect(page.locator(f"{PLOT}[data-drawn]")).to_be_visible()
    page.get_by_label("Delay (ms)").fill("0.1")
    page.get_by_label("Rate (Gbit/s)").fill("100")
    expect(page.locator("#live tr", has_text="recommended")).to_contain_text("1f1b")
    until(page, lambda: "bandwidth_gbps=100&" in page.url)
    expect(page.locator("#live")).to_contain_text("6.65")
    until(page, lambda: max(time_range(page), default=math.inf) < 8)  # the figure of before may stand for a moment
    page.get_by_label("Stages").fill("none")
    expect(page.get_by_role("alert")).to_contain_text("stages none is invalid")
    page.go_back()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_label("Stages")).to_have_value("3")
    expect(page.locator(f"{PLOT}[data-drawn]")).to_be_visible()
    page.wait_for_load_state("load")  # Back loads the page anew
    page.go_forward()
    expect(page.get_by_role("alert")).to_contain_text("stages none is invalid")
    page.go_back()
    expect(page.locator(f"{PLOT}[data-drawn]")).to_be_visible()
    screenshots(page, "simulate")


@pytest.mark.slow
def test_the_published_tables_stand_beside_the_simulation(page: Page) -> None:
    page.goto("/experiments/gpt-3-small-on-three-nodes/time/")
    page.locator(".ctl").get_by_role("link", name="Compare networks", exact=True).click()
    expect(page.locator("[data-figure='slowdown'][data-drawn]")).to_be_visible()
    cells = page.locator("[data-figure='slowdown'] .bartext").all_text_contents()
    assert len(cells) == 24
    assert any(text.startswith("1.71") for text in cells)
    screenshots(page, "networks")
    page.get_by_role("link", name="6.79").or_(page.locator("a[title='Open the timeline']").last).first.click()
    expect(page.locator(f"{PLOT}[data-drawn]")).to_be_visible()
    assert len(titles(page)) == 2
