"""A dashboard is made from an experiment, arranged, saved as the default, and opened by another person."""

from __future__ import annotations

from playwright.sync_api import Browser, Page, expect

from .conftest import PATIENCE_MS, Demo, screenshots


def test_a_dashboard_is_saved_shared_and_opened_by_another(page: Page, demo: Demo, browser: Browser) -> None:
    page.goto("/experiments/gpt-3-small-on-three-nodes/")
    page.get_by_text("More", exact=True).click()
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

    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    _add_viewer(page, "colleague", "reads dashboards only")

    other = browser.new_context(base_url=demo.url)
    other.set_default_timeout(PATIENCE_MS)
    colleague = other.new_page()
    colleague.goto(link)
    colleague.get_by_label("Username").fill("colleague")
    colleague.get_by_label("Password").fill("reads dashboards only")
    colleague.get_by_role("button", name="Log in").click()
    expect(colleague.get_by_role("heading", name="Three nodes at a glance")).to_be_visible()
    expect(colleague.get_by_role("link", name="Edit", exact=True)).to_have_count(0)
    colleague.wait_for_selector('[data-figure][data-drawn="1"]')
    colleague.goto("/experiments/gpt-3-small-on-three-nodes/dashboard/")
    expect(colleague.get_by_text("Memory decides everything.")).to_be_visible()
    other.close()


def _add_viewer(page: Page, name: str, password: str) -> None:
    """Create another person in the administration, who may look at everything and change nothing."""
    page.goto("/admin/auth/user/add/")
    page.locator("#id_username").fill(name)
    page.locator("#id_password1").fill(password)
    page.locator("#id_password2").fill(password)
    page.locator('[name="_continue"]').click()
    page.locator("#id_groups_from option", has_text="viewer").dblclick()
    expect(page.locator("#id_groups_to option")).to_have_text(["viewer"])
    page.locator('[name="_save"]').click()
    page.wait_for_url("**/admin/auth/user/")


def test_a_list_is_saved_as_a_view_that_opens_again(page: Page, demo: Demo) -> None:
    page.goto("/experiments/")
    page.locator("#search").fill("has:no-such-thing engine:zero")
    page.locator("#search").fill("engine:zero")
    page.wait_for_url("**engine**")
    page.locator(".views > summary").click()
    page.get_by_label("Save what is shown as").fill("Only ZeRO")
    page.get_by_role("button", name="Save view").click()
    expect(page.get_by_text("Saved the view Only ZeRO.")).to_be_visible()
    page.goto("/experiments/")
    page.locator(".views > summary").click()
    page.get_by_role("link", name="Only ZeRO").click()
    expect(page.locator("#search")).to_have_value("engine:zero")
