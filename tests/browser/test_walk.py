"""From the first start to a decision: the demo is run, its answer read, a slow run mended; and by keyboard alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.patience import wait_for

from .conftest import TRAINING_MS, Demo, copy_of_the_project, screenshots, start_demo, stop_demo
from .screenshots import opened
from .test_budgets import FIRST_HOME, HOME, PUBLISHED, excess

SCHEDULES, SLOW = "/experiments/pipeline-schedules-on-this-machine/", "/experiments/slow-on-purpose/"
CURVES = "[data-panel] svg.curves"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A demo in which nothing has been launched, whatever other tests do."""
    directory = tmp_path_factory.mktemp("fresh")
    copy_of_the_project(directory)
    running = start_demo(directory)
    yield running
    stop_demo(running)


# The texts at the bottom of a curve: its horizontal axis.
AXIS = """(svg) => {
  const all = [...svg.querySelectorAll("text")], low = Math.max(...all.map((text) => +text.getAttribute("y")));
  return all.filter((text) => +text.getAttribute("y") === low).map((text) => text.textContent).join(" ");
}"""


def ticks(curve: Locator) -> str:
    """Return the numbers at the horizontal axis of a curve."""
    return str(curve.evaluate(AXIS))


def drag_over(page: Page, curve: Locator, begin: float, end: float) -> None:
    """Drag over a part of a curve, from one share of its width to another."""
    curve.scroll_into_view_if_needed()
    box = curve.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + begin * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], middle, steps=6)
    page.mouse.up()


def first_start(page: Page) -> None:
    page.goto("/")
    for way in ("Run the demo", "Paste a log", "Connect a script"):
        expect(page.get_by_role("heading", name=way, exact=True)).to_be_visible()
    assert excess(page, FIRST_HOME) == []
    screenshots(page, "walk-first")
    page.locator("#run-demo").click()
    card = page.locator('.card.live[data-state="running"]').first
    expect(card.get_by_role("img", name="Step time")).to_be_visible(timeout=TRAINING_MS)
    expect(page.get_by_role("heading", name="Connect a script")).to_have_count(0)
    assert excess(page, HOME) == [], page.get_by_role("main").inner_text()
    screenshots(page, "walk-live")


def read_the_schedules(page: Page) -> None:
    page.goto(SCHEDULES)
    expect(page.locator('.rl[data-state="finished"]')).to_have_count(9, timeout=TRAINING_MS)
    page.reload()
    expect(page.locator("[data-verdict]")).to_contain_text(re.compile("GPipe|1F1B|ZB-H1"))
    page.locator('.rl[data-run="1"] .eye').click()
    expect(page).to_have_url(re.compile(r"hide=1\b"))
    marks = page.locator('[data-panel] svg [data-run="1"]')
    assert marks.count() > 3
    assert not [mark for mark in marks.all() if mark.is_visible()]
    curves = page.locator(CURVES)
    wait_for(lambda: ticks(curves.first), "drawn curves")
    whole = ticks(curves.first)
    drag_over(page, curves.first, 0.4, 0.7)
    expect(page).to_have_url(re.compile(r"x0=[\d.]+&x1=[\d.]+"))
    wait_for(lambda: ticks(curves.first) != whole, "a panel of the part alone")
    wait_for(lambda: ticks(curves.nth(1)) == ticks(curves.first), "the same part in all panels")
    page.go_back()
    expect(page).not_to_have_url(re.compile("x0="))
    wait_for(lambda: ticks(curves.first) == ticks(curves.nth(1)) == whole, "the whole in all panels")
    screenshots(page, "walk-schedules")


def cancel_what_waits(page: Page) -> None:
    """The other sweeps of the demo take minutes; the next launch shall not wait for them."""
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto("/experiments/?show=runs&q=state:queued")
    page.get_by_label("Select all on this page").check()
    page.get_by_role("button", name="Cancel runs").click()
    page.wait_for_load_state()


def mend_the_slow_run(page: Page) -> None:
    page.goto(SLOW)
    expect(page.locator('.rl[data-state="finished"]')).to_have_count(1, timeout=TRAINING_MS)
    cancel_what_waits(page)
    page.goto(f"{SLOW}runs/1/")
    page.get_by_role("button", name=re.compile("^Try: ")).first.click()
    tried = page.get_by_role("region", name="Step").locator(".chip.done, .chip.worse").first
    expect(tried).to_contain_text("realised", timeout=TRAINING_MS)
    screenshots(page, "walk-tried")
    page.goto(SLOW)
    answer = re.compile(r"(saves|costs) [\d.]+\s%")
    expect(page.locator("[data-verdict]")).to_contain_text(answer)
    page.goto("/")
    expect(page.locator(".expc").filter(has_text="Slow on purpose")).to_contain_text(answer)
    page.goto("/experiments/?q=slow")
    expect(page.locator("[data-row]").filter(has_text="Slow on purpose")).to_contain_text(answer)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_newcomer_runs_the_demo_reads_its_answer_and_mends_a_slow_run(browser: Browser, fresh: Demo) -> None:
    with opened(browser, fresh.url, fresh.user, fresh.password) as page:
        page.set_viewport_size({"width": 1440, "height": 900})
        first_start(page)
        read_the_schedules(page)
        mend_the_slow_run(page)


def tab_to(page: Page, name: str) -> None:
    """Press Tab until the link of a name has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == name:
            return
    pytest.fail(f"Tab does not reach {name}")


def test_a_run_is_reached_by_keyboard_through_the_palette_and_the_table(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Control+k")
    page.keyboard.type("gpt-3 small on three")
    expect(page.locator("#palette [role=option]").first).to_contain_text("GPT-3 small on three nodes")
    selected = page.locator("#palette [role=option][aria-selected=true]")
    for _ in range(20):
        if str(selected.get_attribute("href")).endswith(PUBLISHED):
            break
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{PUBLISHED}")
    tab_to(page, "Table")
    page.keyboard.press("Enter")
    page.wait_for_url("**/table/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("tr.current")).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*/")
    expect(page.get_by_role("heading", level=1)).to_contain_text("#")
