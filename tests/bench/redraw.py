"""Time from an input to the next frame with the curves of twenty runs redrawn, in a browser."""

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
COMPARED, POINTS = 20, 10_000
# A timer that a frame sets runs after that frame was painted.
_MEASURE = """async ([input, repeats]) => {
  const painted = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  const plot = document.querySelector('[data-figure="curves"]'), slider = document.getElementById("smoothing");
  const area = plot.querySelector(".nsewdrag"), {left, top, width, height} = area.getBoundingClientRect();
  const inputs = {
    smoothing: (n) => { slider.value = 40 + n; slider.dispatchEvent(new Event("input", {bubbles: true})); },
    restyle: (n) => Plotly.restyle(plot, {y: plot.data.map(({y}) => Array.from(y, (value) => value * (1 + n / 1e6)))}),
    hover: (n) => area.dispatchEvent(new MouseEvent("mousemove", {
      bubbles: true, clientX: left + width * (0.2 + n / 50), clientY: top + height / 2})),
  };
  const times = [];
  for (let n = 0; n < repeats; n++) {
    // Longer than Plotly waits between two labels, and than the smoothing waits for the end of a movement.
    await new Promise((resolve) => setTimeout(resolve, 400));
    const began = performance.now();
    inputs[input](n);
    await painted();
    times.push(performance.now() - began);
    if (input === "hover" && !plot.querySelector(".hoverlayer > *")) throw new Error("hovering shows no label");
  }
  return times;
}"""


def redraw_ms(scale: Scale) -> Result:
    """Measure smoothing and hovering over the curves of 20 runs; compare with drawing them anew with Plotly."""
    client, address = _client(scale)
    repeats = scale.repeats(9)
    with override_settings(STORAGES=PLAIN_FILES), _page(client) as page:
        page.goto(ORIGIN + address)
        page.locator('[data-figure="curves"][data-drawn="1"]').wait_for(state="attached", timeout=120_000)
        page.locator('[data-figure="curves"]').scroll_into_view_if_needed()
        times = {name: median(page.evaluate(_MEASURE, [name, repeats])) for name in ("smoothing", "hover", "restyle")}
    value = max(times["smoothing"], times["hover"])
    against = f"smoothing {times['smoothing']:,.0f}, hover {times['hover']:,.0f}; {times['restyle']:,.0f} ms by Plotly"
    return Result(value, against, repeats, times["restyle"] / value)


def _client(scale: Scale) -> tuple[Client, str]:
    """Return a client and the address of a comparison of runs with series."""
    user, _ = get_user_model().objects.get_or_create(username="bench")
    if not Experiment.objects.filter(slug="redraw").exists():
        experiment = fill_experiment(user, "redraw", COMPARED)
        Run.objects.filter(experiment=experiment).update(state="finished")
        fill_series(list(experiment.runs.order_by("pk")), scale.of(POINTS))
    client = Client(SERVER_NAME="127.0.0.1")
    with override_settings(STORAGES=PLAIN_FILES):
        client.force_login(user)
    ids = Run.objects.filter(experiment__slug="redraw").order_by("pk").values_list("pk", flat=True)
    return client, f"{reverse('compare')}?runs={','.join(map(str, ids))}&curve=loss"


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
