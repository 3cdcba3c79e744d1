"""A headless browser for pictures and PDF: the installed Chromium, driven by Playwright.

The browser has no network, no secrets of the server and runs no scripts but Plotly's. It ends with its parent process,
even when that is killed. Playwright's asynchronous API is used because its synchronous one neither limits the time of
`evaluate` and `pdf` nor allows Django's ORM beside it.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from django.conf import settings

if TYPE_CHECKING:
    import playwright.async_api as playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "chrome-headless-shell")
SCALE = 2
"""Device pixels per CSS pixel in PNG files, for sharp prints."""
MAX_HEIGHT = 8_000
CLOSE_S = 5.0
"""Time limit for closing the browser; Playwright kills it when its driver ends."""
DRIVER_S = 60.0
"""Time limit for starting Playwright's driver."""
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "FONTCONFIG_PATH", "FONTCONFIG_FILE", "LD_LIBRARY_PATH")
_HEIGHT = "Math.ceil(document.documentElement.getBoundingClientRect().height)"
_FLAGS = [
    "--disable-gpu", "--font-render-hinting=none", "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9",
]  # fmt: skip
_FOOTER = (
    '<div style="font-size:8px;width:100%;text-align:center;color:#5c6470">'
    '<span class="pageNumber"></span> / <span class="totalPages"></span></div>'
)

MISSING = (
    "Chromium is not installed on the server. Install the package chromium there, or run python -m playwright install"
    " chromium as the account of the server, or set PARLAB_CHROMIUM to the path of a Chromium-based browser. Then draw"
    " again."
)
Value = TypeVar("Value")


class NoPicture(Exception):
    """The reason why no picture could be drawn, as a message for a person."""


def find_program(configured: str = "") -> str | None:
    """Return the path of the configured browser, or of the first one on PATH; None selects Playwright's own Chromium.

    Raises NoPicture if the configured browser cannot be executed.
    """
    if configured:
        path = shutil.which(configured)
        if path is None:
            raise NoPicture(
                f"PARLAB_CHROMIUM is {configured}, which is not an executable. Correct it, then draw again."
            )
        return path
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _passed_on() -> dict[str, str | float | bool]:
    """Return the environment variables that the browser gets, without the server's secrets."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}


def _library() -> Any:
    """Return Playwright's module, imported with the first picture: every process of the server imports this one."""
    return importlib.import_module("playwright.async_api")


class Browser:
    """A running browser; use `started`. Every call raises NoPicture at `deadline` (of time.monotonic)."""

    def __init__(self, directory: Path, deadline: float) -> None:
        self.directory = directory
        self.deadline = deadline
        self._runner = asyncio.Runner()
        self._driver: playwright.Playwright | None = None
        self._context: playwright.BrowserContext | None = None

    def start(self, program: str | None) -> None:
        deadline = self.deadline
        # Until the driver has started nothing can end its process, so this has a limit of its own.
        self.deadline = max(deadline, time.monotonic() + DRIVER_S)
        self._driver = self.wait(_library().async_playwright().start())
        self.deadline = deadline
        self._context = self.wait(self._launch(self._driver, program))

    async def _launch(self, driver: playwright.Playwright, program: str | None) -> playwright.BrowserContext:
        return await driver.chromium.launch_persistent_context(
            self.directory / "profile",
            executable_path=program,
            args=_FLAGS,
            chromium_sandbox=settings.CHROMIUM_SANDBOX and os.geteuid() != 0,  # it refuses to start as root
            # The browser draws what users wrote, so it gets a clean environment.
            env={"HOME": str(self.directory), **_passed_on()},
            offline=True,
            device_scale_factor=SCALE,
        )

    def close(self) -> None:
        with suppress(_library().Error, NoPicture):
            self.deadline = time.monotonic() + CLOSE_S
            if self._context is not None:
                self.wait(self._context.close())
        with suppress(_library().Error, NoPicture):
            self.deadline = time.monotonic() + CLOSE_S
            if self._driver is not None:
                self.wait(self._driver.stop())
        self._runner.close()

    def new_page(self) -> playwright.Page:
        assert self._context is not None
        return self.wait(self._context.new_page())

    def wait(self, call: Awaitable[Value]) -> Value:
        """Wait for a call of Playwright; raises NoPicture with the reason at the deadline or on an error."""

        async def limited() -> Value:
            return await asyncio.wait_for(call, max(0.0, self.deadline - time.monotonic()))

        try:
            return self._runner.run(limited())
        except TimeoutError as error:
            raise NoPicture("the browser took too long. Draw again; a large report may need fewer figures.") from error
        except _library().Error as error:
            message = error.message.splitlines()[0][:300]
            if "Executable doesn't exist" in message:
                raise NoPicture(MISSING) from error
            if "has been closed" in message or "Failed to launch" in message:
                message = "the browser stopped unexpectedly. Draw again, or start it by hand to see the reason."
                raise NoPicture(message) from error
            raise NoPicture(f"the browser could not draw this: {message}") from error


class Page:
    """One document in a browser."""

    def __init__(self, browser: Browser, html: str) -> None:
        self.browser = browser
        path = browser.directory / f"page-{time.monotonic_ns()}.html"
        path.write_text(html, encoding="utf-8")
        self._page = browser.new_page()
        browser.wait(self._page.goto(path.as_uri(), timeout=0))

    def evaluate(self, expression: str, argument: Any = None) -> Any:
        """Return the value of a JavaScript expression, or of a function called with a JSON argument."""
        return self.browser.wait(self._page.evaluate(expression, argument))

    def png(self, width: int) -> bytes:
        """Return a screenshot of the page: `width` CSS pixels wide, as high as its content up to MAX_HEIGHT."""
        self.browser.wait(self._page.set_viewport_size({"width": width, "height": 600}))
        height = min(MAX_HEIGHT, int(self.evaluate(_HEIGHT)))
        clip: playwright.FloatRect = {"x": 0, "y": 0, "width": width, "height": height}
        return self.browser.wait(self._page.screenshot(full_page=True, clip=clip, timeout=0))

    def pdf(self) -> bytes:
        """Return the page printed on A4, with page numbers."""
        return self.browser.wait(
            self._page.pdf(
                format="A4",
                print_background=True,
                margin={"top": "0.6in", "bottom": "0.7in", "left": "0.6in", "right": "0.6in"},
                display_header_footer=True,
                header_template="<span></span>",
                footer_template=_FOOTER,
            )
        )


@contextmanager
def started(*, program: str | None, limit_s: float) -> Iterator[Browser]:
    """Start a browser for some pictures and remove it and its files at the end. Raises NoPicture with a remedy."""
    with tempfile.TemporaryDirectory(prefix="parlab-pictures-", ignore_cleanup_errors=True) as directory:
        browser = Browser(Path(directory), time.monotonic() + limit_s)
        try:
            browser.start(program)
            yield browser
        finally:
            browser.close()
