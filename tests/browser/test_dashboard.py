"""A dashboard is made from an experiment, arranged and saved as the default; a list is saved as a view."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Route, expect

from .conftest import LAYOUT, Demo, drag, screenshots


@pytest.mark.slow
def test_a_dashboard_is_arranged_saved_and_the_default_of_its_experiment(page: Page, demo: Demo) -> None:
    page.goto("/experiments/gpt-3-small-on-three-nodes/")
    page.locator(".hd .acts summary").click()
    page.get_by_role("button", name="New dashboard").click()
    page.wait_for_url("**/edit/")
    page.get_by_label("Name").fill("Three nodes at a glance")
    page.get_by_label("New panel").select_option("text")
    page.get_by_role("button", name="Add panel").click()
    expect(page.get_by_text("Not saved yet")).to_be_visible()
    content = page.get_by_label("Content").last
    content.fill("Memory decides **everything**.")
    page.get_by_role("button", name="Move Text up").click()
    expect(page.get_by_label("Title").nth(3)).to_have_value("Text")
    # The handle of a panel moves it with the keyboard as well.
    page.get_by_role("button", name="Arrange Text").focus()
    page.keyboard.press("Alt+ArrowUp")
    expect(page.get_by_label("Title").nth(2)).to_have_value("Text")
    page.keyboard.press("Alt+ArrowDown")
    expect(page.get_by_label("Title").nth(3)).to_have_value("Text")
    page.get_by_label("Width").nth(3).select_option("full")
    page.get_by_label("New panel").select_option("figure-throughput")
    page.get_by_role("button", name="Add panel").click()
    expect(page.get_by_label("Content")).to_have_count(6)
    page.get_by_label("Content").last.fill("{{ figure throughput y=step_time }}")
    page.get_by_label("Default for the team").check()
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_url(lambda url: url.rstrip("/").rpartition("/")[2].isdecimal())
    expect(page.get_by_text("Memory decides everything.")).to_be_visible()
    plots = page.locator('[data-figure][data-drawn="1"]')
    expect(plots).to_have_count(2)
    # Separate figures with the same horizontal axis share its range.
    plots.first.evaluate("plot => Plotly.relayout(plot, {'xaxis.range': [0.5, 1.5]})")
    page.wait_for_function(
        "[...document.querySelectorAll('[data-figure]')].every((plot) => plot._fullLayout.xaxis.range[0] === 0.5)"
    )
    screenshots(page, "dashboard")

    page.goto("/experiments/gpt-3-small-on-three-nodes/dashboard/")
    expect(page.get_by_text("Memory decides everything.")).to_be_visible()


@pytest.mark.slow
def test_a_panel_is_dragged_from_the_drawer_to_its_place(page: Page, demo: Demo) -> None:
    page.goto("/experiments/gpt-3-small-on-three-nodes/")
    page.locator(".hd .acts summary").click()
    page.get_by_role("button", name="New dashboard").click()
    page.wait_for_url("**/edit/")
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_url(lambda url: url.rstrip("/").rpartition("/")[2].isdecimal())
    before = page.evaluate(LAYOUT)
    page.locator("[data-add-panel] summary").click()
    page.get_by_label("Search panels").fill("text")
    drag(page, page.get_by_role("button", name="Text", exact=True), page.locator("[data-panel]").nth(1))
    expect(page.locator("[data-panel]")).to_have_count(len(before) + 1)
    expect(page.locator("[data-panel]").nth(1)).to_have_attribute("aria-label", "Text")


@pytest.mark.slow
def test_save_pressed_before_a_new_panel_has_arrived_saves_that_panel(page: Page, demo: Demo) -> None:
    page.goto("/dashboards/")
    page.get_by_label("Name").fill("Saved at once")
    page.get_by_role("button", name="New dashboard").click()
    page.wait_for_url("**/edit/")
    held: list[Route] = []
    page.route("**/edit/", lambda route: held.append(route), times=1)  # noqa: PLW0108  Playwright takes no built-in method
    page.get_by_label("New panel").select_option("text")
    page.get_by_role("button", name="Add panel").click()
    expect(page.locator("#dashboard-form")).to_have_attribute("aria-busy", "")
    page.get_by_role("button", name="Add panel").click()
    page.get_by_role("button", name="Save", exact=True).click()
    assert len(held) == 1
    held[0].continue_()
    page.wait_for_url(lambda url: url.rstrip("/").rpartition("/")[2].isdecimal())
    expect(page.get_by_role("heading", name="Text")).to_have_count(1)


def open_views(page: Page) -> None:
    page.locator("summary").filter(has=page.get_by_text("View", exact=True)).click()
    page.locator(".views > summary").click()


def test_a_list_is_saved_as_a_view_that_opens_again(page: Page, demo: Demo) -> None:
    page.goto("/experiments/")
    page.locator("#search").fill("has:no-such-thing engine:zero")
    page.locator("#search").fill("engine:zero")
    page.wait_for_url(lambda url: "engine" in url and "no-such-thing" not in url)
    open_views(page)
    page.get_by_label("Save what is shown as").fill("Only ZeRO")
    page.get_by_role("button", name="Save view").click()
    expect(page.get_by_text("Saved the view Only ZeRO.")).to_be_visible()
    page.goto("/experiments/")
    open_views(page)
    page.get_by_role("link", name="Only ZeRO").click()
    expect(page.locator("#search")).to_have_value("engine:zero")
