"""Pictures of every page in both themes at three widths: `python -m tests.browser.screenshots`, or `make screenshots`.

Without `--url` it starts a demo of its own. The pictures lie in build/screenshots, where the slow tests leave them too.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.patience import PATIENCE_S

from .conftest import PATIENCE_MS, PROJECT, SCREENSHOTS, copy_of_the_project, start_demo, stop_demo
from .install import find_chromium
from .rules import errors_of, violations

WIDTHS = {390: 844, 1440: 900, 2560: 1440}
"""Width -> height of the window."""
NARROW, MEDIUM = 390, 1440
SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
SETTLED_MS, PLAIN_MS = 200, 50
"""How long to wait after a change of width or theme: with and without figures."""
PUBLISHED = "/experiments/gpt-3-small-on-three-nodes/"
DOUBTED = "/experiments/megatron-bert-345m-on-1-to-128-a100/"
UNKNOWN = "unknown-page"
"""The page whose status the browser reports as an error."""
PAGES = {
    "home": "/",
    "experiments": "/experiments/",
    "runs": "/experiments/?show=runs",
    "experiment": PUBLISHED,
    "experiment-scaling": "/experiments/mlperf-gpt-3-on-512-to-10752-h100/",
    "experiment-doubted": DOUBTED,
    "experiment-ready": "/experiments/zero-stages-of-two-ranks/",
    "experiment-table": f"{PUBLISHED}table/",
    "experiment-time": f"{PUBLISHED}time/",
    "experiment-compare": f"{PUBLISHED}compare/",
    "experiment-configuration": f"{PUBLISHED}configuration/",
    "experiment-report": f"{PUBLISHED}report/",
    "network": f"{PUBLISHED}network/",
    "gallery": f"{PUBLISHED}gallery/",
    "findings": f"{DOUBTED}findings/",
    "run": f"{PUBLISHED}runs/13/",
    "difference": f"{PUBLISHED}runs/13/difference/",
    "sweep-new": "/sweeps/new/",
    "sweep": "/experiments/zero-stages-of-two-ranks/sweep/",
    "compare": "/compare/",
    "dashboards": "/dashboards/",
    "plan": "/plan/",
    "simulate": "/simulate/",
    "timelines": "/compare/timelines/",
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
    "inbox": "/inbox/",
    "connect": "/connect/",
    "notifications": "/notifications/",
    "account": "/account/",
    "audit": "/audit/",
    "run-reported": "/experiments/four-ways-in/runs/1/",
    "run-time": "/experiments/four-ways-in/runs/1/time/",
    "run-ranks": "/experiments/four-ways-in/runs/1/ranks/",
    "run-system": "/experiments/four-ways-in/runs/1/system/",
    "run-log": "/experiments/four-ways-in/runs/1/log/",
    "run-details": "/experiments/four-ways-in/runs/1/details/",
    "names": "/experiments/four-ways-in/names/",
    "compared": "/compare/?runs=1,2,3,4,5,6&repeats=pooled",
    "study-new": "/tune/?config=1",
    "question": "/questions/throughput/",
    "experiment-new": "/experiments/slow-on-purpose/",
    "experiment-imported": "/experiments/autotuning-bert-base-with-deepspeed/",
    "run-goodput": "/experiments/four-ways-in/runs/1/goodput/",
    "run-traces": "/experiments/four-ways-in/runs/1/traces/",
    "schedule": f"{PUBLISHED}runs/13/schedule/",
    "runs-filtered": "/experiments/?show=runs&q=state:oom",
    "nothing-matches": "/experiments/?q=state:lost",
    UNKNOWN: "/no-such-page/",
    "term-unknown": "/experiments/?q=stat:oom+gpus>lots",
    "pivot": f"{PUBLISHED}table/?rows=network&columns=train.micro_batch_size&value=samples_per_s",
    "admin": "/admin/",
    "admin-experiments": "/admin/lab/experiment/",
    "admin-runs": "/admin/lab/run/",
    "admin-group": "/admin/auth/group/add/",
    "admin-user": "/admin/auth/user/1/change/",
    "admin-delete": "/admin/lab/experiment/1/delete/",
}
"""Name -> address in a fresh demo."""
WITH_LINKS = {
    "report": ("/reports/", r"/reports/(?!new)[\w-]+/"),
    "report-edit": ("/reports/gpipe-and-1f1b-on-a-slow-network/", r"/reports/[\w-]+/edit/"),
    "report-version": ("/reports/gpipe-and-1f1b-on-a-slow-network/", r"/reports/[\w-]+/versions/\d+/"),
    "shared": ("/reports/gpipe-and-1f1b-on-a-slow-network/versions/1/", r"/shared/[\w-]+/"),
    "inbox-item": ("/inbox/", r"/inbox/\d+/"),
    "watch": ("/watch/", r"/watch/\d+/"),
    "alert": ("/watch/", r"/watch/\d+/alerts/\d+/"),
    "node": ("/nodes/", r"/nodes/[\w.-]+/"),
    "dashboard": ("/dashboards/", r"/dashboards/\d+/"),
    "dashboard-edit": ("/dashboards/", r"/dashboards/\d+/"),
    "study": ("/tune/", r"/tune/\d+/"),
    "source": (f"{DOUBTED}configuration/", r"/experiments/[\w-]+/sources/\d+/"),
    "source-lines": (
        f"{DOUBTED}configuration/",
        r"/experiments/[\w-]+/sources/\d+/lines/[\d-]+/",
    ),
    "snapshot": (f"{PUBLISHED}runs/13/details/", r"/experiments/[\w-]+/runs/13/snapshots/\d+/"),
}
"""Name -> the page that links it, and its address."""
ENDINGS = {"dashboard-edit": "edit/"}
"""Name -> what follows the address of a link."""
LOG = "".join(
    f"iteration {n}/ 40 | elapsed time per iteration (ms): {900 + n}.5 | lm loss: 9.{n:02}E+00 |\n"
    for n in range(1, 41)
)
FILL = """
from datetime import timedelta
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone
from parlab.lab.models import Config
from parlab.tuner import services as tuner
from parlab.watch import services as watches
from parlab.watch.detecting import watch_detect
from parlab.watch.models import Result
user = User.objects.get(username="demo")
config = Config.objects.filter(experiment__slug="zero-stages-of-two-ranks").latest("pk")
watch = watches.watch_create(name="ZeRO on this machine", user=user, config=config)
start = timezone.now() - timedelta(days=3)
Result.objects.bulk_create(
    Result(watch=watch, line=str(n), at=start + timedelta(minutes=n),
           values={"step_time": 0.5 + 0.004 * (n * 37 % 11) / 11 + (0.08 if n >= 40 else 0)})
    for n in range(60)
)
watch_detect(watch=watch)
with transaction.atomic():
    study = tuner.study_create(config=Config.objects.filter(experiment__slug="tune-bert-base").latest("pk"), user=user)
    tuner.study_pause(study=study)
"""
"""Stores a watch with a noticed change and a paused study; a fresh demo has neither."""


@contextmanager
def opened(browser: Browser, url: str, user: str, password: str) -> Iterator[Page]:
    """Open a window with a user who is logged in."""
    # Colours that are on their way have no contrast yet.
    context = browser.new_context(base_url=url, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto("/login/")
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_load_state()
    yield page
    context.close()


def shoot(page: Page, name: str, address: str, directory: Path = SCREENSHOTS, *, with_rules: bool = False) -> list[str]:
    """Take pictures of a page with its figures, which is loaded once; returns what is wrong with it.

    That is where it is wider than the window and, with rules, what axe-core finds and the browser reports.
    """
    directory.mkdir(parents=True, exist_ok=True)
    problems = []
    page.goto(address)
    expect(page.locator("[hx-trigger=load]")).to_have_count(0)
    expect(page.locator("figure:not([hidden]) [data-figure-url]:not([data-drawn])")).to_have_count(0)
    settled_ms = SETTLED_MS if page.locator(".js-plotly-plot").count() else PLAIN_MS
    for width, height in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            # Figures are drawn anew, since a narrow one has a legend in place of names at its lines.
            page.evaluate("document.dispatchEvent(new CustomEvent('parlab:theme'))")
            page.wait_for_timeout(settled_ms)
            if page.locator("[data-drawing]").count():
                page.wait_for_load_state("networkidle")  # they are requested again in their new size
            page.screenshot(path=directory / f"{name}-{width}-{scheme}.png", full_page=True)
            # On a phone names of controls may be hidden, and what wraps gets closer.
            if with_rules and (width == MEDIUM or (width == NARROW and scheme == "light")):
                problems += [f"{name} ({scheme}, {width}): {problem}" for problem in violations(page)]
        pixels = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if pixels > 0:
            problems.append(f"{name} at {width}: {pixels} px too wide")
    return problems


def fill(directory: Path) -> None:
    """Run FILL in the demo of a directory."""
    environment = {**os.environ, "PARLAB_DATA_DIR": str(directory / "data")}
    for name in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE", "REDIS_URL"):
        environment.pop(name, None)
    command = [sys.executable, "manage.py", "shell", "-v", "0", "-c", FILL]
    subprocess.run(command, cwd=directory, env=environment, check=True, timeout=PATIENCE_S)


def prepare(page: Page) -> str:
    """Create a dashboard, share a report and preview an import; returns the address of the preview."""
    page.goto("/dashboards/")
    page.get_by_label("Name").fill("GPT-3 small on three nodes")
    page.locator("select[name=experiment]").select_option("gpt-3-small-on-three-nodes")
    page.get_by_role("button", name="New dashboard").click()
    page.wait_for_url("**/edit/")
    page.goto("/reports/gpipe-and-1f1b-on-a-slow-network/versions/1/")
    page.get_by_role("button", name="Share by link").click()
    expect(page.get_by_text("Readable without login")).to_be_visible()
    page.goto("/import/#file")
    page.get_by_label("Files").set_input_files({"name": "train.log", "mimeType": "text/plain", "buffer": LOG.encode()})
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("Will create the experiment")).to_be_visible()
    return page.url


def addresses(page: Page) -> dict[str, str]:
    """Return all pages of PAGES, and those that other pages link."""
    linked: dict[str, str] = {}
    for name, (address, pattern) in WITH_LINKS.items():
        page.goto(address)
        # Addresses of shared reports are printed whole.
        match = re.search(pattern, page.content())
        if match is None:
            raise ValueError(f"{address} links no page {name}; WITH_LINKS expects {pattern}")
        linked[name] = match[0] + ENDINGS.get(name, "")
    return PAGES | linked


def shoot_all(
    browser: Browser, directory: Path, url: str, user: str, password: str, *, with_rules: bool = False
) -> list[str]:
    """Take all pictures; returns what is wrong with the pages."""
    fill(directory)
    with opened(browser, url, user, password) as page:
        errors = errors_of(page)
        pages = {"import-preview": prepare(page), **addresses(page)}
        problems = []
        for name, address in pages.items():
            problems += shoot(page, name, address, with_rules=with_rules)
            problems += [f"{name}: the browser reports {error}" for error in errors if name != UNKNOWN]
            errors.clear()
        page.context.clear_cookies()
        return [*problems, *shoot(page, "login", "/login/", with_rules=with_rules)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="address of a running demo of this directory")
    parser.add_argument("--user", default="demo")
    parser.add_argument("--password", default="")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        demo, place = None, PROJECT
        if not options.url:
            place = Path(directory)
            copy_of_the_project(place)
            demo = start_demo(place)
            options.url, options.user, options.password = demo.url, demo.user, demo.password
        try:
            browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
            problems = shoot_all(browser, place, options.url, options.user, options.password)
            browser.close()
        finally:
            if demo is not None:
                stop_demo(demo)
    print(*problems, f"pictures in {SCREENSHOTS}", sep="\n")


if __name__ == "__main__":
    main()
