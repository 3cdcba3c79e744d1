"""A real parlab, started as a person starts it, and a real browser in front of it."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.patience import PATIENCE_S, TRAINING_S

from .install import find_chromium
from .rules import errors_of

PROJECT = Path(__file__).resolve().parent.parent.parent
SCREENSHOTS = PROJECT / "build" / "screenshots"
LAYOUT = "[...document.querySelectorAll('[data-panel]')].map((panel) => panel.dataset.panel)"
PATIENCE_MS, TRAINING_MS = 1000 * PATIENCE_S, 1000 * TRAINING_S

expect.set_options(timeout=PATIENCE_MS)


@dataclass
class Demo:
    """A running `make demo` and how to get in."""

    url: str
    user: str
    password: str
    directory: Path
    process: subprocess.Popen[str]

    @property
    def database(self) -> Path:
        return self.directory / "data" / "parlab.sqlite3"

    def processes(self) -> list[psutil.Process]:
        """Return all running processes of this demo, by their environment."""
        processes = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("PARLAB_DATA_DIR") == str(self.directory / "data"):
                    processes.append(process)
            except psutil.Error:
                continue
        return processes


def copy_of_the_project(target: Path) -> None:
    """Copy what a fresh clone would hold, uncommitted changes included."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (PROJECT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, target / name)
    # What this checkout has compiled belongs to the same files: the processes of the demo need not compile them again.
    for compiled in (*(PROJECT / "parlab").rglob("__pycache__"), *(PROJECT / "runners").rglob("__pycache__")):
        if (target / compiled.relative_to(PROJECT)).parent.is_dir():
            shutil.copytree(compiled, target / compiled.relative_to(PROJECT), dirs_exist_ok=True)


def start_demo(directory: Path, timeout_s: float = TRAINING_S) -> Demo:
    """Run `make demo` in a directory, with this test's virtual environment, until it says where it is."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PARLAB_", "REDIS_URL"))}
    for name in ("DATABASE_URL", "DEBUG", "DJANGO_SETTINGS_MODULE"):
        environment.pop(name, None)
    # The process that makes the data directory's other processes must be recognisable as theirs.
    environment["PARLAB_DATA_DIR"] = str(directory / "data")
    # Two test workers must not reach for the same ports at the same moment.
    place = 300 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    environment |= {"PORT": str(18000 + place), "REDIS_PORT": str(26000 + place)}
    process = subprocess.Popen(
        ["make", "demo", f"VENV={sys.prefix}"],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    output = ""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        if select.select([process.stdout], [], [], 0.5)[0]:
            line = process.stdout.readline()
            output += line
            if match := re.search(r"parlab: (http://\S+)  (\S+)  (\S+)", line):
                return Demo(match[1], match[2], match[3], directory, process)
    process.kill()
    pytest.fail(f"make demo did not come up; its output:\n{output}")


def stop_demo(demo: Demo) -> list[str]:
    """End a demo as a service manager would; return what it left running after ending that too."""
    demo.process.send_signal(signal.SIGTERM)
    try:
        demo.process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        demo.process.kill()
    left = [(process, " ".join(process.cmdline())[:100]) for process in demo.processes()]
    for process, _ in left:
        process.kill()
    return [name for _, name in left]


# Not for the session: Playwright keeps an event loop in this process, in which later tests could start none.
@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    directory = tmp_path_factory.mktemp("clone")
    copy_of_the_project(directory)
    running = start_demo(directory)
    try:
        yield running
    finally:
        left = stop_demo(running)
    assert not left, f"make demo left running: {left}"


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def session(browser: Browser, demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cookies of a login, which costs a second."""
    path = tmp_path_factory.mktemp("session") / "cookies.json"
    with browser.new_context(base_url=demo.url) as context:
        page = context.new_page()
        page.goto("/")
        page.get_by_label("Username").fill(demo.user)
        page.get_by_label("Password").fill(demo.password)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{demo.url}/")
        context.storage_state(path=path)
    return path


@pytest.fixture
def page(browser: Browser, demo: Demo, session: Path) -> Iterator[Page]:
    """A page of a user who is logged in; a test fails when it sees an error in the browser's console."""
    context = browser.new_context(base_url=demo.url, viewport={"width": 1440, "height": 900}, storage_state=session)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    errors = errors_of(page)
    yield page
    context.close()
    assert not errors, f"the browser's console shows: {errors}"


def add_viewer(page: Page, name: str, password: str) -> None:
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


def drag(page: Page, offer: Locator, target: Locator, key: str | None = None) -> None:
    """Drag an element to the middle of another one in steps, and press a key there before it is released."""
    target.scroll_into_view_if_needed()
    start, end = _middle(offer), _middle(target)
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=20)
    if key:
        page.keyboard.press(key)
    page.mouse.up()


def _middle(element: Locator) -> tuple[float, float]:
    box = element.bounding_box()
    assert box, "the element is not visible"
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def screenshots(page: Page, name: str) -> None:
    """Keep pictures of a page, wide and narrow, light and dark, with KEEP_SCREENSHOTS=1."""
    if "KEEP_SCREENSHOTS" not in os.environ:
        return
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for width, height in ((1440, 900), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(400)
            page.screenshot(path=SCREENSHOTS / f"{name}-{width}-{scheme}.png")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.emulate_media(color_scheme="light")
