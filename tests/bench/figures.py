"""Time until the first figure of a page is drawn in a browser."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from playwright.sync_api import Page, Playwright, ViewportSize, sync_playwright

from tests.bench.result import Result, Scale
from tests.browser.conftest import Demo, copy_of_the_project, start_demo, stop_demo
from tests.browser.install import find_chromium

PUBLISHED = "/experiments/mlperf-gpt-3-on-512-to-10752-h100/"
# A figure is drawn when its element has the attribute; the clock is the page's performance.now().
_WATCH = """
window.firstFigure = 0;
new MutationObserver((changes) => {
  if (!window.firstFigure && changes.some(({target}) => target.dataset.drawn)) window.firstFigure = performance.now();
}).observe(document, {subtree: true, attributes: true, attributeFilter: ["data-drawn"]});
"""


# A page with Plotly and two points, and nothing else; the policy of the pages allows no script in it.
_ALONE = {
    "alone.html": '<!doctype html><div id="plot" data-figure-url></div>'
    '<script src="vendor/plotly/plotly-basic.min.js"></script><script src="alone.js"></script>',
    "alone.js": 'Plotly.newPlot("plot", [{y: [1, 2]}]).then((plot) => { plot.dataset.drawn = "1"; });',
}
# Chromium keeps the compiled code of a script at its second visit.
WARM_UP = 2


def first_figure_ms(scale: Scale) -> Result:
    """Measure the time from the request of an experiment's page in a new tab to its first figure, after earlier visits.

    A new tab is a new process. Its scripts come from the profile of the browser, with the code that earlier visits have
    compiled.
    """
    repeats = scale.repeats(7)
    with sync_playwright() as playwright, _demo() as (demo, directory):
        address = f"{demo.url}{PUBLISHED}"
        with _tab(playwright, demo, directory / "profile") as page:
            # In turns, so that a load of the machine slows both.
            times = [
                (_first_figure(page, address), _first_figure(page, f"{demo.url}/static/alone.html"))
                for _ in range(WARM_UP + repeats)
            ][WARM_UP:]
    value, alone = (median(column) for column in zip(*times, strict=True))
    return Result(value, f"{alone:,.0f} ms for a page with Plotly alone", repeats, alone / value)


def _first_figure(page: Page, url: str) -> float:
    # Load another page in between, because a URL that differs only in its fragment is not reloaded.
    page.goto("about:blank")
    page.goto(url)
    page.locator('[data-figure-url][data-drawn="1"]').first.wait_for(state="attached", timeout=60_000)
    # The time of now is an upper bound, should the attribute have been set before the observer was there.
    return float(page.evaluate("window.firstFigure || performance.now()"))


@contextmanager
def _demo() -> Iterator[tuple[Demo, Path]]:
    """Start a demo of a copy of the project, which has one page more."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        copy_of_the_project(directory)
        for name, text in _ALONE.items():
            (directory / "static" / name).write_text(text)
        demo = start_demo(directory)
        try:
            yield demo, directory
        finally:
            stop_demo(demo)


@contextmanager
def _tab(playwright: Playwright, demo: Demo, profile: Path) -> Iterator[Page]:
    """Start a browser that is logged in."""
    size: ViewportSize = {"width": 1440, "height": 900}
    context = playwright.chromium.launch_persistent_context(
        profile, executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"], viewport=size
    )
    page = context.pages[0]
    page.add_init_script(_WATCH)
    page.goto(f"{demo.url}/login/")
    page.get_by_label("Username").fill(demo.user)
    page.get_by_label("Password").fill(demo.password)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_load_state()
    try:
        yield page
    finally:
        context.close()
