"""Time until the first figure of a page is drawn in a browser."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from playwright.sync_api import Page, sync_playwright

from tests.bench.result import Result, Scale
from tests.browser.conftest import Demo, copy_of_the_project, start_demo, stop_demo
from tests.browser.install import find_chromium

PUBLISHED = "/experiments/gpt-3-small-on-three-nodes/"
# A figure is drawn when its element has the attribute; the clock is the page's performance.now().
_WATCH = """
window.firstFigure = 0;
new MutationObserver((changes) => {
  if (!window.firstFigure && changes.some(({target}) => target.dataset.drawn)) window.firstFigure = performance.now();
}).observe(document, {subtree: true, attributes: true, attributeFilter: ["data-drawn"]});
"""


# A page with Plotly and two points, and nothing else.
_ALONE = """<!doctype html><div id="plot" data-figure-url></div><script src="{}"></script>
<script>Plotly.newPlot("plot", [{{y: [1, 2]}}]).then((plot) => {{ plot.dataset.drawn = "1"; }})</script>"""


def first_figure_ms(scale: Scale) -> Result:
    """Measure the time from the request of an experiment's page to its first figure, with Plotly cached.

    A new tab compiles all scripts; a link within parlab opens the page in the same process, which has them compiled.
    """
    repeats = scale.repeats(9)
    with _page() as (page, demo):
        address = f"{demo.url}{PUBLISHED}#figures"
        times = [_first_figure(page, address) for _ in range(repeats + 1)][1:]
        linked = median([_first_figure(page, address, before=f"{demo.url}/experiments/") for _ in range(repeats)])
        alone = median(_alone(page, demo, repeats))
        page.context.new_cdp_session(page).send("Network.clearBrowserCache")
        cold = _first_figure(page, address)
    value = median(times)
    against = (
        f"{alone:,.0f} ms for a page with Plotly alone; "
        f"{linked:,.0f} ms from a page of parlab, {cold:,.0f} ms with an empty cache"
    )
    return Result(value, "ms", against, alone / value, repeats)


def _alone(page: Page, demo: Demo, repeats: int) -> list[float]:
    source = page.locator("script[data-plotly]").get_attribute("src")
    page.route(f"{demo.url}/alone/", lambda route: route.fulfill(body=_ALONE.format(source), content_type="text/html"))
    return [_first_figure(page, f"{demo.url}/alone/") for _ in range(repeats)]


def _first_figure(page: Page, url: str, before: str = "about:blank") -> float:
    # Load another page in between, because a URL that differs only in its fragment is not reloaded.
    page.goto(before)
    page.goto(url)
    page.locator('[data-figure-url][data-drawn="1"]').first.wait_for(state="attached", timeout=60_000)
    # The time of now is an upper bound, should the attribute have been set before the observer was there.
    return float(page.evaluate("window.firstFigure || performance.now()"))


@contextmanager
def _page() -> Iterator[tuple[Page, Demo]]:
    """Start a demo and a browser that is logged in."""
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        copy_of_the_project(Path(directory))
        demo = start_demo(Path(directory))
        try:
            browser = playwright.chromium.launch(
                executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.add_init_script(_WATCH)
            page.goto(f"{demo.url}/login/")
            page.get_by_label("Username").fill(demo.user)
            page.get_by_label("Password").fill(demo.password)
            page.get_by_role("button", name="Log in").click()
            page.wait_for_load_state()
            yield page, demo
        finally:
            stop_demo(demo)
