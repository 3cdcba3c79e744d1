"""Pictures of every page in both themes at three widths: `python -m tests.browser.screenshots`, or `make screenshots`.

Without `--url` it starts a demo of its own. The pictures lie in build/screenshots, where the slow tests leave them too.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, expect, sync_playwright

from .conftest import PATIENCE_MS, SCREENSHOTS, copy_of_the_project, start_demo, stop_demo
from .install import find_chromium

WIDTHS = {390: 844, 1440: 900, 2560: 1440}
"""Width -> height of the window."""
SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
SETTLED_MS = 200
PUBLISHED = "/experiments/gpt-3-small-on-three-nodes/"
PAGES = {
    "home": "/",
    "experiments": "/experiments/",
    "runs": "/experiments/?show=runs",
    "experiment": PUBLISHED,
    "experiment-scaling": "/experiments/mlperf-gpt-3-on-512-to-10752-h100/",
    "experiment-doubted": "/experiments/megatron-bert-345m-on-1-to-128-a100/",
    "experiment-ready": "/experiments/zero-stages-of-two-ranks/",
    "answer": f"{PUBLISHED}answer/",
    "network": f"{PUBLISHED}network/",
    "gallery": f"{PUBLISHED}gallery/",
    "findings": "/experiments/megatron-bert-345m-on-1-to-128-a100/findings/",
    "run": f"{PUBLISHED}runs/13/",
    "difference": f"{PUBLISHED}runs/13/difference/",
    "sweep-new": "/sweeps/new/",
    "sweep": "/experiments/zero-stages-of-two-ranks/sweep/",
    "compare": "/compare/",
    "dashboards": "/dashboards/",
    "plan": "/plan/",
    "simulate": "/simulate/",
    "timelines": "/timelines/",
    "tune": "/tune/",
    "reports": "/reports/",
    "report-new": "/reports/new/",
    "questions": "/questions/",
    "watches": "/watch/",
    "advice": "/advice/",
    "rules": "/findings/rules/",
    "nodes": "/nodes/",
    "import": "/import/",
    "formats": "/import/formats/",
    "notifications": "/notifications/",
    "account": "/account/",
    "audit": "/audit/",
    "run-reported": "/experiments/four-ways-in/runs/1/",
    "run-time": "/experiments/four-ways-in/runs/1/time/",
    "names": "/experiments/four-ways-in/names/",
    "compared": "/compare/?runs=1,2,3,4,5,6&repeats=pooled",
    "study-new": "/tune/?config=1",
}
"""Name -> address in a fresh demo."""
WITH_LINKS = {
    "report": ("/reports/", r"/reports/(?!new)[\w-]+/"),
    "watch": ("/watch/", r"/watch/\d+/"),
    "dashboard": ("/dashboards/", r"/dashboards/\d+/"),
}
"""Name -> the list that links the page, and its address."""


@contextmanager
def opened(browser: Browser, url: str, user: str, password: str) -> Iterator[Page]:
    """Open a window with a user who is logged in."""
    context = browser.new_context(base_url=url)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto("/login/")
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_load_state()
    yield page
    context.close()


def shoot(page: Page, name: str, address: str, directory: Path = SCREENSHOTS) -> list[str]:
    """Take pictures of a page with its figures, which is loaded once; returns where it is wider than the window."""
    directory.mkdir(parents=True, exist_ok=True)
    wider = []
    page.goto(address)
    expect(page.locator("figure:not([hidden]) [data-figure-url]:not([data-drawn])")).to_have_count(0)
    for width, height in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            # Figures are drawn anew, since a narrow one has a legend in place of names at its lines.
            page.evaluate("document.dispatchEvent(new CustomEvent('parlab:theme'))")
            page.wait_for_timeout(SETTLED_MS)
            page.screenshot(path=directory / f"{name}-{width}-{scheme}.png", full_page=True)
        pixels = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if pixels > 0:
            wider.append(f"{name} at {width}: {pixels} px too wide")
    return wider


def addresses(page: Page) -> dict[str, str]:
    """Return all pages of PAGES, and those that lists link."""
    linked: dict[str, str] = {}
    for name, (address, pattern) in WITH_LINKS.items():
        page.goto(address)
        matches = re.findall(rf'href="({pattern})"', page.content())
        linked |= {name: matches[0]} if matches else {}
    return PAGES | linked


def shoot_all(browser: Browser, url: str, user: str, password: str) -> list[str]:
    """Take all pictures; returns the pages that are wider than their window."""
    with opened(browser, url, user, password) as page:
        return [wide for name, address in addresses(page).items() for wide in shoot(page, name, address)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="address of a running demo")
    parser.add_argument("--user", default="demo")
    parser.add_argument("--password", default="")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        demo = None
        if not options.url:
            copy_of_the_project(Path(directory))
            demo = start_demo(Path(directory))
            options.url, options.user, options.password = demo.url, demo.user, demo.password
        try:
            browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
            wider = shoot_all(browser, options.url, options.user, options.password)
            browser.close()
        finally:
            if demo is not None:
                stop_demo(demo)
    print(*wider, f"pictures in {SCREENSHOTS}", sep="\n")


if __name__ == "__main__":
    main()
