"""A browser without a window, for pictures and PDF: the Chromium that is installed, spoken to through a pipe.

It is given no network and no scripts but Plotly's; it ends with the pipe, whoever was killed.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "chrome-headless-shell")
SCALE = 2
"""Pixels of a picture per pixel of its page: sharp in print."""
MAX_HEIGHT = 8_000
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "FONTCONFIG_PATH", "FONTCONFIG_FILE", "LD_LIBRARY_PATH")
_HEIGHT = "Math.ceil(document.documentElement.getBoundingClientRect().height)"
# The browser reads its orders from file 3 and answers in file 4; the ends of the pipes may have any number here.
_LAUNCH = """
import os, sys
orders, answers = (os.dup(int(text)) for text in sys.argv[1:3])
orders, answers = (os.dup2(number, place) for number, place in ((orders, 103), (answers, 104)))
os.dup2(orders, 3); os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_FLAGS = (
    "--headless", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-gpu",
    "--disable-dev-shm-usage", "--disable-extensions", "--disable-sync", "--disable-background-networking",
    "--disable-component-update", "--mute-audio", "--hide-scrollbars", "--font-render-hinting=none",
    "--force-color-profile=srgb", "--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9",
)  # fmt: skip

MISSING = (
    "there is no Chromium on the server. Install the package chromium there (or set PARLAB_CHROMIUM to a browser of its"
    " kind), then draw again."
)


class NoPicture(Exception):
    """Why there is no picture, in words for a person."""


def find(wanted: str = "") -> str:
    """Name the browser's program; raises NoPicture where none is installed."""
    if wanted:
        found = shutil.which(wanted)
        if found is None:
            raise NoPicture(f"PARLAB_CHROMIUM is {wanted}, which is no program here. Correct it, then draw again.")
        return found
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise NoPicture(MISSING)
    return found


class Browser:
    """A running browser; use `started`. Every wait ends at `deadline` (of time.monotonic)."""

    def __init__(self, program: str, directory: Path, deadline: float) -> None:
        self.deadline = deadline
        self.directory = directory
        self._number = 0
        self._unread = b""
        self._events: list[dict[str, Any]] = []
        theirs_in, self._orders = os.pipe()
        self._answers, theirs_out = os.pipe()
        flags = [*_FLAGS, f"--user-data-dir={directory / 'profile'}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # it refuses to start as root with one
        command = [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out), program, *flags]
        self.process = subprocess.Popen(
            command,
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            # None of the server's secrets: it draws what people wrote.
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | {"HOME": str(directory)},
        )
        os.close(theirs_in)
        os.close(theirs_out)

    def close(self) -> None:
        for end in (self._orders, self._answers):
            with suppress(OSError):
                os.close(end)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        with suppress(ProcessLookupError):
            # Its own session: helpers that outlived it are in the same group.
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Give one order and wait for its answer."""
        self._number += 1
        order = {"id": self._number, "method": method, "params": parameters}
        self._write(json.dumps(order | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise NoPicture(f"the browser refused {method}: {answer['error'].get('message')}")
                result: dict[str, Any] = answer.get("result", {})
                return result
            self._events.append(answer)

    def wait_for(self, event: str, session: str) -> None:
        while True:
            for place, one in enumerate(self._events):
                if one.get("method") == event and one.get("sessionId") == session:
                    del self._events[: place + 1]
                    return
            self._events.append(self._read())

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._ready([], [self._orders])
            try:
                view = view[os.write(self._orders, view[:65_536]) :]
            except BrokenPipeError as error:
                raise NoPicture(self._ended()) from error

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            self._ready([self._answers], [])
            data = os.read(self._answers, 2**20)
            if not data:
                raise NoPicture(self._ended())
            self._unread += data
        text, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        code = self.process.returncode
        return f"the browser ended by itself (code {code}). Draw again, or start it by hand to see why."

    def _ready(self, reading: list[int], writing: list[int]) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0 or not any(select.select(reading, writing, [], left)):
            raise NoPicture("the browser took too long. Draw again; a large report may need fewer figures.")


class Page:
    """One document in a browser."""

    def __init__(self, browser: Browser, html: str) -> None:
        self.browser = browser
        path = browser.directory / f"page-{time.monotonic_ns()}.html"
        path.write_text(html, encoding="utf-8")
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = str(browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        self._call("Page.enable")
        self._call("Page.navigate", url=path.as_uri())
        browser.wait_for("Page.loadEventFired", self.session)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """Run an expression of our own and wait for its value."""
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            said = answer["exceptionDetails"].get("exception", {}).get("description", "no reason")
            raise NoPicture(f"the browser could not draw this: {said.splitlines()[0][:300]}")
        return answer["result"].get("value")

    def png(self, width: int) -> bytes:
        """Take a picture of the whole page, `width` pixels wide and as high as it is."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=600, deviceScaleFactor=SCALE, mobile=False)
        height = min(MAX_HEIGHT, int(self.evaluate(_HEIGHT)))
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(shot["data"])

    def pdf(self) -> bytes:
        """Print the page on A4, with page numbers."""
        footer = (
            '<div style="font-size:8px;width:100%;text-align:center;color:#5c6470">'
            '<span class="pageNumber"></span> / <span class="totalPages"></span></div>'
        )
        printed = self._call(
            "Page.printToPDF",
            printBackground=True,
            paperWidth=8.27,
            paperHeight=11.69,
            marginTop=0.6,
            marginBottom=0.7,
            marginLeft=0.6,
            marginRight=0.6,
            displayHeaderFooter=True,
            headerTemplate="<span></span>",
            footerTemplate=footer,
        )
        return base64.b64decode(printed["data"])


@contextmanager
def started(*, program: str, limit_s: float) -> Iterator[Browser]:
    """Start a browser for some pictures; it and its files are gone at the end. Raises NoPicture with what to do."""
    with tempfile.TemporaryDirectory(prefix="parlab-pictures-", ignore_cleanup_errors=True) as directory:
        browser = Browser(program, Path(directory), time.monotonic() + limit_s)
        try:
            yield browser
        finally:
            browser.close()
