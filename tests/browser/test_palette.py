"""The palette from the keyboard, the paste box, and Back after a choice."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from .rules import violations

LOG = "".join(
    f" iteration {n}/ 4 | elapsed time per iteration (ms): 500.0 | global batch size: 8 | lm loss: {9 - n}.5 |\n"
    for n in range(1, 5)
)


def test_the_palette_is_used_from_the_keyboard(page: Page) -> None:
    page.goto("/experiments/")
    page.locator("#search").focus()
    page.keyboard.press("Control+k")
    box, options = page.get_by_role("combobox", name="Search or run a command"), page.locator("#palette [role=option]")
    expect(box).to_be_focused()
    expect(options.first).to_be_visible()
    page.keyboard.type("sta")
    expect(page.locator("#palette").get_by_text("state of a run")).to_be_visible()
    page.keyboard.press("Escape")
    expect(box).to_be_hidden()
    page.keyboard.press("Control+k")
    page.keyboard.type("state:fini")
    expect(options.first).to_contain_text("state:finished")
    page.keyboard.press("Tab")
    expect(box).to_have_value("state:finished ")
    expect(options.first).to_contain_text("Runs with state = finished")
    expect(options.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"show=runs&q=state%3Afinished"))


def test_enter_before_the_answer_opens_what_was_typed(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Control+k")
    page.keyboard.type("audit log")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/audit/"))


def test_a_pasted_log_is_read_while_one_pastes_and_imported(page: Page) -> None:
    page.goto("/import/")
    page.get_by_label("Log", exact=True).fill(LOG)
    expect(page.get_by_text(re.compile(r"^megatron: 1 run, 4 steps, \d+ numbers read"))).to_be_visible()
    page.get_by_role("button", name="Import 1 run").click()
    expect(page).to_have_url(re.compile(r"/experiments/pasted[\w-]*/runs/1/"))


def test_back_undoes_a_choice(page: Page) -> None:
    page.goto("/simulate/")
    wire = page.locator("select[name=wire]")
    before = wire.input_value()
    page.locator("summary", has_text="Expert settings").click()
    wire.select_option("int8")
    expect(page).to_have_url(re.compile("wire=int8"))
    page.go_back()
    expect(page).to_have_url(re.compile(r"/simulate/$"))
    expect(wire).to_have_value(before)


def test_the_open_palette_keeps_the_rules_of_axe(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Control+k")
    expect(page.locator("#palette [role=option]").first).to_be_visible()
    assert violations(page) == []
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    assert violations(page) == []
