"""Time from an input to the next frame with the panels of a hundred runs redrawn, in a browser."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from django.contrib.auth import get_user_model
from django.contrib.staticfiles import finders
from django.test import Client, override_settings
from django.urls import reverse
from playwright.sync_api import Page, Route, sync_playwright

from parlab.lab.models import Experiment, Run
from tests.bench.lists import PLAIN_FILES, fill_experiment
from tests.bench.pages import fill_series
from tests.bench.result import Result, Scale
from tests.browser.install import find_chromium

ORIGIN = "http://parlab.test"
RUNS, POINTS = 100, 500
# A timer that a frame sets runs after that frame was painted.
_MEASURE = """async ([input, repeats]) => {
  const painted = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  const eyes = [...document.querySelectorAll(".eye")], rows = [...document.querySelectorAll(".rl")];
  const slider = document.querySelector('[data-choice="smooth"]'), svg = document.querySelector("svg.curves");
  const {left, top, width, height} = svg.getBoundingClientRect();
  const inputs = {
    eye: (n) => eyes[n % 8].click(),
    row: (n) => rows[n].dispatchEvent(new PointerEvent("pointerover", {bubbles: true})),
    cursor: (n) => svg.dispatchEvent(new PointerEvent("pointermove", {
      bubbles: true, clientX: left + width * (0.2 + n / 50), clientY: top + height / 2})),
    smoothing: (n) => { slider.value = 9 + 2 * (n % 10); slider.dispatchEvent(new Event("input", {bubbles: true})); },
  };
  const times = [];
  for (let n = 0; n < repeats; n++) {
    await new Promise((resolve) => setTimeout(resolve, 200));
    const began = performance.now();
    inputs[input](n);
    await painted();
    times.push(performance.now() - began);
  }
  return times;
}"""
_INPUTS = ("eye", "row", "cursor", "smoothing")


def redraw_ms(scale: Scale) -> Result:
    """Measure what a person does with the panels of an experiment of 100 runs: hide, hover, smooth."""
    client, address = _client(scale)
    repeats = scale.repeats(9)
    with override_settings(STORAGES=PLAIN_FILES), _page(client) as page:
        page.goto(ORIGIN + address)
        page.locator("svg.curves .group").first.wait_for(state="attached", timeout=120_000)
        times = {name: median(page.evaluate(_MEASURE, [name, repeats])) for name in _INPUTS}
    texts = ", ".join(f"{name} {times[name]:,.0f}" for name in _INPUTS)
    return Result(max(times.values()), texts, repeats)


def _client(scale: Scale) -> tuple[Client, str]:
    """Return a client and the address of an experiment whose runs have series."""
    user, _ = get_user_model().objects.get_or_create(username="bench")
    if not Experiment.objects.filter(slug="redraw").exists():
        experiment = fill_experiment(user, "redraw", RUNS)
        Run.objects.filter(experiment=experiment).update(state="finished")
        fill_series(list(experiment.runs.order_by("pk")), scale.of(POINTS))
    client = Client(SERVER_NAME="127.0.0.1")
    with override_settings(STORAGES=PLAIN_FILES):
        client.force_login(user)
    return client, reverse("experiment", args=["redraw"])


@contextmanager
def _page(client: Client) -> Iterator[Page]:
    """Open a browser whose requests the client answers, without a server."""

    def answer(route: Route) -> None:
        parts = urlsplit(route.request.url)
        if parts.path.startswith("/static/"):
            path = finders.find(parts.path.removeprefix("/static/"))
            kind = mimetypes.guess_type(parts.path)[0] or "application/octet-stream"
            route.fulfill(body=Path(path).read_bytes() if path else b"", content_type=kind, status=200 if path else 404)
            return
        response = threads.submit(client.get, f"{parts.path}?{parts.query}").result()
        headers = {name: value for name, value in response.headers.items() if name != "Cross-Origin-Opener-Policy"}
        route.fulfill(status=response.status_code, headers=headers, body=response.content)

    # Playwright runs an event loop in this thread, in which Django answers no requests.
    with ThreadPoolExecutor(1) as threads, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(240_000)
        page.route(f"{ORIGIN}/**", answer)
        yield page
        browser.close()
