"""A document is imported through the page, and its contradiction found, opened with a key, and acknowledged."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_a_document_is_previewed_imported_and_its_doubted_number_acknowledged(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "scaling.md"
    path.write_text(DOCUMENT)
    page.get_by_role("link", name="Import", exact=True).click()
    expect(page.get_by_label("Files")).not_to_be_focused()
    page.get_by_label("Files").set_input_files(path)
    expect(page.get_by_text("scaling.md, ")).to_be_visible()
    screenshots(page, "import")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("Becomes the new experiment")).to_be_visible()
    screenshots(page, "import-preview")
    page.get_by_role("button", name="Import 1 file").click()
    expect(page.get_by_role("heading", name="Scaling of the small case", level=1)).to_be_visible()
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
    panel.get_by_label("Why it may stand").fill("A slip of the pen, confirmed by the author")
    panel.get_by_role("button", name="Acknowledge").click()
    expect(page.get_by_text("The finding is acknowledged")).to_be_visible()
    expect(page.locator(".document a[data-doubt]").first).to_have_class(re.compile("doubt-known"))
    screenshots(page, "imported")
