"""A document is imported through the page, and its contradiction found, opened with a key, and acknowledged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from .conftest import screenshots

DOCUMENT = """# Scaling of the small case

Four sizes, one table.

| GPUs | Global batch | Step time (s) | TFLOP/s per GPU | Aggregate TFLOP/s |
|-----:|-------------:|--------------:|----------------:|------------------:|
| 8 | 64 | 2.00 | 100 | 800 |
| 16 | 128 | 2.05 | 98 | 1568 |
| 32 | 256 | 2.10 | 96 | 9999 |
| 64 | 512 | OOM | | |
"""


@pytest.mark.slow
def test_a_document_is_previewed_imported_and_its_doubted_number_acknowledged(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "scaling.md"
    path.write_text(DOCUMENT)
    page.goto("/")
    page.locator("header summary").filter(has_text="New").click()
    page.get_by_role("link", name="Import a file").click()
    expect(page.get_by_label("Files")).not_to_be_focused()
    page.get_by_label("Files").set_input_files(path)
    expect(page.get_by_text("scaling.md, ")).to_be_visible()
    screenshots(page, "import")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("Will create the experiment")).to_be_visible()
    screenshots(page, "import-preview")
    page.get_by_role("button", name="Import 1 file").click()
    expect(page.get_by_role("heading", name="Scaling of the small case", level=1)).to_be_visible()
    expect(page.locator('.rl[data-run="3"] a[data-doubt]')).to_be_visible()
    page.get_by_role("link", name="Configuration", exact=True).click()
    expect(page.get_by_role("cell", name="OOM").first).to_be_visible()

    page.wait_for_load_state()
    triangle = page.locator(".document a[data-doubt]").first
    triangle.focus()
    page.keyboard.press("Enter")
    panel = page.get_by_role("dialog")
    expect(panel).to_contain_text("9,999")
    expect(panel.locator(".meant")).to_contain_text("| 32 | 256 |")
    screenshots(page, "doubt")
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(triangle).to_be_focused()

    triangle.click()
    panel.get_by_text("Acknowledge").first.click()
    panel.get_by_label("Reason").fill("A typing error, confirmed by the author")
    panel.get_by_role("button", name="Acknowledge").click()
    expect(page.get_by_text("Finding acknowledged")).to_be_visible()
    expect(page.locator(".document a[data-doubt]").first).to_have_class(re.compile("doubt-known"))
    screenshots(page, "imported")


def samples(count: int) -> str:
    """What nvidia-smi prints of one GPU, every second; every 50th second a dip that thinning must not lose."""
    rows = [
        f"2026/11/20 {at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}.000, 0, {5 if at == 3001 else 80 + at % 7} %"
        for at in range(count)
    ]
    return "\n".join(["timestamp, index, utilization.gpu [%]", *rows, ""])


READ = """() => {
    const element = document.querySelector('[data-figure="gpu-utilisation"]');
    const {x, y} = element.data[0];
    return {points: x.length, first: x[0], last: x[x.length - 1], least: Math.min(...y), steps: x[1] - x[0]};
}"""
END = """document.querySelector('[data-figure="gpu-utilisation"]')._fullLayout.xaxis.range[1]"""


@pytest.mark.slow
def test_long_telemetry_is_thinned_by_the_server_and_refined_on_zoom(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text(samples(6_000))
    page.goto("/import/#file")
    page.get_by_label("Files").set_input_files(path)
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Import 1 file").click()
    page.locator(".rl a.t").first.click()
    page.get_by_role("link", name="System", exact=True).click()
    figure = page.locator('[data-figure="gpu-utilisation"][data-drawn="1"]')
    expect(figure).to_be_visible()
    whole = page.evaluate(READ)
    assert whole["points"] <= 1_000
    assert (whole["first"], whole["last"], whole["least"]) == (0, 5_999, 5)

    figure.scroll_into_view_if_needed()
    plot = page.locator('[data-figure="gpu-utilisation"] .nsewdrag').bounding_box()
    assert plot is not None
    # The axis ends beyond the last second: its mark has room.
    dip = plot["x"] + plot["width"] * 3001 / page.evaluate(END)
    y = plot["y"] + plot["height"] / 2
    page.mouse.move(dip - 12, y)
    page.mouse.down()
    page.mouse.move(dip + 12, y, steps=4)
    page.mouse.up()
    expect(page.locator('[data-figure="gpu-utilisation"][data-refined]')).to_be_visible()
    part = page.evaluate(READ)
    # Every second of the part is there, and not one point of the rest.
    assert part["steps"] == 1
    assert part["last"] - part["first"] < 1_000
    assert part["least"] == 5
