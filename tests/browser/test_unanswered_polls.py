"""A part of a page that polls says when the server no longer answers, and is quiet again when it does."""

from __future__ import annotations

from importlib.resources import files

from playwright.sync_api import Browser, Route, expect

from tests.docs.pages import PROJECT

ADDRESS = "http://parlab.test/"
PAGE = """<main><section id="live" hx-get="/part" hx-trigger="every 100ms" hx-swap="outerHTML">1 running</section>
<section id="other">2 nodes</section><p id="announce"></p></main>
<script src="/htmx.js"></script><script src="/page.js"></script>"""
SCRIPTS = {
    "htmx.js": (files("django_htmx") / "static" / "django_htmx" / "htmx-2.min.js").read_text(encoding="utf-8"),
    "page.js": (PROJECT / "static" / "js" / "frame" / "page.js").read_text(encoding="utf-8"),
}


def test_a_part_that_polls_says_when_the_server_no_longer_answers(browser: Browser) -> None:
    status = 500

    def answer(route: Route) -> None:
        name = route.request.url.removeprefix(ADDRESS)
        if name == "part":
            route.fulfill(status=status)
        else:
            route.fulfill(body=SCRIPTS.get(name, PAGE), content_type="text/javascript" if name else "text/html")

    page = browser.new_page()
    page.route("**/*", answer)
    page.goto(ADDRESS)
    said = page.locator(".stale")
    expect(said).to_have_text("The server does not answer; this may be old. Retry")
    assert page.locator("#live .stale").count() == 1
    expect(page.locator("#live")).to_contain_text("1 running")
    status = 204
    expect(said).to_have_count(0)
    page.close()
