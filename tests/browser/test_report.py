"""A report is written with a live figure, published, read by a stranger through its link, and taken from them again."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from .conftest import TRAINING_MS, Demo, screenshots

EXPERIMENT = "GPT-3 small on three nodes"
TEXT = """Slow networks cost 1F1B more than GPipe: {{ value step_time_s where="network=delay 10ms bandwidth 1Gbps,
schedule=1f1b, micro_batch_size=1" decimals=2 }} a step.

{{ figure throughput where="network=delay 10ms bandwidth 1Gbps" }}

{{ table pivot rows=network columns=micro_batch_size value=step_time_s where="schedule=gpipe" unit=s decimals=2 }}

{{ figure nonsense }}
"""


@pytest.mark.slow
def test_a_report_is_written_published_shared_and_revoked(page: Page, browser: Browser, demo: Demo) -> None:
    page.goto("/experiments/")
    page.get_by_role("link", name=EXPERIMENT, exact=True).first.click()
    page.get_by_role("link", name="Write report").click()
    page.get_by_label("Title").fill("What slow networks cost")
    page.get_by_role("button", name="Create report").click()
    preview = page.get_by_label("Preview")
    expect(preview.locator(".main-svg").first).to_be_visible()

    # The preview follows the text, which saves itself; what cannot be shown says so in its place.
    page.get_by_label("Text in Markdown").fill(TEXT)
    expect(preview).to_contain_text("11.21\N{NARROW NO-BREAK SPACE}s a step")
    expect(preview.get_by_role("note")).to_contain_text("unknown figure 'nonsense'; use one of throughput")
    expect(preview.get_by_role("cell", name="8.38")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text=re.compile(r"^Saved \d"))).to_be_visible()
    figure = preview.locator(".report-live .main-svg").first
    expect(figure).to_be_visible()
    figure.evaluate("element => { element.dataset.kept = 'yes' }")
    page.get_by_label("Text in Markdown").fill(TEXT.replace("{{ figure nonsense }}", "The end."))
    expect(preview).to_contain_text("The end.")
    assert figure.evaluate("element => element.dataset.kept") == "yes"  # it was not drawn again
    expect(page.get_by_role("status").filter(has_text=re.compile(r"^Saved \d"))).to_be_visible()
    screenshots(page, "report-editor")

    page.get_by_role("link", name="Done").click()
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Published as version 1")).to_be_visible()
    # A worker of its own draws pictures and PDF meanwhile.
    expect(page.locator("#job progress")).to_have_count(0, timeout=TRAINING_MS)
    expect(page.get_by_text("Pictures and PDF are not available")).to_have_count(0)
    page.get_by_role("button", name="Share by link").click()
    address = page.locator(".links code[id^=link-]").inner_text()
    screenshots(page, "report-published")

    stranger = browser.new_context(viewport={"width": 1440, "height": 900})
    try:
        shared = stranger.new_page()
        assert shared.goto(address).status == 200  # type: ignore[union-attr]
        expect(shared.get_by_role("heading", name="What slow networks cost")).to_be_visible()
        expect(shared.get_by_text("11.21\N{NARROW NO-BREAK SPACE}s")).to_be_visible()
        picture = shared.locator(".report-figure img")
        assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 900
        assert shared.locator("a[href^='/']:not([href^='/shared/'])").count() == 0
        assert stranger.request.get(f"{address}report.pdf").body().startswith(b"%PDF-")
        screenshots(shared, "report-shared")
        shared.goto(f"{demo.url}/reports/")
        assert "/login/" in shared.url

        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Revoke").click()
        expect(page.get_by_text("Link revoked.")).to_be_visible()
        assert shared.goto(address).status == 404  # type: ignore[union-attr]
    finally:
        stranger.close()
