"""What does not fit can still be read, and a phone shows the measured number without scrolling."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from .conftest import Demo
from .screenshots import PUBLISHED

PHONE = {"width": 390, "height": 844}
COMPARED = "/compare/?runs="

# The visible text of the first two columns of each row.
NUMBERS = """(table) => {
  const edge = table.closest(".scroll").getBoundingClientRect().right + 1;
  const isShown = (cell) => cell.offsetWidth && !cell.classList.contains("choice");
  return [...table.querySelectorAll("tbody tr")].map((row) => {
    const first = [...row.querySelectorAll("th, td")].filter(isShown).slice(0, 2);
    return first.filter((cell) => cell.getBoundingClientRect().right <= edge).map((cell) => cell.innerText).join(" ");
  });
}"""

# Labels of neighbouring axes that cover each other, or that end beyond the figure.
OVERLAPPING = """(plot) => {
  const labels = [...plot.querySelectorAll(".annotation-text-g")];
  const boxes = labels.map((label) => ({ text: label.textContent, box: label.getBoundingClientRect() }));
  const edge = plot.getBoundingClientRect().right;
  const cut = boxes.filter(({ box }) => box.right > edge + 1).map(({ text }) => text);
  const covers = (one, other) => {
    const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
    return wide > 1 && high > 4 && Math.abs(one.left - other.left) > 8;
  };
  const pairs = boxes.flatMap((one, at) => boxes.slice(at + 1).map((other) => [one, other]));
  const covered = pairs.filter(([one, other]) => covers(one.box, other.box));
  return cut.concat(covered.map(([one, other]) => `${one.text} | ${other.text}`));
}"""


def test_on_a_phone_each_experiment_shows_its_answer_and_its_number(page: Page) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto("/experiments/?q=published")
    row = page.locator("[data-row]").filter(has_text="GPT-3 small on three nodes")
    expect(row).to_contain_text("costs 1F1B 71")
    number = row.locator(".kn")
    expect(number).to_contain_text("samples/s")
    box = number.bounding_box()
    assert box is not None
    assert 0 <= box["x"] < box["x"] + box["width"] <= PHONE["width"]


def test_on_a_phone_the_number_stands_in_the_first_two_columns_and_cells_below_their_titles(page: Page) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto("/experiments/?show=runs&q=origin:published")
    table = page.get_by_role("region", name="Runs", exact=True).locator("table")
    rows = [row for row in table.evaluate(NUMBERS) if row]
    assert sum("\u202fs" in row for row in rows) >= 3, rows
    heads, cells = table.locator("thead th:visible"), table.locator("tbody tr").first.locator("td:visible, th:visible")
    assert heads.count() == cells.count()


@pytest.mark.slow
def test_a_reason_shows_whole_while_the_keyboard_is_on_its_row(page: Page) -> None:
    page.goto(f"{PUBLISHED}table/")
    row = page.locator("tr[data-run='25']")
    reason = row.locator(".reason .two-lines")
    reason.evaluate("(cell) => { cell.textContent = cell.textContent.repeat(6); }")
    page.locator("h1").hover()
    is_whole = "(cell) => cell.scrollHeight <= cell.clientHeight + 1"
    assert not reason.evaluate(is_whole)
    row.locator("input").focus()
    assert reason.evaluate(is_whole)


@pytest.mark.slow
def test_values_of_parallel_coordinates_neither_overlap_nor_end_beyond_the_figure(page: Page, demo: Demo) -> None:
    page.goto("/experiments/?show=runs&q=name:autotuning-bert-base-with-deepspeed")
    runs = page.locator("td.choice input").evaluate_all("(boxes) => boxes.map((box) => box.value)")
    assert len(runs) == 3
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(COMPARED + ",".join(runs))
    plot = page.locator("[data-figure='parallel'][data-drawn]")
    expect(plot).to_be_visible()
    labels = plot.locator(".annotation-text-g").all_text_contents()
    assert any("2,682.849" in label for label in labels)
    assert plot.evaluate(OVERLAPPING) == []
